"""The benchmark of one model: which systems there are, what is measured of them, and what is said of it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from sacrebleu.metrics import BLEU

from fairseq_tg.compiled.compile import compile_model
from fairseq_tg.compiled.extract import extract, unsupported
from fairseq_tg.corpus.engines import convert_to_ctranslate2, import_ctranslate2
from fairseq_tg.errors import UserError
from fairseq_tg.evaluation import bench_tables as report
from fairseq_tg.evaluation.machine import Bound, Machine, bound, measure_machine
from fairseq_tg.evaluation.measure import Turns, probe, take_turns
from fairseq_tg.evaluation.subset import Progress, label_actors, read_subset, to_text, versions
from fairseq_tg.evaluation.systems import SYMBOLS, System, Tokens, build
from fairseq_tg.files import make_directory
from fairseq_tg.tasks.loading import load_model

#: Sentences that a system of its own process translates, to have used all the memory it needs
PROBED = 20


@dataclass(frozen=True)
class Options:
    """Of `fairseq-tg bench`."""

    data: str
    base: str
    actors: Tuple[str, ...]
    cont: Optional[str] = None
    peer: bool = False
    threads: int = 1
    subset: str = "test"
    sentences: int = 50
    batched_sentences: int = 1000
    batch_size: int = 32
    turns: int = 5
    max_len_b: int = 200
    out: str = "bench"


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
    options: Options
    rows: Dict[str, Row]
    machine: Machine
    bounds: Dict[str, Bound]  # of each model and precision
    signature: Optional[str]
    versions: Dict[str, str]


def run(options: Options) -> Result:
    """Measure everything, print the tables, and write them, the numbers and a plot to the output directory."""
    if min(options.sentences, options.batched_sentences, options.turns, options.batch_size, options.threads) < 1:
        raise UserError("--sentences, --batched-sentences, --turns, --batch-size and --threads are at least 1")
    label_actors(options.actors)
    out = Path(options.out)
    make_directory(out)
    model, task = load_model(options.base, options.data)
    subset = read_subset(task, options.subset, options.batched_sentences)
    longest, limit = max(map(len, subset.sources)), model.max_positions()[0]
    if longest > limit:
        raise UserError(f"'{options.subset}' has a sentence of {longest} tokens, and the model takes up to {limit}")
    sources, references = subset.sources, subset.references
    say = Progress()
    systems, bounds_of = prepare(options, task, model, out, say)

    eos = task.target_dictionary.eos()
    functions = {}
    for name, system in systems.items():
        say(f"loading: {name}")
        functions[name] = build(system)
    torch.set_num_threads(options.threads)  # of fairseq's systems, which share torch's
    single = take_turns(functions, [[source] for source in sources[: options.sentences]], options.turns, eos, say)
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    batches = [order[i : i + options.batch_size] for i in range(0, len(order), options.batch_size)]
    found: Dict[str, List[Tokens]] = {name: [[] for _ in sources] for name in systems}

    def keeping(name: str) -> Callable[[Any], List[Tokens]]:
        def translate(batch: Any) -> List[Tokens]:
            results = functions[name]([sources[i] for i in batch])
            for i, tokens in zip(batch, results):
                found[name][i] = tokens
            return results

        return translate

    kept = {name: keeping(name) for name in systems}
    batched = take_turns(kept, batches, max(1, options.turns // 2), eos, say)  # type: ignore[arg-type]

    bleu = BLEU()
    rows = {}
    for name, system in systems.items():
        say(f"in a process of its own: {name}")
        score = None
        if references is not None:
            score = bleu.corpus_score(
                [to_text(task.target_dictionary, tokens) for tokens in found[name]], [references]
            ).score
        rows[name] = Row(system, single[name], batched[name], **probe(system, sources[:PROBED]), bleu=score)
    say("the machine")
    machine = measure_machine(options.threads)
    result = Result(
        options,
        rows,
        machine,
        {name: bound(weights, size, machine) for name, (weights, size) in bounds_of.items()},
        str(bleu.get_signature()) if references is not None else None,
        versions(),
    )
    say.end()
    (out / "bench.json").write_text(json.dumps(report.as_json(result), indent=2) + "\n")
    (out / "bench.txt").write_text(report.tables(result))
    figure = report.plot(result)
    if figure is not None:
        (out / "bench.png").write_bytes(figure)
    return result


def prepare(
    options: Options, task: Any, base: Any, out: Path, say: Callable[[str], None]
) -> Tuple[Dict[str, System], Dict[str, Tuple[int, int]]]:
    """The systems for what the user has, converted and compiled where they need it, and the weights each step reads."""
    common: Dict[str, Any] = {"data": options.data, "max_len_b": options.max_len_b, "threads": options.threads}
    systems: Dict[str, System] = {}
    bounds: Dict[str, Tuple[int, int]] = {}

    def add(name: str, kind: str, path: Any, beam: int = 1) -> None:
        systems[name] = System(name, kind, str(path), beam=beam, **common)

    add("fairseq greedy", "fairseq", options.base)
    add("fairseq beam 4", "fairseq", options.base, 4)
    add("fast greedy base", "fast", options.base)
    compilable = unsupported(base) is None
    if compilable:
        weights = extract(base)[0].weights_per_token()
        bounds.update({"base float32": (weights, 4), "base int8": (weights, 1)})
    trained = list(zip(options.actors, label_actors(options.actors))) + (
        [(options.cont, "cont.")] if options.cont else []
    )
    for path, label in trained:
        if label != "cont.":  # which fairseq decodes as it decodes the base
            add(f"fairseq greedy {label}", "fairseq", path)
            add(f"fairseq beam 4 {label}", "fairseq", path, 4)
        add(f"fast greedy {label}", "fast", path)
        if not compilable:
            continue
        for precision in ("float32", "int8"):
            say(f"compiling {path}, {precision}")
            file = out / f"{label.replace(':', '-').rstrip('.')}.{precision}.tg"
            model, _ = load_model(path, options.data)
            compiled = compile_model(model, task, str(file), no_subword=True, int8=precision == "int8")
            add(f"compiled {label} {precision}", "compiled", file)
            weights = compiled.layout.weights_per_token()
            bounds[f"{label} {precision}"] = (weights, 4 if precision == "float32" else 1)
    if options.peer:
        import_ctranslate2("--peer ctranslate2")
        for precision in ("float32", "int8"):
            models = [(options.base, "", [1, 4])] + ([(options.cont, " cont.", [1])] if options.cont else [])
            for path, label, beams in models:
                say(f"converting {path} for CTranslate2, {precision}")
                directory = out / f"ct2{label.replace(' ', '-').rstrip('.')}-{precision}"
                convert_to_ctranslate2(path, task.cfg, str(directory), None if precision == "float32" else precision)
                symbols = {"source": task.source_dictionary.symbols, "target": task.target_dictionary.symbols}
                (directory / SYMBOLS).write_text(json.dumps(symbols))
                for beam in beams:
                    search = "greedy" if beam == 1 else f"beam {beam}"
                    add(f"CTranslate2 {search}{label} {precision}", "ctranslate2", directory, beam)
    return systems, bounds


def settings(options: Options) -> Dict[str, Any]:
    """The options as they are reported: files by their names only."""
    return {
        name: os.path.basename(value) if isinstance(value, str) else value for name, value in asdict(options).items()
    }
