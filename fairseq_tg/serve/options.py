"""What `fairseq-tg serve` is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional, Tuple

from fairseq_tg.arguments import option


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of a request; what is beyond them is refused."""

    max_characters: int = option("characters of all texts of a request", 5000, least=1)
    max_texts: int = option("texts of a request that has a list of them", 64, least=1)
    max_sentences: int = option("sentences of a request", 128, least=1)
    max_bytes: int = option("bytes of a request's body", 100_000, least=100)
    max_beam: int = option("the widest beam that may be asked for", 8, least=1)
    requests_per_minute: int = option("of one address; 0 is no limit", 0)
    body_timeout: float = option("seconds that a client has to send its request", 10.0, range=(0.1, 3600))


@dataclass(frozen=True, kw_only=True)
class Batching:
    """How sentences are brought together."""

    threads: int = option("cores to translate on", 1, least=1)
    batch_size: int = option("most sentences that are translated together", 32, least=1)
    patience: float = option(
        "milliseconds that a sentence waits for others; up to five times that while they come", 2.0, range=(0, 1000)
    )
    queue: int = option(
        "sentences of greedy search that may wait (one of beam k counts k times, a request for at most half of the "
        "room that it finds); beyond, the answer is 503",
        256,
        least=1,
    )


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Of `fairseq-tg serve`."""

    models: Tuple[str, ...] = option("files that `fairseq-tg compile` made", positional=True, nargs="+")
    actor: Tuple[str, ...] = option(
        "an actor file for one of the models, which has none of its own, and the name that requests choose it by; of "
        "several, the first acts where a request does not say",
        (),
        metavar="NAME=FILE",
    )
    host: str = option("address to listen on; 0.0.0.0 is all of this machine's", "127.0.0.1")
    port: int = option("0 is any that is free", 5000)
    beam: int = option("of requests that do not say", 1, least=1)
    api_keys: Optional[str] = option(
        "file with a SHA-256 of a key on each line; without one of them, a request is refused", None
    )
    cors: Tuple[str, ...] = option("origin whose pages may call, or *; may be given several times", ())
    trusted_proxy: Optional[str] = option("address of a proxy whose X-Forwarded-For is believed", None)
    drain_seconds: float = option(
        "seconds that requests under way have after SIGTERM; those not done by then are answered with 503",
        30.0,
        range=(0, 86400),
    )
    no_page: bool = option("no page at /", False)
    no_metrics: bool = option("no /metrics", False)
    batching: Batching = field(default_factory=Batching, metadata={"help": "how sentences are brought together"})
    limits: Limits = field(default_factory=Limits, metadata={"help": "limits of a request"})
