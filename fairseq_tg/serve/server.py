"""`fairseq-tg serve`: the process around the service, and its signals."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import signal
import socket
import sys
import time
from typing import Any, Dict, Iterator, List, Optional

import uvicorn

from fairseq_tg.compiled.actor_file import named_files
from fairseq_tg.errors import UserError, printable
from fairseq_tg.serve.app import Service
from fairseq_tg.serve.connections import Connection
from fairseq_tg.serve.keys import Keys
from fairseq_tg.serve.models import Models
from fairseq_tg.serve.options import ServeOptions

#: Sent with every answer
HEADERS = [("X-Content-Type-Options", "nosniff"), ("X-Frame-Options", "DENY"), ("Referrer-Policy", "no-referrer")]
#: Seconds: of a connection without a request; of those who take their answers when the end has come
KEEP_ALIVE, LAST_ANSWERS = 60, 2


def serve(options: ServeOptions) -> None:
    """Serve until SIGTERM or Ctrl-C; returns when what was under way is answered."""
    if options.beam > options.limits.max_beam:
        raise UserError(f"--beam {options.beam} is wider than --max-beam {options.limits.max_beam}: give a wider one")
    # Before it listens there is nothing to finish, and nothing to read again
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    keys = Keys(options.api_keys)
    models = Models(options.models, named_files(options.actor), options.beam)
    service = Service(options, models, keys)
    with _listen(options.host, options.port) as listening:
        logging.disable(logging.NOTSET)
        logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # its clients are told
        gc.collect()
        gc.freeze()  # what is here by now stays, and is not looked through again and again
        gc.set_threshold(10_000)  # nor are new connections, whenever there are some more: all others would wait
        sys.setswitchinterval(0.001)  # the event loop waits no longer than that for threads between two batches
        config = uvicorn.Config(
            service.app(),
            log_level="error",  # what clients do wrong is told to them
            access_log=False,
            server_header=False,
            headers=HEADERS,
            proxy_headers=options.trusted_proxy is not None,
            forwarded_allow_ips=options.trusted_proxy,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=math.ceil(options.drain_seconds) + LAST_ANSWERS,
            http=Connection.using(service.is_full, lambda: service.refusal(HEADERS), service.translate_whole),
            ws="none",
            lifespan="off",
        )
        _Server(config, service).run(sockets=[listening])
    service.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot listen on {host}, port {port}: {reason}; give another --host or --port") from None


class _Server(uvicorn.Server):
    """uvicorn's, with an end that is a success, models that are read again, and no patience with slow headers."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._reloading: Optional[asyncio.Task] = None
        self._again = False  # whether it is asked for while it is under way
        self._without_request: Dict[Any, float] = {}

    async def startup(self, sockets: Optional[List[socket.socket]] = None) -> None:
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        print(
            f"fairseq_tg: serving {printable(self._service.models.described())} on http://{host}:{port}",
            file=sys.stderr,
            flush=True,
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own raises the signal again at the end, and would not end with 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        yield

    def _reload(self) -> None:
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._read_all())
        else:
            self._again = True

    async def _read_all(self) -> None:
        await self._read_models()
        while self._again:  # files that came while others were read
            self._again = False
            await self._read_models()

    async def _read_models(self) -> None:
        """Requests under way keep the model that they began with."""
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._service.models.load)
        except Exception as error:
            self._service.metrics.reload("failed")
            print(f"{error}; the models from before stay in use", file=sys.stderr, flush=True)
        else:
            self._service.metrics.reload("done")
            print("fairseq_tg: the models are read again", file=sys.stderr, flush=True)

    async def shutdown(self, sockets: Optional[List[socket.socket]] = None) -> None:
        timer = asyncio.get_running_loop().call_later(self._service.options.drain_seconds, self._give_up)
        await super().shutdown(sockets)
        timer.cancel()

    def _give_up(self) -> None:
        """Answer what is under way that it will not be done."""
        self._service.ending = True
        connections: List[Any] = list(self.server_state.connections)
        for connection in connections:
            connection.leave()
        for task in self.server_state.tasks:
            task.cancel()

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            self._close_slow()
        return await super().on_tick(counter)

    def _close_slow(self) -> None:
        """Close connections that take too long to send a request's first lines. (Its body has a limit of its own.)"""
        now, seen = time.monotonic(), {}
        limit = KEEP_ALIVE + self._service.options.limits.body_timeout
        connections: List[Any] = list(self.server_state.connections)
        for connection in connections:
            cycle: Any = getattr(connection, "cycle", None)
            if cycle is None or cycle.response_complete:
                asked, connection.asked = getattr(connection, "asked", False), False
                seen[connection] = now if asked else self._without_request.get(connection, now)
                if now - seen[connection] > limit:
                    connection.transport.close()
        self._without_request = seen
