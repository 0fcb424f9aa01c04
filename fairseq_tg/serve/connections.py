"""A connection as uvicorn has it, whose answers go out in one piece."""

from __future__ import annotations

import asyncio
from typing import Any, List, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


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


class Connection(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, Joined(transport, self.loop)))
