"""Sentences of many requests, translated together on a few threads.

Orders come and go in the event loop. A thread that is done with a batch takes the next itself, if there is a whole one:
the event loop has answers to send just then. So what waits is locked. The engine works without Python's lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Callable, Dict, Hashable, List, NamedTuple, Optional, Sequence, Sized, Tuple

from fairseq_tg.serve.options import Batching
from fairseq_tg.serve.refusals import Refusal

#: Most sentences looked at for a batch, in batches: more of them are of more equal length
WINDOW = 4
#: Fewer are not shared out among threads
LEAST_SHARE = 8
#: What is left of the most that was lately under way whenever a batch begins: clients between two requests count, too
REMEMBERED = 0.95
#: How often the patience begins anew because another sentence came: clients that had their answers together come back
#: one after another
ANEW = 5

#: Tokens from which on sentences cost more than one: less is what most have
LONG = 64

#: Of the threads that translate, beside that of the event loop
NICE = 5


class Work(ABC):
    """What to do with a batch; batches are made of sentences whose `key` is the same, and of about one length."""

    key: Hashable
    cost: int = 1  # of a sentence, in sentences of greedy search

    @abstractmethod
    def run(self, sentences: Sequence[Sized]) -> List[Any]:
        """The translations, in the order of the sentences."""


#: A sentence, of which nothing is asked but its length, and what is to be done with it
Task = Tuple[Work, Sized]
#: What may be in one batch: the work's key, and what one of its sentences costs
Kind = Tuple[Hashable, int]


def kind_of(task: Task) -> Kind:
    """Long sentences are by themselves, and few at a time: a short one in their batch would wait for them."""
    work, sentence = task
    doublings = (len(sentence) // LONG).bit_length()
    return work.key, work.cost * (4 << doublings if doublings else 1)


@dataclass(eq=False)
class Order:
    """The sentences of one request."""

    tasks: Sequence[Task]
    waiting: Dict[Kind, List[Tuple[int, int]]]  # those that no thread has taken, the shortest first: length and index
    cost: int  # of these
    since: float
    done: asyncio.Future
    results: List[Any]
    share: int  # of the queue's room: the most that it counts
    left: int = 0
    begun: bool = False
    seconds: float = 0.0  # that threads spent on its batches

    @property
    def counted(self) -> int:
        """What it takes of the queue's room."""
        return min(self.cost, self.share)


Batch = List[Tuple[Order, int]]  # and which of its sentences


class Done(NamedTuple):
    """A batch that a thread is done with."""

    batch: Batch
    cost: int
    results: List[Any]
    error: Optional[BaseException]
    seconds: float


@dataclass
class Batcher:
    """Takes orders, and fills batches from all of them in turn."""

    options: Batching
    observe: Callable[[int, float], None] = lambda size, seconds: None  # of each batch
    waiting: int = 0  # what sentences cost that no thread has taken
    _counted: int = 0  # and what of it counts for being full
    _taken: int = 0  # and those that threads are at work on
    _load: float = 0.0  # both, at their most lately
    _orders: OrderedDict[int, Order] = field(
        default_factory=OrderedDict
    )  # with waiting sentences, longest not served first
    _begun: bool = False  # whether that for which the last batch was made has more
    _idle: int = 0
    _timer: Optional[asyncio.TimerHandle] = None
    _newest: float = 0.0  # when the last order came
    _rate: float = 0.0  # cost a second, of all threads, lately

    def __post_init__(self) -> None:
        self._idle = self.options.threads
        self._pool = ThreadPoolExecutor(self.options.threads, thread_name_prefix="translate", initializer=_give_way)
        self._patience = self.options.patience / 1000
        self._lock = threading.Lock()  # of all that says what waits and what is under way

    def is_full(self) -> bool:
        return self._counted >= self.options.queue

    def wait(self) -> int:
        """Seconds until who is refused should come back."""
        return min(max(math.ceil(self.waiting / self._rate), 1), 60) if self._rate else 1

    def refusal(self) -> Refusal:
        return Refusal(503, "The server is busy: try again later", {"Retry-After": str(self.wait())})

    def check_room(self) -> None:
        """Refuse a request when the queue is full."""
        if self.is_full():
            raise self.refusal()

    def order(self, tasks: Sequence[Task]) -> Order:
        """Have sentences translated: `done` of what comes back is set when all are.

        An order counts for half of the room that it finds, at most: however long it is, others find room beside it; and
        after so many long ones as the room can be halved, the queue is full.
        """
        self.check_room()
        loop = asyncio.get_running_loop()
        waiting: Dict[Kind, List[Tuple[int, int]]] = {}
        for length, index in sorted((len(sentence), index) for index, (_, sentence) in enumerate(tasks)):
            waiting.setdefault(kind_of(tasks[index]), []).append((length, index))
        order = Order(
            tasks,
            waiting,
            sum(cost * len(sentences) for (_, cost), sentences in waiting.items()),
            loop.time(),
            loop.create_future(),
            [None] * len(tasks),
            share=max(1, (self.options.queue - self._counted) // 2),
            left=len(tasks),
        )
        if not tasks:
            order.done.set_result(None)
            return order
        with self._lock:
            self.waiting += order.cost
            self._counted += order.counted
            self._orders[id(order)] = order
            self._newest = order.since
        self._dispatch()
        return order

    def cancel(self, order: Order) -> None:
        """Whoever ordered has gone: what has not begun never will."""
        with self._lock:
            if self._orders.pop(id(order), None):
                self.waiting -= order.cost
                self._counted -= order.counted
                order.waiting.clear()
        order.done.cancel()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _dispatch(self) -> None:
        """Give idle threads what there is for them, or wait a little for more."""
        loop = asyncio.get_running_loop()
        with self._lock:
            while self._idle and self._orders:
                oldest = self._oldest()
                ready = min(self._newest, oldest.since + (ANEW - 1) * self._patience) + self._patience
                batch = self._take_whole() if loop.time() < ready else self._take(oldest)
                if not batch:
                    if self._timer is None:
                        self._timer = loop.call_at(ready, self._patience_is_over)
                    return
                self._pool.submit(self._translate, batch, loop)

    def _oldest(self) -> Order:
        """Whose turn it is. What comes while a document is translated does not wait for the next of its batches; and
        the document does not wait until nothing comes.
        """
        orders = self._orders.values()
        return next((order for order in orders if order.begun != self._begun), next(iter(orders)))

    def _take_whole(self) -> Batch:
        """The next batch, if as many wait as it should have."""
        if not self._orders:
            return []
        oldest = self._oldest()
        _, cost = next(iter(oldest.waiting))
        return self._take(oldest) if self.waiting >= self._size(cost) * cost else []

    def _size(self, cost: int) -> int:
        """Of the next batch: a part of all that is under way, one for every thread, and half a one that is on its way.

        While a batch's clients are answered and ask again, its thread has what waits to go on with. However many wait,
        it costs no more than the largest batch of greedy search, so that nobody waits longer than for that.
        """
        self._load = max(self._load, self.waiting + self._taken)
        parts = self.options.threads + 0.5 if self._taken else self._idle
        most = max(1, self.options.batch_size // cost)
        return min(most, max(math.ceil(self._load / cost / parts), LEAST_SHARE))

    def _patience_is_over(self) -> None:
        self._timer = None
        self._dispatch()

    def _take(self, oldest: Order) -> Batch:
        """The next batch for an idle thread: the oldest order's shortest sentence, and others of its kind.

        Orders give a sentence in turn, so that a long document leaves room for everyone's.
        """
        kind = next(iter(oldest.waiting))
        _, cost = kind
        size = self._size(cost)
        self._load *= REMEMBERED
        self._idle -= 1
        # No more than the older half of what waits: who is passed over for a length is soon among the oldest.
        # Who has the lock may be held up by others of the machine, and the event loop with it: little is looked at
        window = min(max(size, self.waiting // (2 * cost)), WINDOW * self.options.batch_size)
        having = ((order, order.waiting[kind]) for order in self._orders.values() if kind in order.waiting)
        alike = list(islice(having, window))
        found: List[Tuple[Tuple[int, int], Order]] = []
        depth = 0
        while len(found) < window and alike:
            found += [(waiting[depth], order) for order, waiting in alike[: window - len(found)]]
            depth += 1
            alike = [both for both in alike if len(both[1]) > depth]
        first = found[0]
        found.sort(key=_length)
        at = found.index(first)
        start = max(0, min(at - size // 2, len(found) - size))
        batch: Batch = []
        for sentence, order in found[start : start + size]:
            batch.append((order, sentence[1]))
            self._counted -= order.counted
            order.cost -= cost
            self._counted += order.counted
            order.begun = True
            waiting = order.waiting[kind]
            waiting.remove(sentence)
            if not waiting:
                del order.waiting[kind]
            if order.waiting:
                self._orders.move_to_end(id(order))  # the next batch is made around another's sentence
            else:
                self._orders.pop(id(order), None)
        self._begun = bool(oldest.waiting)
        self.waiting -= len(batch) * cost
        self._taken += len(batch) * cost
        return batch

    def _translate(self, batch: Batch, loop: asyncio.AbstractEventLoop) -> None:
        """On a thread: a batch, and others as long as there are whole ones."""
        while batch:
            tasks, results, error = [order.tasks[index] for order, index in batch], [], None
            work, (_, cost) = tasks[0][0], kind_of(tasks[0])
            started = time.perf_counter()
            try:
                results = work.run([sentence for _, sentence in tasks])
            except BaseException as raised:
                error = raised
            done = Done(batch, len(batch) * cost, results, error, time.perf_counter() - started)
            with self._lock:
                self._idle += 1
                self._taken -= done.cost
                batch = self._take_whole()
            loop.call_soon_threadsafe(self._finish, done)

    def _finish(self, done: Done) -> None:
        if done.error is None:
            self.observe(len(done.batch), done.seconds)
            rate = self.options.threads * done.cost / max(done.seconds, 1e-6)
            self._rate += (rate - self._rate) * (0.05 if self._rate else 1.0)
            for (order, index), result in zip(done.batch, done.results):
                order.results[index] = result
                order.left -= 1
            for order in {id(order): order for order, _ in done.batch}.values():
                order.seconds += done.seconds
                if not order.left and not order.done.done():
                    order.done.set_result(None)
        else:
            for order, _ in done.batch:
                if not order.done.done():
                    order.done.set_exception(done.error)
                self.cancel(order)
        self._dispatch()


def _length(item: Tuple[Tuple[int, int], Order]) -> int:
    return item[0][0]


def _give_way() -> None:
    """Let the event loop go first where cores are short, so that whoever is refused hears of it at once."""
    with contextlib.suppress(AttributeError, OSError):  # Linux has priorities of threads
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICE)
