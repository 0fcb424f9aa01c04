"""The body of a request, within its limits of size and time."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Dict, Optional, Type

from starlette.formparsers import MultiPartException
from starlette.requests import Request

from fairseq_tg.serve.forms import Fields, form_fields, most_fields, parse_fields, parse_form
from fairseq_tg.serve.options import Limits
from fairseq_tg.serve.refusals import Refusal, invalid


class ClientGone(Exception):
    """Nobody is there for an answer."""


class Deadline:
    """Ends what is inside it with a refusal when the time is over. (asyncio.timeout came with Python 3.11.)"""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._late = seconds, False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    def _expire(self) -> None:
        self._late = True
        if self._task is not None:
            self._task.cancel()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._timer.cancel()
        if self._late and kind is asyncio.CancelledError:
            raise Refusal(400, "Invalid request: it took too long to arrive", {"Connection": "close"}) from None


async def read_fields(request: Request, limits: Limits) -> Fields:
    """The fields of a request, from JSON or a form of either kind; and those of its address that are not there."""
    body = await _read_body(request, limits)
    there = parse_form(request.scope["query_string"], limits, "the address has fields that are not UTF-8")
    return {**there, **await _body_fields(request, body, limits)}


async def _body_fields(request: Request, body: bytes, limits: Limits) -> Fields:
    kind = request.headers.get("content-type", "")
    if not is_multipart(kind):
        return parse_fields(body, kind, limits)

    async def again() -> Dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    try:
        fields = {"max_fields": most_fields(limits), "max_part_size": limits.max_bytes}
        form = await Request(request.scope, again).form(max_files=0, **fields)
    except (MultiPartException, ValueError, KeyError, AssertionError):
        raise invalid("the form cannot be read") from None
    return form_fields({name: form.getlist(name) for name in form})


def is_multipart(content_type: str) -> bool:
    return content_type.strip().lower().startswith("multipart/form-data")


async def _read_body(request: Request, limits: Limits) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limits.max_bytes:
        raise _too_large(limits)
    body = bytearray()
    with Deadline(limits.body_timeout):
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            body += message.get("body", b"")
            if len(body) > limits.max_bytes:
                raise _too_large(limits)
            if not message.get("more_body", False):
                return bytes(body)


def _too_large(limits: Limits) -> Refusal:
    return Refusal(413, f"Invalid request: more than {limits.max_bytes} bytes", {"Connection": "close"})
