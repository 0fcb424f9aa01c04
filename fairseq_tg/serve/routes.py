"""Which function answers a request, and what it answers with."""

from __future__ import annotations

import asyncio
import json
import logging
from http import HTTPStatus
from typing import Any, Awaitable, Callable, Dict, Mapping, Optional, Sequence, Tuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fairseq_tg.serve.bodies import ClientGone
from fairseq_tg.serve.metrics import Metrics
from fairseq_tg.serve.refusals import Refusal

Endpoint = Callable[[Request], Awaitable[Response]]

#: Dataclasses as objects of their fields
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=vars).encode


def answer(content: Any, status: int = 200, headers: Optional[Mapping[str, str]] = None) -> Response:
    common = {"Content-Type": "application/json; charset=utf-8", "Cache-Control": "no-store"}
    # a message may quote half of a surrogate pair, which JSON can hold
    return Response(_encode(content).encode(errors="replace"), status, {**common, **(headers or {})})


#: Of what is under way when the time for it is over
ENDING = Refusal(503, "The server is going down: try again later", {"Retry-After": "1"})


def failed(error: BaseException, metrics: Metrics) -> Response:
    """What is answered instead."""
    if isinstance(error, Refusal):
        return answer({"error": error.message}, error.status, error.headers)
    if isinstance(error, ClientGone):
        metrics.client_gone()
        return Response(status_code=400)
    logging.getLogger("fairseq_tg.serve").error("a request failed", exc_info=error)
    return answer({"error": "Internal error: the operator finds it in the log"}, 500)


def as_bytes(response: Response, more: Sequence[Tuple[bytes, bytes]] = ()) -> bytes:
    """An answer as it goes over a connection, with more headers."""
    lines = [f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}".encode()]
    lines += [name + b": " + value for name, value in (*more, *response.raw_headers)]
    return b"\r\n".join([*lines, b"", bytes(response.body)])


class Routes:
    """An ASGI application of fixed paths, each with GET or POST.

    (Starlette's own, with its middleware, takes as long for a request as everything that is done with it here.)
    """

    def __init__(self, gets: Mapping[str, Endpoint], posts: Mapping[str, Endpoint], metrics: Metrics) -> None:
        self._metrics = metrics
        self._by_method: Dict[str, Mapping[str, Endpoint]] = {"GET": gets, "HEAD": gets, "POST": posts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].rstrip("/") or "/"
        endpoint = self._by_method.get(scope["method"], {}).get(path)
        if endpoint is None:
            response = self._without_endpoint(path)
        else:
            response = await self._run(endpoint, Request(scope, receive))
            self._metrics.request(path, response.status_code)
        await response(scope, receive, send)

    async def _run(self, endpoint: Endpoint, request: Request) -> Response:
        try:
            return await endpoint(request)
        except asyncio.CancelledError:  # which nobody but the server does, at its end
            return failed(ENDING, self._metrics)
        except Exception as error:
            return failed(error, self._metrics)

    def _without_endpoint(self, path: str) -> Response:
        """Of an address that is not there, or not with this method."""
        methods = [method for method, paths in self._by_method.items() if path in paths]
        if not methods:
            return answer({"error": "Not Found"}, 404)
        return answer({"error": "Method Not Allowed"}, 405, {"Allow": ", ".join(methods)})
