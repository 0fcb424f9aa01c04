"""Connections and the process: what is refused unread, signals, and silence."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any
from unittest.mock import Mock, call

import pytest
import uvicorn
from uvicorn.server import ServerState

from fairseq_tg.serve import server
from fairseq_tg.serve.connections import Connection, is_whole_translation
from fairseq_tg.serve.options import ServeOptions
from fairseq_tg.serve.server import KEEP_ALIVE, _Server


@pytest.mark.parametrize(
    "head, whole",
    [
        ("Host: x\r\nContent-Length: 2", True),
        ("Host: x\r\ncontent-LENGTH:2 ", True),
        ("Host: x\r\nContent-Length: 3", False),  # more is to come
        ("Host: x\r\nContent-Length: 1", False),  # and this has a second request, or part of one
        ("Host: x\r\nContent-Length: 2\r\nContent-Length: 2", False),
        ("Host: x\r\nContent-Length: -2", False),
        ("Host: x\r\nContent-Length: 2\r\nConnection: close", False),
        ("Host: x\r\nContent-Length: 2\r\nConnection:Close", False),
        ("Host: x\r\nContent-Length: 2\r\nConnection: keep-alive", True),
        ("Host: x\r\nContent-Length: 2\r\nOrigin: https://a.example", False),
        ("Host: x\r\nTransfer-Encoding: chunked", False),
    ],
)
def test_what_may_be_refused_unread(head: str, whole: bool) -> None:
    assert is_whole_translation(f"POST /translate HTTP/1.1\r\n{head}\r\n\r\n{{}}".encode()) == whole
    assert not is_whole_translation(f"GET /translate HTTP/1.1\r\n{head}\r\n\r\n{{}}".encode())


def test_a_refusal_is_sent_at_once_and_counted_once() -> None:
    """Without the event loop; what may not be refused unread is parsed, and counted by whoever answers it."""
    request = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n%s\r\n{}"
    transport, counted = Mock(), []

    def refuse() -> bytes:
        counted.append(True)
        return b"HTTP/1.1 503"

    async def run() -> None:
        config = uvicorn.Config(Mock(), ws="none", lifespan="off")
        config.load()
        connection = Connection.using(lambda: True, refuse, Mock())(config, ServerState(), {})
        connection.connection_made(transport)
        for _ in range(3):
            connection.data_received(request % b"")
        assert transport.write.call_args_list == [call(b"HTTP/1.1 503")] * 3 and len(counted) == 3
        assert connection.asked and connection.timeout_keep_alive_task is None
        connection.data_received(request % b"Origin: https://a.example\r\n")
        assert len(counted) == 3 and not connection._is_free()

    asyncio.run(run())


def test_signals_before_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to read again yet, and nothing to finish."""
    survived = []

    def read(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        survived.append(True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr(server, "Models", read)
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        with pytest.raises(SystemExit) as end:
            server.serve(ServeOptions(models=("model.tg",)))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert survived and end.value.code == 0


def test_a_connection_is_closed_after_a_time_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one whose requests came and were answered between two looks at it."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    silent, lively = Mock(asked=True), Mock(asked=True)
    server = _Server(uvicorn.Config(Mock()), Mock(options=ServeOptions(models=("m",))))
    server.server_state.connections = {silent, lively}
    for _ in range(KEEP_ALIVE + 13):
        server._close_slow()
        lively.asked, now = True, now + 1
    assert silent.transport.close.called and not lively.transport.close.called
