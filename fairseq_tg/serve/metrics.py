"""What Prometheus is told."""

from __future__ import annotations

from typing import Dict, Tuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from fairseq_tg import __version__

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class Metrics:
    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._requests = Counter("tg_requests", "Requests, by path and status", ["path", "status"], registry=registry)
        self._answers: Dict[Tuple[str, int], int] = {}  # since the page was made: its counters cost more than a refusal
        self._seconds = Histogram("tg_request_seconds", "Of a translation", buckets=_SECONDS, registry=registry)
        self._characters = Counter("tg_characters", "Of translated texts", registry=registry)
        self._sentences = Counter("tg_sentences", "Translated, with those whose client had gone", registry=registry)
        self._busy = Counter("tg_busy_seconds", "That threads spent on batches", registry=registry)
        self._batch = Histogram(
            "tg_batch_sentences", "Translated together", buckets=(1, 2, 4, 8, 16, 32, 64, 128), registry=registry
        )
        self._gone = Counter("tg_clients_gone", "Clients that left before their answer", registry=registry)
        self._reloads = Counter("tg_reloads", "Of model files, by outcome", ["outcome"], registry=registry)
        self.waiting = Gauge("tg_waiting_sentences", "In the queue; of a beam of k, each is k", registry=registry)
        Gauge("tg_info", "The version that runs", ["version"], registry=registry).labels(__version__).set(1)

    def batch(self, size: int, seconds: float) -> None:
        self._batch.observe(size)
        self._sentences.inc(size)
        self._busy.inc(seconds)

    def request(self, path: str, status: int) -> None:
        self._answers[path, status] = self._answers.get((path, status), 0) + 1

    def translation(self, characters: int, seconds: float) -> None:
        self._characters.inc(characters)
        self._seconds.observe(seconds)

    def client_gone(self) -> None:
        self._gone.inc()

    def reload(self, outcome: str) -> None:
        self._reloads.labels(outcome).inc()

    def page(self) -> bytes:
        for answer, count in self._answers.items():
            self._requests.labels(*answer).inc(count)
        self._answers.clear()
        return generate_latest(self._registry)
