"""Sentences of many requests in batches: whose turn it is, and when there is no room."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any, List, Sequence

import pytest

from fairseq_tg.serve.batching import LONG, NICE, Batcher, Order, Work
from fairseq_tg.serve.options import Batching
from fairseq_tg.serve.refusals import Refusal


class Slow(Work):
    """Notes its batches and takes a while for each."""

    def __init__(self, key: str = "", seconds: float = 0.02) -> None:
        self.key, self.seconds = key, seconds
        self.batches: List[Sequence[Any]] = []

    def run(self, sentences: Sequence[Any]) -> List[Any]:
        self.batches.append(list(sentences))
        time.sleep(self.seconds)
        if "bad" in sentences:
            raise RuntimeError("bad")
        return [sentence.upper() for sentence in sentences]


def order(batcher: Batcher, work: Work, sentences: Sequence[str]) -> Order:
    return batcher.order([(work, sentence) for sentence in sentences])


def run_batches(scenario: Any, **options: Any) -> None:
    async def run() -> None:
        batcher = Batcher(Batching(**{"threads": 1, "batch_size": 4, **options}))
        await asyncio.wait_for(scenario(batcher), 20)
        assert batcher.waiting == batcher._counted == 0 and not batcher._orders
        batcher.close()

    asyncio.run(run())


def test_what_arrives_together_is_translated_together() -> None:
    work, other = Slow(), Slow("other")

    async def scenario(batcher: Batcher) -> None:
        orders = [order(batcher, work, [name]) for name in ("a", "b", "c")] + [order(batcher, other, ["d"])]
        await asyncio.gather(*(ordered.done for ordered in orders))
        assert [ordered.results for ordered in orders] == [["A"], ["B"], ["C"], ["D"]]
        empty = order(batcher, work, [])
        await empty.done

    run_batches(scenario, patience=200.0)  # whatever else the machine is at
    assert sorted(map(sorted, work.batches + other.batches)) == [["a", "b", "c"], ["d"]]


def test_patience_begins_anew_while_sentences_come() -> None:
    work = Slow()

    async def scenario(batcher: Batcher) -> None:
        orders = []
        for name in "abc":
            orders.append(order(batcher, work, [name]))
            await asyncio.sleep(0.4)  # less than the patience, all of them more
        assert not work.batches
        await asyncio.gather(*(ordered.done for ordered in orders))

    run_batches(scenario, patience=1000.0)
    assert [sorted(batch) for batch in work.batches] == [["a", "b", "c"]]


def test_a_long_document_does_not_hold_up_a_short_one() -> None:
    work = Slow()

    async def scenario(batcher: Batcher) -> None:
        document = order(batcher, work, ["x" * (10 + n % 5) for n in range(40)])
        await asyncio.sleep(0.01)
        shorts = [order(batcher, work, ["y" * length]) for length in (1, 100)]
        await asyncio.gather(*(short.done for short in shorts))
        assert not document.done.done() and len(work.batches) <= 6
        await document.done
        assert all(result == "X" * len(result) for result in document.results)

    run_batches(scenario)
    assert all(len(batch) <= 4 for batch in work.batches)


def test_who_came_first_is_not_passed_over_for_those_of_a_better_length() -> None:
    """Beyond the older half of what waits: waiting times are about the same for all lengths."""
    work = Slow(seconds=0.2)

    async def scenario(batcher: Batcher) -> None:
        orders = [order(batcher, work, ["first"])]
        await asyncio.sleep(0.05)  # it is under way
        orders += [order(batcher, work, ["x" * length]) for length in (1, 50, 2, 60, 1, 40, 2, 30)]
        orders += [order(batcher, work, ["y" * length]) for length in (1, 2, 1, 2, 1, 2)]
        await asyncio.gather(*(ordered.done for ordered in orders))

    run_batches(scenario, patience=0.0, batch_size=8)
    assert ["".join(sorted({text[0] for text in batch})) for batch in work.batches] == ["f", "x", "y"]


def test_a_short_sentence_comes_next_after_the_batch_that_is_under_way() -> None:
    """Also where that was the document's; and the document does not wait until no short one comes."""
    work, other = Slow(seconds=0.2), Slow("other")

    async def scenario(batcher: Batcher) -> None:
        document = order(batcher, work, ["x" * LONG] * 9)
        for _ in range(3):
            await asyncio.sleep(0.1)
            done = len(work.batches)
            first, second = order(batcher, work, ["y"]), order(batcher, other, ["z"])
            await first.done
            assert work.batches[done] == ["y"] and not other.batches
            await second.done
            assert [batch[0][0] for batch in work.batches[done : done + 2]] == ["y", "x"]
            other.batches.clear()
        await document.done

    run_batches(scenario, patience=0.0)


def test_long_sentences_are_few_at_a_time_and_without_short_ones() -> None:
    """Or a short one would wait for a batch of them, which takes as long as many of its own."""
    work = Slow()

    async def scenario(batcher: Batcher) -> None:
        document = order(batcher, work, ["x" * (2 * LONG + n) for n in range(20)] + ["z"])
        shorts = [order(batcher, work, ["y" * n]) for n in range(1, 10)]
        await asyncio.gather(document.done, *(short.done for short in shorts))
        assert document.results[0] == "X" * 2 * LONG and document.results[-1] == "Z"

    run_batches(scenario, batch_size=32)
    assert all({len(text) // LONG for text in batch} in ({0}, {2}) for batch in work.batches)
    assert max(len(batch) for batch in work.batches if len(batch[0]) > LONG) == 2


def test_sentences_that_cost_more_come_in_smaller_batches() -> None:
    """A batch of a wide beam would be as long as many of greedy search, and hold up what comes then."""
    work = Slow()
    work.cost = 8

    async def scenario(batcher: Batcher) -> None:
        await order(batcher, work, [str(number) for number in range(25)]).done

    run_batches(scenario, batch_size=32, threads=2, queue=1000)
    assert max(map(len, work.batches)) == 4 and sum(map(len, work.batches)) == 25


def test_a_full_queue_refuses_at_once_and_gone_clients_make_room() -> None:
    work = Slow(seconds=0.5)  # whatever else the machine is at

    async def scenario(batcher: Batcher) -> None:
        first = [order(batcher, work, ["a"]) for _ in range(9)]  # and one of them is begun
        await asyncio.sleep(0.01)
        with pytest.raises(Refusal) as refusal:
            order(batcher, work, ["b"] * 8)
        assert refusal.value.status == 503 and int(refusal.value.headers["Retry-After"]) >= 1
        for ordered in first:
            batcher.cancel(ordered)
        second = order(batcher, work, ["b"] * 8)
        await second.done
        assert all(ordered.done.cancelled() for ordered in first)

    run_batches(scenario, queue=8, patience=0.0)
    assert sum(batch.count("a") for batch in work.batches) <= 4  # one batch had begun


def test_a_long_order_leaves_room_for_others_and_many_of_them_do_not() -> None:
    work = Slow()

    async def scenario(batcher: Batcher) -> None:
        documents = [order(batcher, work, ["x"] * 300)]
        shorts = [order(batcher, work, ["y"]) for _ in range(12)]
        while True:
            try:
                batcher.check_room()
            except Refusal:
                break
            documents.append(order(batcher, work, ["x"] * 300))
        assert 2 <= len(documents) <= 6  # of 32, each takes half of what is left
        await asyncio.gather(*(short.done for short in shorts))
        assert not documents[0].done.done()
        for document in documents:
            batcher.cancel(document)

    run_batches(scenario, queue=32)


def test_a_thread_goes_on_while_the_event_loop_is_at_something_else() -> None:
    work = Slow()

    async def scenario(batcher: Batcher) -> None:
        ordered = order(batcher, work, ["a"] * 12)
        time.sleep(1)  # nothing is taken from the thread, and nothing given to it
        assert len(work.batches) == 3
        await ordered.done
        assert ordered.results == ["A"] * 12

    run_batches(scenario, patience=0.0)


def test_threads_that_translate_give_way_to_the_event_loop() -> None:
    priorities = []

    class Looks(Slow):
        def run(self, sentences: Any) -> List[str]:
            priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return super().run(sentences)

    async def scenario(batcher: Batcher) -> None:
        await order(batcher, Looks(), ["a"]).done

    run_batches(scenario)
    assert priorities == [min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)]


def test_a_batch_that_fails_fails_its_own_requests_alone() -> None:
    async def scenario(batcher: Batcher) -> None:
        bad, good = order(batcher, Slow("1"), ["bad", "a"]), order(batcher, Slow("2"), ["a"])
        await good.done
        with pytest.raises(RuntimeError):
            await bad.done

    run_batches(scenario)
