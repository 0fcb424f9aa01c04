"""A connection as uvicorn has it, with a short way for translations, and answers in one piece."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any, Callable, Dict, List, Mapping, Optional, Type, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from fairseq_tg.serve.routes import answer, as_bytes

#: Of a request's first line and its headers; and of one that may be refused unread
MOST_HEAD, USUAL_HEAD = 65536, 2048
#: What is refused without being parsed while the service is full: all else is cheap, or wants to be looked at
TRANSLATION = b"POST /translate HTTP/1.1\r\n"
LENGTH = b"\r\ncontent-length:"
UNUSUAL = (b"close", b"\r\norigin:", b"\r\nexpect:", b"\r\nupgrade:", b"\r\ntransfer-encoding:")

#: Of every answer
BEGINNING = b"HTTP/1.1 "
#: Seconds until a client that sends no more is looked after for the second time; then it is twice as long, and so on
LOOK_AFTER = 0.005

Translate = Callable[[str, Mapping[bytes, bytes], bytes, Callable[[Response], None]], Optional[Callable[[], None]]]


class Joined:
    """A transport that sends together what is written in one turn of the event loop: an answer's head and its body."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._pieces: List[bytes] = []
        self._ahead = 0  # bytes of the next answer that were sent already

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)

    def write_whole(self, data: bytes) -> None:
        """An answer that nothing is to be sent with."""
        self._flush()
        self._transport.write(data)

    def _flush(self) -> None:
        if self._pieces:
            self._transport.write(b"".join(self._pieces)[self._ahead :])
            self._pieces.clear()
            self._ahead = 0

    def send_ahead(self) -> None:
        """A byte of what all answers begin with, if one is left."""
        self._transport.write(BEGINNING[self._ahead : self._ahead + 1])
        self._ahead = min(self._ahead + 1, len(BEGINNING))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def is_whole_translation(data: bytes) -> bool:
    """Whether it is one request for a translation from its first byte to its last, of the usual kind."""
    head, _, body = data.partition(b"\r\n\r\n")
    return len(head) < USUAL_HEAD and body_length(head) == len(body)


@lru_cache(maxsize=1024)  # a client's are alike
def body_length(head: bytes) -> int:
    """What a request for a translation of the usual kind says of its body; -1 of all others."""
    usual = head.lower()
    if not head.startswith(TRANSLATION) or any(name in usual for name in UNUSUAL) or usual.count(LENGTH) != 1:
        return -1
    length = usual.partition(LENGTH)[2].partition(b"\r\n")[0].strip()
    return int(length) if length.isdigit() and len(length) < 10 else -1


class Exchange:
    """A translation that is under way without ASGI, as uvicorn sees what a connection is at."""

    message_event = asyncio.Event()  # which nobody waits for

    def __init__(self) -> None:
        self.keep_alive, self.response_started, self.response_complete, self.disconnected = True, False, False, False


class Connection(HttpToolsProtocol):
    """uvicorn's, with a limit for the lines before a request's body, and two that cost less than ASGI: translations
    whose request comes in one piece, and refusals."""

    #: Whether there is no room for a translation, and the whole answer then
    is_full: Callable[[], bool] = staticmethod(lambda: False)
    refusal: Callable[[], bytes] = staticmethod(lambda: b"")
    #: Service.translate_whole
    translate: Translate = staticmethod(lambda address, headers, body, reply: None)
    asked = False  # something, since it was last looked at

    _aside = 0  # bytes since the last that were of a body: lines before it, and such as there may be behind it
    _moved = False  # whether there were some of a body in what came last
    _within = False  # a request that is not read to its end
    _held: Optional[bytearray] = None  # the body of a translation, until it is known whether all of it is there
    _leave: Optional[Callable[[], None]] = None  # to be called if the client goes

    @classmethod
    def using(cls, is_full: Callable[[], bool], refusal: Callable[[], bytes], translate: Translate) -> Type[Connection]:
        own: Dict[str, Callable[..., Any]] = {"is_full": is_full, "refusal": refusal, "translate": translate}
        return type(cls.__name__, (cls,), {name: staticmethod(function) for name, function in own.items()})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, Joined(transport, self.loop)))

    def connection_lost(self, exc: Optional[Exception]) -> None:
        super().connection_lost(exc)
        self.leave()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more: whether there is something that it may wait for."""
        if self._within or self._is_free():
            self.transport.close()  # behind an answer that waits for this turn's end
            return False
        self.cycle.keep_alive = False
        self._look_after(LOOK_AFTER)
        return True

    def _look_after(self, again: float) -> None:
        """Find out whether a client is still there: only what is sent to it tells, and that the second time."""
        waits = not (self.transport.is_closing() or self.cycle.response_started or self._is_free() or self.pipeline)
        if waits and again < 1:
            cast(Joined, self.transport).send_ahead()
            self.loop.call_later(again, self._look_after, 2 * again)

    def leave(self) -> None:
        """Nothing more is done for a translation that is under way here."""
        if self._leave is not None:
            self._leave()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self.is_full() and self._is_free() and not self._within and is_whole_translation(data):
            self.asked = True  # from which on the server looks after it, and not uvicorn's timer, which costs as much
            cast(Joined, self.transport).write_whole(self.refusal())
            return
        self._moved = False
        self._parse(data)
        if not self.transport.is_closing():
            self._give_back()
        self._aside = 0 if self._moved else self._aside + len(data)
        if self._aside > MOST_HEAD and not self.transport.is_closing():
            self.send_400_response(f"Invalid request: more than {MOST_HEAD} bytes beside its body.")

    def _parse(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                try:
                    return self.parser.feed_data(rest)
                except HttpParserUpgrade as offer:
                    if not self._is_offer():
                        return
                    # There is no other protocol here: the same without the offer, with which the parser would leave
                    # out the body, to another one, because this takes nothing behind `Connection: close`
                    rest, head = rest[offer.args[0] :], self._head_without_offer()
                    self.parser = HttpRequestParser(self)
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
                    self.parser.feed_data(head)
        except HttpParserUpgrade:
            pass  # CONNECT, with an offer beside: there is nothing behind it
        except HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _is_offer(self) -> bool:
        return self.parser.should_upgrade() and any(name == b"upgrade" for name, _ in self.headers)

    def _head_without_offer(self) -> bytes:
        first = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        headers = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([first, *headers, b"", b""])

    def send_400_response(self, msg: str) -> None:
        """As all errors are told."""
        refused = answer({"error": msg}, 400, {"Connection": "close"})
        self.transport.write(as_bytes(refused, self.server_state.default_headers))
        self.transport.close()

    def _is_free(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def on_message_begin(self) -> None:
        self._aside, self._within = 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._moved = True
        if self._is_offer():
            return
        if (
            self.url == b"/translate"
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and not self.parser.should_upgrade()
            and not self.expect_100_continue
            and not self.flow.write_paused
            and self._is_free()
        ):
            self._held = bytearray()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._moved = True
        if self._held is None:
            super().on_body(body)
        else:
            self._held += body

    def on_message_complete(self) -> None:
        if self._is_offer():
            return
        self._within, self.asked = False, True
        if self._held is not None and self._translate(bytes(self._held)):
            self._held = None
        else:
            self._give_back()
            super().on_message_complete()

    def _give_back(self) -> None:
        """Leave to ASGI what is held, if something is."""
        body, self._held = self._held, None
        if body is not None:
            super().on_headers_complete()
            super().on_body(bytes(body))

    def _translate(self, body: bytes) -> bool:
        exchange = Exchange()

        def reply(response: Response) -> None:
            self._leave = None
            exchange.response_started = exchange.response_complete = True
            if exchange.disconnected or self.transport.is_closing():
                return
            ending = [] if exchange.keep_alive else [(b"connection", b"close")]
            self.transport.write(as_bytes(response, [*self.server_state.default_headers, *ending]))
            if not exchange.keep_alive:
                self.transport.close()
            self.on_response_complete()

        before, self.cycle = self.cycle, cast(RequestResponseCycle, exchange)
        first = dict(reversed(self.headers))  # of each name
        leave = self.translate(self.client[0] if self.client else "", first, body, reply)
        if leave is None:
            self.cycle = before
        elif not exchange.response_complete:
            self._leave = leave
        return leave is not None
