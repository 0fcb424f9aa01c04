"""fairseq-tg serve under load, over loopback: rates, latencies, answers that are right, overload, kills.

    python benchmarks/serve_load.py model.tg sentences.txt --threads 2

Every answer is compared with the offline translation of its sentence. All phases are bounded in count and time. The
load is made on the same cores as the answers, by one process with plain sockets, so that it takes little of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import re
import select
import signal
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from fairseq_tg.compiled import Translator
from fairseq_tg.compiled.model_file import read
from fairseq_tg.sentences import split_text


@dataclass
class Tally:
    """What came back."""

    seconds: List[float] = field(default_factory=list)  # of answers
    refused: List[float] = field(default_factory=list)  # of 503
    wrong: int = 0
    lost: int = 0
    other: Dict[int, int] = field(default_factory=dict)

    def described(self, elapsed: float) -> Dict[str, Any]:
        found: Dict[str, Any] = {
            "answers": len(self.seconds),
            "per_second": round(len(self.seconds) / elapsed, 1),
            "wrong": self.wrong,
            "lost": self.lost,
            "other_statuses": self.other,
        }
        if self.seconds:
            found["ms"] = {name: round(1000 * percentile(self.seconds, p), 2) for name, p in PERCENTILES}
        if self.refused:
            found["refused"] = len(self.refused)
            found["refused_ms"] = {name: round(1000 * percentile(self.refused, p), 2) for name, p in PERCENTILES}
        return found


HEAD = "POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
OPEN = 2000  # connections
PERCENTILES = (("p50", 0.5), ("p99", 0.99), ("most", 1.0))


def percentile(values: List[float], p: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(p * len(ordered)) - 1 if p < 1 else len(ordered) - 1)]


class Connection:
    """One that is kept, with one request at a time."""

    def __init__(self, port: int) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect_ex(("127.0.0.1", port))
        self.number = self.socket.fileno()
        self.unsent = self.answer = b""
        self.index, self.started = 0, 0.0

    def ask(self, index: int, request: bytes) -> None:
        self.index, self.started, self.unsent, self.answer = index, time.perf_counter(), request, b""
        self.send()

    def send(self) -> None:
        with contextlib.suppress(BlockingIOError):  # not connected yet, or its buffer is full
            self.unsent = self.unsent[self.socket.send(self.unsent) :]

    def receive(self) -> Optional[Tuple[int, bytes]]:
        """The status and the body, when all is there."""
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionResetError("closed in the middle of an answer")
        self.answer += data
        head, end, body = self.answer.partition(b"\r\n\r\n")
        length = LENGTH.search(head) if end else None
        return (int(head[9:12]), body) if length and len(body) == int(length.group(1)) else None


@dataclass
class Load:
    port: int
    requests: List[bytes]
    expected: List[bytes]
    open: List[Connection] = field(default_factory=list)

    def connect(self, clients: int) -> None:
        """Have as many connections open as there will be clients, as those of a service that runs have."""
        while len(self.open) < clients:
            self.open.append(Connection(self.port))
            if len(self.open) % 64 == 0:
                time.sleep(0.02)
        time.sleep(0.2)

    def close(self) -> None:
        while self.open:
            self.open.pop().socket.close()
        time.sleep(0.2)

    def drive(self, clients: int, seconds: float, most: int = 1_000_000, rate: float = math.inf) -> Tuple[Tally, float]:
        """Requests, at most as many at a time as there are clients, at a rate or as fast as they are answered."""
        tally, idle, sent, working = Tally(), self.open, 0, 0
        connections: Dict[int, Connection] = {}  # by what the system calls them
        started = time.perf_counter()
        with select.epoll() as poll:  # a connection is registered once: a call less for each request and each answer
            while True:
                elapsed = time.perf_counter() - started
                due = min(most, elapsed * rate) if elapsed < seconds else 0
                while sent < due and working < clients:
                    connection = idle.pop() if idle else Connection(self.port)
                    index = sent % len(self.requests)
                    connection.ask(index, self.requests[index])
                    if connection.number not in connections:
                        connections[connection.number] = connection
                        poll.register(connection.number, select.EPOLLIN | select.EPOLLOUT)
                    elif connection.unsent:
                        poll.modify(connection.number, select.EPOLLIN | select.EPOLLOUT)
                    sent, working = sent + 1, working + 1
                if not working and (elapsed > seconds or sent >= most):
                    break
                if elapsed > seconds + 20:
                    tally.lost += working
                    break
                for number, events in poll.poll(0.002):
                    connection = connections[number]
                    if events & select.EPOLLOUT:
                        connection.send()
                        if not connection.unsent:
                            poll.modify(number, select.EPOLLIN)
                    if events & ~select.EPOLLOUT and self._take(connection, tally):
                        working -= 1
                        if connection.socket.fileno() >= 0:
                            idle.append(connection)
                        else:
                            del connections[number]
        elapsed = time.perf_counter() - started
        self.close()
        return tally, elapsed

    def _take(self, connection: Connection, tally: Tally) -> bool:
        """What came on a connection; whether its request is done with."""
        try:
            answer = connection.receive()
        except OSError:
            tally.lost += 1
            connection.socket.close()
            return True
        if answer is None:
            return False
        taken = time.perf_counter() - connection.started
        status, body = answer
        if status == 200:
            tally.seconds.append(taken)
            tally.wrong += body != self.expected[connection.index]
        elif status == 503:
            tally.refused.append(taken)
        else:
            tally.other[status] = tally.other.get(status, 0) + 1
        return True

    def go_away(self, kills: int, slow: int, seconds: float) -> None:
        """Clients that leave, beside others that send a byte a second."""

        async def both() -> None:
            await asyncio.gather(self._kill(kills), self._dawdle(slow, seconds))

        asyncio.run(both())

    async def _kill(self, count: int) -> None:
        """Clients that leave in the middle: of the request, or of the wait."""
        for index in range(count):
            request = self.requests[index % len(self.requests)]
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(request if index % 2 else request[: index % len(request)])
            if index % 3:
                await asyncio.sleep(0.001)
            writer.transport.abort()  # type: ignore[attr-defined]

    async def _dawdle(self, count: int, seconds: float) -> None:
        """Clients that send a byte a second."""
        connections = [await asyncio.open_connection("127.0.0.1", self.port) for _ in range(count)]
        for second in range(int(seconds)):
            for index, (_, writer) in enumerate(connections):
                writer.write(self.requests[0][second : second + 1] if index % 2 else b"P"[: second == 0])
            await asyncio.sleep(1)
        for _, writer in connections:
            writer.close()


def memory(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024  # type: ignore[union-attr]


def cpu(pid: int) -> float:
    """Seconds of a core that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def with_cores(pid: int, run: Callable[[], Tuple[Tally, float]]) -> Dict[str, Any]:
    """What came back, and the cores that it took here and there."""
    used = cpu(pid), cpu(os.getpid())
    tally, elapsed = run()
    cores = {
        name: round((cpu(process) - before) / elapsed, 3)
        for name, process, before in zip(("server", "load"), (pid, os.getpid()), used)
    }
    return {**tally.described(elapsed), "cores": cores}


def measure(options: argparse.Namespace, load: Load, pid: int) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    load.drive(8, 3, 2000)  # warm
    found["memory_mb"] = {"start": memory(pid)}
    tally, elapsed = load.drive(1, 10, 300)
    found["idle"] = tally.described(elapsed)
    found["steady"] = with_cores(pid, lambda: load.drive(options.clients, options.seconds, options.most))
    best = found["steady"]["per_second"]
    found["memory_mb"]["after_steady"] = memory(pid)
    load.connect(OPEN)
    found["overload"] = with_cores(pid, lambda: load.drive(OPEN, options.flood_seconds, rate=4 * best))
    tally, elapsed = load.drive(OPEN, 10, OPEN)
    found["all_at_once"] = tally.described(elapsed)
    found["memory_mb"]["after_overload"] = memory(pid)
    load.go_away(options.kills, 20, 5)
    tally, elapsed = load.drive(1, 5, 50)
    found["after_kills"] = tally.described(elapsed)
    found["memory_mb"]["end"] = memory(pid)
    found["p99_over_idle_p50"] = round(found["steady"]["ms"]["p99"] / found["idle"]["ms"]["p50"], 2)
    found["overload_of_best"] = round(found["overload"]["per_second"] / best, 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("sentences", help="a file with one on each line")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--most", type=int, default=1_000_000, help="requests of the steady phase")
    parser.add_argument("--flood-seconds", type=float, default=15)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--apart", action="store_true", help="the load has a core of its own, the service the others")
    options = parser.parse_args()
    lines = [line.strip() for line in Path(options.sentences).read_text().splitlines()]
    # which the service takes as one sentence, as the offline translation does
    lines = [line for line in lines if [piece for piece, sentence in split_text(line) if sentence] == [line]]
    text = read(options.model).text
    cores = sorted(os.sched_getaffinity(0))
    if options.apart:
        os.sched_setaffinity(0, cores[:-1])  # what the service gets, and the offline translation it is compared with
    translator = Translator.load(options.model, threads=options.threads)
    translator.translate(lines[:64])
    started, used = time.perf_counter(), time.process_time()
    translations = translator.translate(lines, batch_size=32)
    offline, cpu_ms = len(lines) / (time.perf_counter() - started), 1000 * (time.process_time() - used) / len(lines)
    requests = []
    for line in lines:
        fields = {"q": line, "source": text.source_lang, "target": text.target_lang}
        body = json.dumps(fields).encode()
        requests.append(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    expected = [
        json.dumps({"translatedText": t}, ensure_ascii=False, separators=(",", ":")).encode() for t in translations
    ]

    command = [sys.executable, "-m", "fairseq_tg.cli", "serve", options.model, "--port", "0"]
    launched = time.perf_counter()
    server = subprocess.Popen([*command, "--threads", str(options.threads)], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        if options.apart:
            os.sched_setaffinity(0, cores[-1:])
        load = Load(int(server.stderr.readline().rpartition(":")[2]), requests, expected)
        load.drive(1, 10, 1)
        first = time.perf_counter() - launched
        found = measure(options, load, server.pid)
    finally:
        server.send_signal(signal.SIGTERM)
        status = server.wait(60)
    found = {
        "offline_per_second": round(offline, 1),
        "offline_cpu_ms": round(cpu_ms, 3),
        "start_to_first_answer": round(first, 3),
        **found,
    }
    found["steady_of_offline"] = round(found["steady"]["per_second"] / offline, 3)
    found["status"] = status
    found["sentences"], found["mean_words"] = (
        len(lines),
        round(statistics.fmean(len(line.split()) for line in lines), 1),
    )
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
