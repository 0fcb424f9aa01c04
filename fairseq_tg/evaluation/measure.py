"""Times, taken fairly: all systems in one process, warmed up, in turns whose order changes, several times."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.batches import Say, in_batches
from fairseq_tg.evaluation.systems import System, Tokens, Translate, build
from fairseq_tg.languages import LanguageOptions
from fairseq_tg.launch.processes import describe_end, last_words, python

#: Percentiles of the latency of a sentence
PERCENTILES = (50, 90, 99)


@dataclass
class Turns:
    """What a system did in each turn: the tokens it gave (eos not counted) and the seconds it took."""

    tokens: List[int] = field(default_factory=list)
    seconds: List[float] = field(default_factory=list)
    sentences: int = 0
    latencies: Dict[int, List[float]] = field(default_factory=dict)  # of a sentence, by the length of its source
    outputs: List[Tokens] = field(default_factory=list)  # of the last turn, in the order of the sentences

    def tokens_per_second(self) -> List[float]:
        return [tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds)]

    def sentences_per_second(self) -> List[float]:
        return [self.sentences / seconds for seconds in self.seconds]


@dataclass(frozen=True)
class Spread:
    """A median and the range it lies in."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


def take_turns(
    systems: Dict[str, Translate],
    sources: Sequence[Tokens],
    batches: Sequence[List[int]],
    turns: int,
    eos: int,
    say: Say = lambda text: None,
) -> Dict[str, Turns]:
    """Run every system over the same batches (of indices), `turns` times, after a warm-up on a fifth of them."""
    results = {name: Turns(sentences=sum(map(len, batches))) for name in systems}
    names = list(systems)
    for name in names:
        warm_up = batches[: max(1, len(batches) // 5)]
        in_batches(_noting(systems[name], sources, {}), warm_up, say, f"{name}, warming up")
    for turn in range(turns):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            result = results[name]
            run = _noting(systems[name], sources, result.latencies)
            systems[name]([sources[batches[0][0]]])  # it may have been given up for others since its last turn
            started = time.perf_counter()
            result.outputs = in_batches(run, batches, say, f"{name}, turn {turn + 1} of {turns}")
            result.seconds.append(time.perf_counter() - started)
            result.tokens.append(sum(token != eos for tokens in result.outputs for token in tokens))
    return results


def _noting(
    translate: Translate, sources: Sequence[Tokens], latencies: Dict[int, List[float]]
) -> Callable[[List[int]], List[Tokens]]:
    """A function of a batch that also notes how long it took, if it was one sentence."""

    def run(batch: List[int]) -> List[Tokens]:
        started = time.perf_counter()
        found = translate([sources[i] for i in batch])
        if len(batch) == 1:
            latencies.setdefault(len(sources[batch[0]]), []).append(time.perf_counter() - started)
        return found

    return run


def ratio(a: Turns, b: Turns) -> Optional[Spread]:
    """How many times as many tokens a second a gives, turn by turn; None if b translates everything to nothing."""
    if not any(b.tokens):
        return None
    return Spread.of([x / y for x, y in zip(a.tokens_per_second(), b.tokens_per_second())])


def latency_table(turns: Turns) -> List[Tuple[str, Dict[int, float]]]:
    """Percentiles of the seconds a sentence takes, for the shorter, middle and longer third of the sources."""
    lengths = sorted(length for length, values in turns.latencies.items() for _ in values)
    if not lengths:
        return []
    edges = [0, *(lengths[max(0, third * len(lengths) // 3 - 1)] for third in (1, 2, 3))]
    rows = []
    for low, high in itertools.pairwise(edges):
        values = sorted(v for length, vs in turns.latencies.items() if low < length <= high for v in vs)
        if values:
            at = {p: values[min(len(values) - 1, round(p / 100 * (len(values) - 1)))] for p in PERCENTILES}
            rows.append((f"{low + 1}-{high}", at))
    return rows


def probe(system: System, sources: Sequence[Tokens]) -> Dict[str, float]:
    """Start a system in a process of its own: seconds until its first translation, and its peak memory in bytes."""
    request = json.dumps({"system": asdict(system), "sources": list(sources)})
    environment = {**os.environ, "OMP_NUM_THREADS": str(system.threads)}
    started = time.perf_counter()
    done = subprocess.run(
        python("fairseq_tg.evaluation.measure", "answer_probe", "probe"), input=request, capture_output=True, text=True,
        env=environment,
    )  # fmt: skip
    if done.returncode:
        how = describe_end(done.returncode)
        raise UserError(f"{system.name}, in a process of its own, {how}: {last_words(done.stderr)}")
    answer = json.loads(done.stdout.splitlines()[-1])
    return {"start_seconds": answer["ready"] - started, "peak_bytes": answer["peak_bytes"]}


def answer_probe() -> None:
    """What the process of `probe` does."""
    request = json.load(sys.stdin)
    languages = LanguageOptions(**request["system"].pop("languages"))
    translate = build(System(**request["system"], languages=languages))
    for index, source in enumerate(request["sources"]):
        translate([source])
        if index == 0:
            ready = time.perf_counter()  # the clock is the machine's, so the parent's, too
    print(json.dumps({"ready": ready, "peak_bytes": _peak_bytes()}))


def _peak_bytes() -> int:
    """The most memory this process has had. (getrusage would count what its parent had when it was started.)"""
    with open("/proc/self/status") as file:
        (line,) = [line for line in file if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024
