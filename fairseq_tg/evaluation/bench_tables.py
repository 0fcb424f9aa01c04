"""The benchmark's tables, JSON and plot."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from fairseq_tg.evaluation.measure import PERCENTILES, Spread, latency_table, ratio
from fairseq_tg.evaluation.plots import Point, quality_and_speed
from fairseq_tg.evaluation.subset import columns

if TYPE_CHECKING:
    from fairseq_tg.evaluation.bench import Result

#: Ratios that say whether the method pays: of the second system to the third, for a tg model's label
RATIOS = (
    ("fast greedy {tg}", "fairseq greedy {tg}"),
    ("fast greedy {tg}", "fast greedy base"),
    ("compiled {tg} float32", "fairseq beam 4"),
    ("compiled {tg} int8", "fairseq beam 4"),
    ("compiled {tg} float32", "CTranslate2 beam 4 float32"),
    ("compiled {tg} int8", "CTranslate2 beam 4 int8"),
    ("compiled {tg} float32", "CTranslate2 greedy float32"),
    ("compiled {tg} int8", "CTranslate2 greedy int8"),
)


def ratios(result: Result) -> List[Tuple[str, str, Spread]]:
    """Every ratio for which both systems were measured: sentence by sentence, turn by turn."""
    prefix = "fast greedy tg"
    tgs = [name[len("fast greedy ") :] for name in result.rows if name.startswith(prefix)]
    found = []
    for tg in tgs:
        for a, b in RATIOS:
            a, b = a.format(tg=tg), b.format(tg=tg)
            if a in result.rows and b in result.rows:
                found.append((a, b, ratio(result.rows[a].single, result.rows[b].single)))
    return found


def as_json(result: Result) -> Dict[str, Any]:
    from fairseq_tg.evaluation.bench import settings

    systems = {}
    for name, row in result.rows.items():
        systems[name] = {
            "bleu": row.bleu,
            "start_seconds": row.start_seconds,
            "peak_bytes": row.peak_bytes,
            "latency_seconds": [
                {"source_tokens": length, **{f"p{p}": value for p, value in at.items()}}
                for length, at in latency_table(row.single)
            ],
            **{
                f"{mode}_{unit}_per_second": asdict(Spread.of(getattr(turns, f"{unit}_per_second")()))
                for mode, turns in (("single", row.single), ("batched", row.batched))
                for unit in ("tokens", "sentences")
            },
        }
    return {
        "settings": settings(result.options),
        "versions": result.versions,
        "bleu_signature": result.signature,
        "machine": asdict(result.machine),
        "bounds": {name: asdict(item) for name, item in result.bounds.items()},
        "systems": systems,
        "ratios": [{"of": a, "to": b, **asdict(spread)} for a, b, spread in ratios(result)],
    }


def tables(result: Result) -> str:
    """All of it as plain text."""
    options, lines = result.options, []
    some = next(iter(result.rows.values()))
    lines.append(
        f"{options.threads} thread{'s' if options.threads > 1 else ''}; sentence by sentence: {some.single.sentences} "
        f"sentences, medians of {len(some.single.seconds)} turns (lowest to highest); in batches of "
        f"{options.batch_size}: {some.batched.sentences} sentences, {len(some.batched.seconds)} turns"
    )
    header = ["system", "tok/s", "(range)", "sent/s", "batched tok/s", "start s", "peak MiB", "BLEU"]
    rows = []
    for name, row in result.rows.items():
        single, batched = Spread.of(row.single.tokens_per_second()), Spread.of(row.batched.tokens_per_second())
        sentences = Spread.of(row.single.sentences_per_second())
        rows.append(
            [
                name,
                f"{single.median:,.0f}",
                f"{single.low:,.0f}-{single.high:,.0f}",
                f"{sentences.median:,.1f}",
                f"{batched.median:,.0f}",
                f"{row.start_seconds:.1f}",
                f"{row.peak_bytes / 2**20:,.0f}",
                "" if row.bleu is None else f"{row.bleu:.2f}",
            ]
        )
    lines += ["", *columns(header, rows)]
    if result.signature:
        lines.append(f"BLEU: sacreBLEU {result.signature}, on {some.batched.sentences} sentences of {options.subset}")
    lines += ["", *columns(["ratio, sentence by sentence", "", "median", "(range)"], [
        [a, f"/ {b}", f"{s.median:.2f}", f"{s.low:.2f}-{s.high:.2f}"] for a, b, s in ratios(result)
    ])]  # fmt: skip
    lines += ["", *_latencies(result)]
    machine = result.machine
    lines += [
        "",
        f"the machine: reads {machine.bytes_per_second / 1e9:.1f} GB/s from memory, multiplies "
        f"{machine.flops_per_second / 1e9:.1f} GFLOP/s, matrix by vector",
    ]
    if result.bounds:
        lines += columns(
            ["a step of", "weights", "MB", "tok/s, weights from memory", "tok/s, weights in cache"],
            [
                [
                    name,
                    f"{item.weights:,}",
                    f"{item.bytes_per_token / 1e6:.1f}",
                    f"{item.memory_tokens_per_second:,.0f}",
                    f"{item.compute_tokens_per_second:,.0f}" if name.endswith("float32") else "",
                ]
                for name, item in result.bounds.items()
            ],
        )
    lines += ["", ", ".join(f"{name} {version}" for name, version in result.versions.items())]
    return "\n".join(lines) + "\n"


def _latencies(result: Result) -> List[str]:
    rows = []
    for name, row in result.rows.items():
        cells = [name]
        for _, at in latency_table(row.single):
            cells.append(" / ".join(f"{at[p] * 1000:.1f}" for p in PERCENTILES))
        rows.append(cells)
    lengths = [f"{length} source tokens" for length, _ in latency_table(next(iter(result.rows.values())).single)]
    percentiles = " / ".join(map(str, PERCENTILES))
    return columns([f"ms a sentence, percentiles {percentiles}", *lengths], rows)


COLORS = {"fairseq": "tab:gray", "fast": "tab:blue", "compiled": "tab:green", "ctranslate2": "tab:orange"}


def plot(result: Result) -> Optional[bytes]:
    """BLEU against tokens a second; None if it cannot be drawn."""
    points = [
        Point(name, Spread.of(row.single.tokens_per_second()), row.bleu, COLORS[row.system.kind])
        for name, row in result.rows.items()
        if row.bleu is not None
    ]
    return quality_and_speed(points, f"BLEU, {result.options.subset}")
