"""The routes of the service."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import islice
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from fairseq_tg import __version__
from fairseq_tg.compiled import Translator
from fairseq_tg.serve.answers import translation_answer
from fairseq_tg.serve.batching import Batcher, Order, Task
from fairseq_tg.serve.bodies import ClientGone, is_multipart, read_fields
from fairseq_tg.serve.drafts import Draft
from fairseq_tg.serve.forms import (
    Fields,
    TranslationRequest,
    parse_fields,
    read_text,
    read_translation,
    too_many_sentences,
)
from fairseq_tg.serve.keys import Keys
from fairseq_tg.serve.languages import language_name
from fairseq_tg.serve.metrics import Metrics
from fairseq_tg.serve.models import Models
from fairseq_tg.serve.options import ServeOptions
from fairseq_tg.serve.page import read_page
from fairseq_tg.serve.rates import Rates
from fairseq_tg.serve.refusals import invalid
from fairseq_tg.serve.routes import ENDING, Endpoint, Routes, answer, as_bytes, failed
from fairseq_tg.serve.spec import make_spec
from fairseq_tg.serve.systems import System, join_pieces

#: Seconds after which a client that waits is looked after: most have their answer by then
WATCH_AFTER = 0.05

Reply = Callable[[Response], None]


@dataclass(frozen=True)
class Pending:
    """A request whose sentences are being translated."""

    asked: TranslationRequest
    drafts: List[Draft]
    detected: List[Optional[Dict[str, Any]]]
    counts: List[int]  # of each sentence, its pieces
    order: Order
    started: float


def _system(translator: Translator, asked: TranslationRequest) -> System:
    """What was asked for, of a model that has it."""
    try:
        translator.check_beam(asked.beam, 1)
    except ValueError:
        raise invalid("beam parameter is more than this model's dictionary allows") from None
    if asked.named_actor is not None and asked.named_actor not in translator.actors:
        raise invalid("actor parameter is neither true nor false nor the name of one for these languages")
    return System(
        translator,
        beam=asked.beam,
        nbest=asked.alternatives + 1,
        actor=asked.actor,
        named_actor=asked.named_actor or (translator.actors[0] if asked.actor and translator.actors else None),
        scores=asked.scores or asked.tokens or asked.actions,
        actions=asked.actions,
    )


class Service:
    """What the routes share."""

    def __init__(self, options: ServeOptions, models: Models, keys: Keys) -> None:
        self.options, self.models, self._keys = options, models, keys
        self.metrics = Metrics()
        self._batcher = Batcher(options.batching, self.metrics.batch)
        self.is_full = self._batcher.is_full
        self._rates = Rates(options.limits.requests_per_minute)
        self._page = None if options.no_page else read_page()
        self._refusals: Dict[int, bytes] = {}  # by when to come back
        self.ending = False  # of what is under way nothing will be done

    def app(self) -> ASGIApp:
        gets: Dict[str, Endpoint] = {
            "/languages": self._languages,
            "/health": self._health,
            "/spec": self._openapi,
            **({} if self.options.no_metrics else {"/metrics": self._metrics}),
            **({} if self.options.no_page else {"/": self._index, "/frontend/settings": self._settings}),
        }
        posts: Dict[str, Endpoint] = {"/translate": self._translate, "/detect": self._detect}
        routes = Routes(gets, posts, self.metrics)
        if not self.options.cors:
            return routes
        return CORSMiddleware(
            routes,
            allow_origins=list(self.options.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["Content-Type"],
        )

    def close(self) -> None:
        self._batcher.close()

    def refusal(self, headers: Sequence[Tuple[str, str]]) -> bytes:
        """What a request for a translation that there is no room for is answered with, byte by byte."""
        self.metrics.request("/translate", 503)
        wait = self._batcher.wait()
        if wait not in self._refusals:
            refusal = self._batcher.refusal()
            content = answer({"error": refusal.message}, refusal.status, {**dict(headers), **refusal.headers})
            self._refusals[wait] = as_bytes(content)
        return self._refusals[wait]

    async def _translate(self, request: Request) -> Response:
        started = time.perf_counter()
        self._batcher.check_room()  # first of all, because it costs nothing
        self._rates.check(request.client.host if request.client else "")
        pending = self._begin(await read_fields(request, self.options.limits), started)
        await self._wait(pending.order, request)
        return self._end(pending)

    def translate_whole(
        self, address: str, headers: Mapping[bytes, bytes], body: bytes, reply: Reply
    ) -> Optional[Callable[[], None]]:
        """Answer a request for a translation that is here to its last byte; gives what to call if its client goes.

        None leaves it to `_translate`, which does the same, as a task and with what ASGI takes: more than all that
        is done with a sentence here.
        """
        content_type = headers.get(b"content-type", b"").decode("latin-1")
        proxied = self.options.trusted_proxy is not None and self.options.limits.requests_per_minute
        if proxied or b"origin" in headers or is_multipart(content_type) or len(body) > self.options.limits.max_bytes:
            return None

        def conclude(response: Response) -> None:
            self.metrics.request("/translate", response.status_code)
            reply(response)

        def finish(done: asyncio.Future) -> None:
            try:
                done.result()
                conclude(self._end(pending))
            except asyncio.CancelledError:
                conclude(failed(ENDING if self.ending else ClientGone(), self.metrics))
            except Exception as error:
                conclude(failed(error, self.metrics))

        try:
            self._batcher.check_room()
            self._rates.check(address)
            pending = self._begin(parse_fields(body, content_type, self.options.limits), time.perf_counter())
        except Exception as error:
            conclude(failed(error, self.metrics))
            return lambda: None
        pending.order.done.add_done_callback(finish)
        return lambda: self._batcher.cancel(pending.order)

    def _begin(self, fields: Fields, started: float) -> Pending:
        self._keys.check(fields.get("api_key"))
        asked = read_translation(fields, self.options.limits, self.options.beam)
        drafts, detected = [], []
        tasks: List[List[Task]] = []  # of each sentence
        for text in asked.texts:
            draft = Draft.of(text, asked.html)
            translator, language = self.models.find(asked.source, asked.target, " ".join(draft.sentences))
            if translator is None:
                draft = Draft(asked.html, [text])
            else:
                system = _system(translator, asked)
                tasks += [[(system, piece) for piece in system.pieces(sentence)] for sentence in draft.sentences]
            drafts.append(draft)
            detected.append(language)
            too_many_sentences(len(tasks), self.options.limits)
        order = self._batcher.order([task for pieces in tasks for task in pieces])
        return Pending(asked, drafts, detected, list(map(len, tasks)), order, started)

    def _end(self, pending: Pending) -> Response:
        asked, order = pending.asked, pending.order
        self.metrics.translation(sum(map(len, asked.texts)), time.perf_counter() - pending.started)
        timing = {"Server-Timing": f"translate;dur={1000 * order.seconds:.3f}"}
        results = iter(order.results)
        found = [join_pieces(list(islice(results, count))) for count in pending.counts]
        return answer(translation_answer(asked, pending.drafts, found, pending.detected), headers=timing)

    async def _wait(self, order: Order, request: Request) -> None:
        """Until the order is done; if the client goes, nothing more is done for it."""
        loop = asyncio.get_running_loop()
        watch: Optional[asyncio.Future] = None

        def look_after() -> None:
            nonlocal watch
            watch = asyncio.ensure_future(request.receive())  # nothing but the client's end can come now
            watch.add_done_callback(lambda _: self._batcher.cancel(order))

        timer = loop.call_later(WATCH_AFTER, look_after)
        try:
            await order.done
        except asyncio.CancelledError:
            if watch is not None and watch.done() and not watch.cancelled():
                raise ClientGone from None
            raise
        finally:
            timer.cancel()
            if watch is not None:
                watch.cancel()
            self._batcher.cancel(order)

    async def _detect(self, request: Request) -> Response:
        self._rates.check(request.client.host if request.client else "")
        fields = await read_fields(request, self.options.limits)
        self._keys.check(fields.get("api_key"))
        text = read_text(fields, self.options.limits)
        return answer(self.models.detect(" ".join(text) if isinstance(text, list) else text))

    async def _languages(self, request: Request) -> Response:
        return answer(self.models.languages())

    async def _health(self, request: Request) -> Response:
        return answer({"status": "ok"})

    async def _openapi(self, request: Request) -> Response:
        return answer(make_spec(self.options, self.models))

    async def _metrics(self, request: Request) -> Response:
        self.metrics.waiting.set(self._batcher.waiting)
        return Response(self.metrics.page(), headers={"Content-Type": self.metrics.content_type})

    async def _settings(self, request: Request) -> Response:
        """As LibreTranslate has them, and what the page here has to know beside them."""
        source, target = self.models.first_pair()
        own = {"version": __version__, "models": self.models.settings(), "beam": self.options.limits.max_beam}
        return answer(
            {
                **own,
                "charLimit": self.options.limits.max_characters,
                "apiKeys": self._keys.required,
                "keyRequired": self._keys.required,
                "suggestions": False,
                "filesTranslation": False,
                "supportedFilesFormat": [],
                "frontendTimeout": 500,  # milliseconds that its page waits until it translates what is typed
                "language": {
                    side: {"code": code, "name": language_name(code)}
                    for side, code in (("source", source), ("target", target))
                },
            }
        )

    async def _index(self, request: Request) -> Response:
        assert self._page is not None
        content, headers = self._page
        return Response(content, headers=headers)
