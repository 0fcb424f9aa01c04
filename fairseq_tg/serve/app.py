"""The routes of the service."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, Mapping, Optional

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fairseq_tg import __version__
from fairseq_tg.serve.answers import translation_answer
from fairseq_tg.serve.batching import Batcher, Order
from fairseq_tg.serve.bodies import ClientGone, read_fields
from fairseq_tg.serve.drafts import Draft, count_sentences
from fairseq_tg.serve.forms import read_text, read_translation, too_many_sentences
from fairseq_tg.serve.keys import Keys
from fairseq_tg.serve.metrics import Metrics
from fairseq_tg.serve.models import Models
from fairseq_tg.serve.options import ServeOptions
from fairseq_tg.serve.page import read_page
from fairseq_tg.serve.rates import Rates
from fairseq_tg.serve.refusals import Refusal
from fairseq_tg.serve.spec import make_spec
from fairseq_tg.serve.systems import System

Endpoint = Callable[[Request], Awaitable[Response]]

#: Seconds after which a client that waits is looked after: most have their answer by then
WATCH_AFTER = 0.05


class Service:
    """What the routes share."""

    def __init__(self, options: ServeOptions, models: Models, keys: Keys) -> None:
        self.options, self.models, self._keys = options, models, keys
        self.metrics = Metrics()
        self._batcher = Batcher(options.batching, self.metrics.batch)
        self._rates = Rates(options.limits.requests_per_minute)
        self._page = None if options.no_page else read_page()

    def app(self) -> Starlette:
        routes: Dict[str, Endpoint] = {
            "/languages": self._languages,
            "/health": self._health,
            "/spec": self._openapi,
            **({} if self.options.no_metrics else {"/metrics": self._metrics}),
            **({} if self.options.no_page else {"/": self._index, "/settings": self._settings}),
        }
        posts: Dict[str, Endpoint] = {"/translate": self._translate, "/detect": self._detect}
        middleware = []
        if self.options.cors:
            middleware.append(
                Middleware(
                    CORSMiddleware,
                    allow_origins=list(self.options.cors),
                    allow_methods=["GET", "POST"],
                    allow_headers=["Content-Type"],
                )
            )
        return Starlette(
            routes=[
                *(Route(path, self._counted(path, endpoint), methods=["POST"]) for path, endpoint in posts.items()),
                *(Route(path, self._counted(path, endpoint), methods=["GET"]) for path, endpoint in routes.items()),
            ],
            middleware=middleware,
            exception_handlers={HTTPException: _http_error, Exception: _internal_error},
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        self._batcher.close()

    def _counted(self, path: str, endpoint: Endpoint) -> Endpoint:
        async def run(request: Request) -> Response:
            try:
                response = await endpoint(request)
            except Refusal as refusal:
                response = answer({"error": refusal.message}, refusal.status, refusal.headers)
            except ClientGone:
                self.metrics.client_gone()
                response = Response(status_code=400)
            self.metrics.request(path, response.status_code)
            return response

        return run

    async def _translate(self, request: Request) -> Response:
        started = time.perf_counter()
        self._batcher.check_room()  # first of all, because it costs nothing
        self._check_rate(request)
        fields = await read_fields(request, self.options.limits)
        self._keys.check(fields.get("api_key"))
        asked = read_translation(fields, self.options.limits, self.options.beam)
        model, detected = self.models.find(asked.source, asked.target, " ".join(asked.texts))
        drafts = [Draft.of(text, asked.html) for text in asked.texts]
        too_many_sentences(count_sentences(drafts), self.options.limits)
        system = System(
            model.translator,
            beam=asked.beam,
            nbest=asked.alternatives + 1,
            actor=asked.actor,
            scores=asked.scores or asked.tokens or asked.actions,
            actions=asked.actions,
        )
        order = self._batcher.order(system, [sentence for draft in drafts for sentence in draft.sentences])
        await self._wait(order, request)
        self.metrics.translation(sum(map(len, asked.texts)), time.perf_counter() - started)
        timing = {"Server-Timing": f"translate;dur={1000 * order.seconds:.3f}"}
        return answer(translation_answer(asked, drafts, order.results, detected), headers=timing)

    async def _wait(self, order: Order, request: Request) -> None:
        """Until the order is done; if the client goes, nothing more is done for it."""
        try:
            await asyncio.wait({order.done}, timeout=WATCH_AFTER)
            if not order.done.done():
                gone = asyncio.ensure_future(request.receive())
                await asyncio.wait({order.done, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not order.done.done():
                    raise ClientGone
                gone.cancel()
            order.done.result()
        finally:
            self._batcher.cancel(order)

    async def _detect(self, request: Request) -> Response:
        self._check_rate(request)
        fields = await read_fields(request, self.options.limits)
        self._keys.check(fields.get("api_key"))
        text = read_text(fields)
        text = " ".join(text) if isinstance(text, list) else text
        return answer(self.models.detect(text[: self.options.limits.max_characters]))

    def _check_rate(self, request: Request) -> None:
        self._rates.check(request.client.host if request.client else "")

    async def _languages(self, request: Request) -> Response:
        return answer(self.models.languages())

    async def _health(self, request: Request) -> Response:
        return answer({"status": "ok"})

    async def _openapi(self, request: Request) -> Response:
        return answer(make_spec(self.options, self.models.languages()))

    async def _metrics(self, request: Request) -> Response:
        self.metrics.waiting.set(self._batcher.waiting)
        return Response(self.metrics.page(), headers={"Content-Type": self.metrics.content_type})

    async def _settings(self, request: Request) -> Response:
        limits = self.options.limits
        return answer(
            {
                "version": __version__,
                "models": self.models.settings(),
                "characters": limits.max_characters,
                "beam": limits.max_beam,
                "keyRequired": self._keys.required,
            }
        )

    async def _index(self, request: Request) -> Response:
        assert self._page is not None
        content, headers = self._page
        return Response(content, headers=headers)


def answer(content: Any, status: int = 200, headers: Optional[Mapping[str, str]] = None) -> Response:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    common = {"Content-Type": "application/json; charset=utf-8", "Cache-Control": "no-store"}
    return Response(text, status, {**common, **(headers or {})})


async def _http_error(request: Request, error: Exception) -> Response:
    """Of an address that is not there, or not with this method."""
    assert isinstance(error, HTTPException)
    return answer({"error": error.detail}, error.status_code, error.headers)


async def _internal_error(request: Request, error: Exception) -> Response:
    logging.getLogger("fairseq_tg.serve").error("a request failed", exc_info=error)
    return answer({"error": "Internal error: the operator finds it in the log"}, 500)
