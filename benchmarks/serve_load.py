"""fairseq-tg serve under load, over loopback: rates, latencies, answers that are right, overload, kills.

    python benchmarks/serve_load.py model.tg sentences.txt --threads 2

Every answer is compared with the offline translation of its sentence. All phases are bounded in count and time. The
load is made on the same cores as the answers, by one process of raw sockets, so that it takes as little of them as it
can.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from fairseq_tg.compiled import Translator
from fairseq_tg.compiled.model_file import read
from fairseq_tg.serve.sentences import split_text


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
PERCENTILES = (("p50", 0.5), ("p99", 0.99), ("most", 1.0))


def percentile(values: List[float], p: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(p * len(ordered)) - 1 if p < 1 else len(ordered) - 1)]


class Client:
    """One connection that is kept, and one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: Optional[asyncio.StreamReader] = None
        self._writer: Optional[asyncio.StreamWriter] = None

    async def ask(self, request: bytes) -> Tuple[int, bytes]:
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head).group(1))  # type: ignore[union-attr]
        body = await self._reader.readexactly(length)
        if b"connection: close" in head.lower():
            self.close()
        return int(head[9:12]), body

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


@dataclass
class Load:
    port: int
    requests: List[bytes]
    expected: List[bytes]

    async def one(self, client: Client, index: int, tally: Tally) -> None:
        started = time.perf_counter()
        try:
            status, body = await client.ask(self.requests[index])
        except (OSError, asyncio.IncompleteReadError):
            tally.lost += 1
            client.close()
            return
        taken = time.perf_counter() - started
        if status == 200:
            tally.seconds.append(taken)
            tally.wrong += body != self.expected[index]
        elif status == 503:
            tally.refused.append(taken)
        else:
            tally.other[status] = tally.other.get(status, 0) + 1

    async def steady(self, clients: int, seconds: float, most: int) -> Tuple[Tally, float]:
        """Clients that each wait for an answer before they ask again."""
        tally, turn, started = Tally(), iter(range(most)), time.perf_counter()

        async def run() -> None:
            client = Client(self.port)
            for index in turn:
                if time.perf_counter() - started > seconds:
                    break
                await self.one(client, index % len(self.requests), tally)
            client.close()

        await asyncio.gather(*(run() for _ in range(clients)))
        return tally, time.perf_counter() - started

    async def flood(self, rate: float, seconds: float) -> Tuple[Tally, float]:
        """Requests that come at a rate, whatever becomes of those before."""
        tally, idle, tasks = Tally(), [], set()
        started, sent = time.perf_counter(), 0

        async def run(index: int) -> None:
            client = idle.pop() if idle else Client(self.port)
            await self.one(client, index, tally)
            idle.append(client)

        while (elapsed := time.perf_counter() - started) < seconds:
            while sent < elapsed * rate and len(tasks) < 2000:
                task = asyncio.ensure_future(run(sent % len(self.requests)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                sent += 1
            await asyncio.sleep(0.002)
        if tasks:
            await asyncio.wait(tasks, timeout=20)
        for client in idle:
            client.close()
        return tally, time.perf_counter() - started

    async def kill(self, count: int) -> None:
        """Clients that leave in the middle: of the request, or of the wait."""
        for index in range(count):
            request = self.requests[index % len(self.requests)]
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(request if index % 2 else request[: index % len(request)])
            if index % 3:
                await asyncio.sleep(0.001)
            writer.transport.abort()  # type: ignore[attr-defined]

    async def dawdle(self, count: int, seconds: float) -> None:
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


async def measure(options: argparse.Namespace, load: Load, pid: int) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    await load.steady(8, 3, 2000)  # warm
    found["memory_mb"] = {"start": memory(pid)}
    tally, elapsed = await load.steady(1, 10, 300)
    found["idle"] = tally.described(elapsed)
    used = cpu(pid), cpu(os.getpid())
    tally, elapsed = await load.steady(options.clients, options.seconds, options.most)
    found["steady"] = tally.described(elapsed)
    found["steady"]["cpu_ms_per_answer"] = {
        name: round(1000 * (cpu(process) - before) / max(1, len(tally.seconds)), 3)
        for name, process, before in zip(("server", "load"), (pid, os.getpid()), used)
    }
    best = found["steady"]["per_second"]
    found["memory_mb"]["after_steady"] = memory(pid)
    tally, elapsed = await load.flood(4 * best, options.flood_seconds)
    found["overload"] = tally.described(elapsed)
    found["memory_mb"]["after_overload"] = memory(pid)
    await asyncio.gather(load.kill(options.kills), load.dawdle(20, 5))
    tally, elapsed = await load.steady(1, 5, 50)
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
    options = parser.parse_args()
    lines = [line.strip() for line in Path(options.sentences).read_text().splitlines()]
    # which the service takes as one sentence, as the offline translation does
    lines = [line for line in lines if [piece for piece, sentence in split_text(line) if sentence] == [line]]
    text = read(options.model).text
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
        load = Load(int(server.stderr.readline().rpartition(":")[2]), requests, expected)
        asyncio.run(load.steady(1, 10, 1))
        first = time.perf_counter() - launched
        try:
            import uvloop

            asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        except ImportError:
            pass
        found = asyncio.run(measure(options, load, server.pid))
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
