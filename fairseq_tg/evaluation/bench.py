"""The benchmark of one model: every way to decode it, side by side, and the files that say so."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from sacrebleu.metrics import BLEU

from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.batches import by_length
from fairseq_tg.evaluation.held import Held
from fairseq_tg.evaluation.lineup import ACTED, CONT, PRECISIONS, Lineup, check_compared, check_peer, label_files
from fairseq_tg.evaluation.machine import Bound, Machine, bound, measure_machine
from fairseq_tg.evaluation.measure import PERCENTILES, Spread, Turns, latency_table, probe, ratio, take_turns
from fairseq_tg.evaluation.options import BenchOptions
from fairseq_tg.evaluation.plots import Point, quality_and_speed
from fairseq_tg.evaluation.subset import read_subset
from fairseq_tg.evaluation.systems import System
from fairseq_tg.evaluation.tables import Progress, Section, as_text, in_words, settings, versions, write
from fairseq_tg.files import make_directory
from fairseq_tg.tasks.loading import load_model

#: Sentences that a system of its own process translates, to have used all the memory it needs
PROBED = 20
#: Ratios that say whether the method pays: of the second system to the third, for a tg model's label
RATIOS = (
    # on one engine: what beam search costs, and what actors do
    *((f"compiled base {p}", f"compiled base beam 4 {p}") for p in PRECISIONS),
    *((f"compiled {{tg}} {p}", f"compiled base beam 4 {p}") for p in PRECISIONS),
    *((f"compiled {{tg}} {p}", f"compiled base {p}") for p in PRECISIONS),
    # of engines
    ("fast greedy base", "fairseq greedy"),
    ("fast beam 4 base", "fairseq beam 4"),
    ("fast greedy {tg}", "fairseq greedy {tg}"),
    *((f"compiled base {p}", f"CTranslate2 greedy {p}") for p in PRECISIONS),
    *((f"compiled base beam 4 {p}", f"CTranslate2 beam 4 {p}") for p in PRECISIONS),
    *((f"compiled {{tg}} beam 4 {p}", f"CTranslate2 beam 4 {p}") for p in PRECISIONS),
    # of both at once
    *((f"compiled {{tg}} {p}", f"CTranslate2 beam 4 {p}") for p in PRECISIONS),
    *((f"compiled {{tg}} {p}", f"CTranslate2 greedy {p}") for p in PRECISIONS),
    *((f"compiled {{tg}} {p}", "fairseq beam 4") for p in PRECISIONS),
)


@dataclass(frozen=True)
class Row:
    """A system and all that was measured of it."""

    system: System
    single: Turns
    batched: Turns
    start_seconds: float
    peak_bytes: float
    bleu: Optional[float]


@dataclass(frozen=True)
class Result:
    options: BenchOptions
    rows: Dict[str, Row]
    machine: Machine
    bounds: Dict[str, Bound]  # of each model and precision
    signature: Optional[str]
    versions: Dict[str, str]


def run(options: BenchOptions) -> Result:
    """Measure everything, and write the tables, the numbers and a plot to the output directory."""
    actors, say = label_files(ACTED, options.actor), Progress()
    check_peer(options)
    held = Held(partial(load_model, languages=options.languages))
    check_compared(held, options)
    task = held.model(options.base, options.data)[1]
    subset = read_subset(
        task, options.subset, held.model(options.base, options.data)[0], options.text, options.batched_sentences
    )
    out = Path(options.out)
    make_directory(out)
    lineup = prepare(options, actors, held, out, say)
    functions = lineup.functions()
    torch.set_num_threads(options.threads)  # of fairseq's systems, which share torch's
    eos, sources = task.target_dictionary.eos(), subset.sources
    one_by_one = [[i] for i in range(min(options.sentences, len(sources)))]
    batches = by_length([len(source) for source in sources], options.batch_size)
    single = take_turns(functions, sources, one_by_one, options.turns, eos, say)
    batched = take_turns(functions, sources, batches, max(1, options.turns // 2), eos, say)

    bleu, rows = BLEU(tokenize=subset.tokenizer), {}
    held.make_room()
    for name, system in lineup.systems.items():
        say(f"in a process of its own: {name}")
        score = None
        if subset.references is not None:
            texts = [subset.words(tokens) for tokens in batched[name].outputs]
            score = bleu.corpus_score(texts, [subset.references]).score
        rows[name] = Row(system, single[name], batched[name], **probe(system, sources[:PROBED]), bleu=score)
    say("the machine")
    machine = measure_machine(options.threads)
    bounds = {name: bound(weights, size, machine) for name, (weights, size) in lineup.weights.items()}
    signature = str(bleu.get_signature()) if subset.references is not None else None
    result = Result(options, rows, machine, bounds, signature, versions())
    say.end()
    points = [
        Point(name, row.system.kind, Spread.of(row.single.tokens_per_second()), row.bleu)
        for name, row in rows.items()
        if row.bleu is not None
    ]
    figure = quality_and_speed(points, f"BLEU, {options.subset}")
    write(out, {"bench.json": as_json(result), "bench.txt": as_text(sections(result)), "bench.png": figure})
    return result


def prepare(options: BenchOptions, actors: Dict[str, str], held: Held, out: Path, say: Progress) -> Lineup:
    """The systems for what the user has."""
    lineup = Lineup(held, options)
    compilable = "compiled" in options.engines and lineup.can_compile(options.base)

    def add(label: str, path: str, engines: Sequence[str] = options.engines) -> None:
        of_fairseq = "" if label == "base" else f" {label}"
        for kind, name in (("fairseq", of_fairseq), ("fast", f" {label}")):
            if kind in engines:
                lineup.add(f"{kind} greedy{name}", kind, path)
                lineup.add(f"{kind} beam 4{name}", kind, path, 4)
        if compilable:
            say(f"compiling {path}")
            lineup.add_compiled(label, path, out)

    add("base", options.base)
    for label, path in actors.items():
        add(label, path)
    conts = label_files(CONT, options.cont)
    for label, path in conts.items():  # which fairseq decodes as it decodes the base
        add(label, path, [kind for kind in options.engines if kind != "fairseq"])
    if options.peer:
        say("converting for CTranslate2")
        lineup.add_converted("", options.base, [1, 4], out)
        for label, path in conts.items():
            lineup.add_converted(f" {label}", path, [1], out)
    if not lineup.systems:
        raise UserError(f"'{options.base}' cannot be compiled: give --engines others than compiled, or leave it out")
    return lineup


def ratios(result: Result, mode: str = "single") -> List[Tuple[str, str, Spread]]:
    """Every ratio for which both systems were measured, turn by turn: sentence by sentence, or in batches."""
    labels = [*label_files(ACTED, result.options.actor)] or [""]
    pairs = dict.fromkeys((a.format(tg=tg), b.format(tg=tg)) for tg in labels for a, b in RATIOS)
    turns = {name: getattr(row, mode) for name, row in result.rows.items()}
    found = {(a, b): ratio(turns[a], turns[b]) for a, b in pairs if a in turns and b in turns}
    return [(a, b, spread) for (a, b), spread in found.items() if spread is not None]


def as_json(result: Result) -> Dict[str, Any]:
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
        "batched_ratios": [{"of": a, "to": b, **asdict(spread)} for a, b, spread in ratios(result, "batched")],
    }


def sections(result: Result) -> List[Section]:
    """All of it, as tables."""
    options, some, machine = result.options, next(iter(result.rows.values())), result.machine
    how = (
        f"{options.threads} thread{'s' if options.threads > 1 else ''}; sentence by sentence: {some.single.sentences} "
        f"sentences, medians of {len(some.single.seconds)} turns (lowest to highest); in batches of "
        f"{options.batch_size}: {some.batched.sentences} sentences, {len(some.batched.seconds)} turns"
    )
    scored = f"BLEU: sacreBLEU {result.signature}, on {some.batched.sentences} sentences of {options.subset}"
    header = ["system", "tok/s", "(range)", "sent/s", "batched tok/s", "start s", "peak MiB", "BLEU"]
    speeds = [_speeds(name, row) for name, row in result.rows.items()]
    of_pairs, of_batches = (
        [[a, f"/ {b}", f"{s.median:.2f}", f"{s.low:.2f}-{s.high:.2f}"] for a, b, s in ratios(result, mode)]
        for mode in ("single", "batched")
    )
    read = (
        f"the machine: reads {machine.bytes_per_second / 1e9:.1f} GB/s from memory, multiplies "
        f"{machine.flops_per_second / 1e9:.1f} GFLOP/s, matrix by vector"
    )
    least = ["a step of", "weights", "MB", "tok/s, weights from memory", "tok/s, weights in cache"]
    lengths = [f"{length} source tokens" for length, _ in latency_table(some.single)]
    in_ms = [
        [name, *(" / ".join(f"{at[p] * 1000:.1f}" for p in PERCENTILES) for _, at in latency_table(row.single))]
        for name, row in result.rows.items()
    ]
    made = [
        Section(notes=[how]),
        Section(header=header, rows=speeds, notes=[scored] if result.signature else []),
        Section(header=["ratio, sentence by sentence", "", "median", "(range)"], rows=of_pairs),
        Section(header=["ratio, in batches", "", "median", "(range)"], rows=of_batches),
        Section(header=[f"ms a sentence, percentiles {' / '.join(map(str, PERCENTILES))}", *lengths], rows=in_ms),
        Section(header=least, rows=[_bound(name, item) for name, item in result.bounds.items()], notes=[read]),
        Section(notes=[in_words(result.versions)]),
    ]
    return [section for section in made if section.rows or section.notes]


def _speeds(name: str, row: Row) -> List[str]:
    single, batched = Spread.of(row.single.tokens_per_second()), Spread.of(row.batched.tokens_per_second())
    return [
        name,
        f"{single.median:,.0f}",
        f"{single.low:,.0f}-{single.high:,.0f}",
        f"{Spread.of(row.single.sentences_per_second()).median:,.1f}",
        f"{batched.median:,.0f}",
        f"{row.start_seconds:.1f}",
        f"{row.peak_bytes / 2**20:,.0f}",
        "" if row.bleu is None else f"{row.bleu:.2f}",
    ]


def _bound(name: str, item: Bound) -> List[str]:
    cached = f"{item.compute_tokens_per_second:,.0f}" if name.endswith("float32") else ""
    from_memory = f"{item.memory_tokens_per_second:,.0f}"
    return [name, f"{item.weights:,}", f"{item.bytes_per_token / 1e6:.1f}", from_memory, cached]
