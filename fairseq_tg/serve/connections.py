"""A connection as uvicorn has it, whose answers go out in one piece, and early where there is nothing to read for."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, List, Optional, Type, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Of a request's first line and its headers
MOST_HEAD = 65536
#: What is refused without being parsed while the service is full: all else is cheap, or wants to be looked at
TRANSLATION = b"POST /translate HTTP/1.1\r\n"
LENGTH = b"\r\ncontent-length:"
UNUSUAL = (b"close", b"\r\norigin:", b"\r\nexpect:", b"\r\nupgrade:", b"\r\ntransfer-encoding:")


class Joined:
    """A transport that sends together what is written in one turn of the event loop: an answer's head and its body."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._pieces: List[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)

    def _flush(self) -> None:
        if self._pieces:
            self._transport.write(b"".join(self._pieces))
            self._pieces.clear()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def is_whole_translation(data: bytes) -> bool:
    """Whether it is one request for a translation from its first byte to its last, of the usual kind."""
    if not data.startswith(TRANSLATION):
        return False
    head, _, body = data.partition(b"\r\n\r\n")
    head = head.lower()
    if any(header in head for header in UNUSUAL) or head.count(LENGTH) != 1:
        return False
    length = head.partition(LENGTH)[2].partition(b"\r\n")[0].strip()
    return length.isdigit() and len(length) < 10 and int(length) == len(body)


class Connection(HttpToolsProtocol):
    """uvicorn's, with a limit for the lines before a request's body, and refusals that cost next to nothing."""

    #: The whole answer to a translation that there is no room for now, if there is none
    refusal: Callable[[], Optional[bytes]] = staticmethod(lambda: None)
    refused = False  # something, since it was last looked at

    _aside = 0  # bytes since the last that were of a body: lines before it, and such as there may be behind it
    _moved = False  # whether there were some of a body in what came last
    _within = False  # a request that is not read to its end

    @classmethod
    def refusing(cls, refusal: Callable[[], Optional[bytes]]) -> Type[Connection]:
        return type(cls.__name__, (cls,), {"refusal": staticmethod(refusal)})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, Joined(transport, self.loop)))

    def data_received(self, data: bytes) -> None:
        answered = self.cycle is None or self.cycle.response_complete
        if answered and not self._within and is_whole_translation(data):
            refusal = self.refusal()
            if refusal is not None:
                self.refused = True
                self.transport.write(refusal)
                self.on_response_complete()  # as after any other answer
                return
        self._moved = False
        super().data_received(data)
        self._aside = 0 if self._moved else self._aside + len(data)
        if self._aside > MOST_HEAD and not self.transport.is_closing():
            self.send_400_response(f"Invalid request: more than {MOST_HEAD} bytes beside its body.")

    def on_message_begin(self) -> None:
        self._aside, self._within = 0, True
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._within = False
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._moved = True
        super().on_headers_complete()
