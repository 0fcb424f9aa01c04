"""The report on one base and its actors: what is computed, and the files it is written to."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from fairseq_tg.errors import UserError
from fairseq_tg.evaluation import page
from fairseq_tg.evaluation import report_plots as plots
from fairseq_tg.evaluation.examples import Example, choose_examples
from fairseq_tg.evaluation.likelihood import word_likelihood
from fairseq_tg.evaluation.measure import Spread, take_turns
from fairseq_tg.evaluation.norms import NormsAt, read_norms
from fairseq_tg.evaluation.options import ReportOptions
from fairseq_tg.evaluation.oracle import oracle_translations
from fairseq_tg.evaluation.plots import Point, load_pyplot, quality_and_speed
from fairseq_tg.evaluation.scores import Scores, recovered_share, score_systems
from fairseq_tg.evaluation.subset import Progress, Subset, columns, label_actors, read_subset, to_text, versions
from fairseq_tg.evaluation.systems import System, Tokens, Translate, build
from fairseq_tg.files import make_directory, replacing
from fairseq_tg.models.base import ActorModel
from fairseq_tg.tasks.loading import load_model

BATCH = 32
#: The training's log, beside its checkpoints, if `fairseq-tg run` made them
TRAIN_LOG = "train.log"


@dataclass
class Report:
    """All that was found out; what could not be is empty, and `notes` says why."""

    options: ReportOptions
    base_fingerprint: str
    sentences: int
    versions: Dict[str, str]
    speed: Dict[str, Spread] = field(default_factory=dict)  # tokens a second, sentence by sentence
    scores: Optional[Scores] = None
    shares: Dict[str, Optional[float]] = field(default_factory=dict)  # of the beam-4 gain, by tg system
    likelihoods: Dict[str, Dict[str, float]] = field(default_factory=dict)  # model -> translations -> P_w
    norms: Dict[str, List[NormsAt]] = field(default_factory=dict)
    helped: List[Example] = field(default_factory=list)
    hurt: List[Example] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    seconds: float = 0.0


def make_report(options: ReportOptions) -> Report:
    """Translate, score, measure, and write report.html, report.json, report.txt and the figures."""
    started = time.perf_counter()
    say = Progress()
    torch.set_num_threads(options.threads)
    base, task = load_model(options.base, options.data)
    if isinstance(base, ActorModel):
        raise UserError(f"--base {options.base} has actors: give the checkpoint they were trained on")
    names = label_actors(options.actors)
    tg_models = {name: _load_actor(path, options, base) for name, path in zip(names, options.actors)}
    subset = read_subset(task, options.subset)
    make_directory(Path(options.out))
    report = Report(options, _fingerprint(base), len(subset.sources), versions())

    systems = _systems(options, names)
    functions: Dict[str, Translate] = {}
    for name, system in systems.items():
        say(f"loading: {name}")
        functions[name] = build(system)
    torch.set_num_threads(options.threads)
    tokens = {
        name: translate_all(functions[name], subset.sources, name, say)
        for name in systems
        if not name.startswith("fairseq")
    }
    _measure_speed(report, functions, subset, task, say)
    if subset.references is None:
        report.notes.append(f"'{options.subset}' has no references: there are no scores, likelihoods or examples")
    else:
        assert subset.targets is not None
        oracle = f"beam {options.oracle_beam} oracle"
        if options.oracle_beam:
            tokens[oracle] = oracle_translations(
                base, task, subset.sources, subset.references, options.oracle_beam, progress=say
            )
        texts = {name: [to_text(task.target_dictionary, item) for item in items] for name, items in tokens.items()}
        say("scores and significance")
        report.scores = score_systems(texts, subset.references, ["greedy", "beam 4"])
        bleu = {name: values["BLEU"] for name, values in report.scores.values.items()}
        for name in names:
            report.shares[name] = recovered_share(bleu["greedy"], bleu["beam 4"], bleu[name])
        if len(subset.references) < 2:
            report.notes.append("one sentence is too few for a test of significance")
        columns_of = {"reference": subset.targets, **{k: tokens[k] for k in ("greedy", oracle, *names) if k in tokens}}
        for model_name, model in {"base": base, **tg_models}.items():
            say(f"likelihoods under {model_name}")
            report.likelihoods[model_name] = {
                name: word_likelihood(model, task, subset.sources, items) for name, items in columns_of.items()
            }
        if names:
            report.helped, report.hurt = choose_examples(subset.source_text, subset.references, texts, names[0])
    for name, path in zip(names, options.actors):
        log = Path(options.train_log) if options.train_log else Path(path).parent / TRAIN_LOG
        report.norms[name] = read_norms(log)
        if not report.norms[name]:
            report.notes.append(f"no norms of {name}: there is no log of its training (--train-log) with validations")
    if load_pyplot() is None:
        report.notes.append("no figures: matplotlib is not installed (pip install 'fairseq_tg[plots]')")
    report.seconds = time.perf_counter() - started
    say.end()
    write_report(report)
    return report


def _load_actor(path: str, options: ReportOptions, base: Any) -> ActorModel:
    model, _ = load_model(path, options.data)
    if not isinstance(model, ActorModel):
        raise UserError(f"--actor {path} has no actors: give a checkpoint trained with --arch tg_*")
    if model.base.fingerprint != _fingerprint(base):
        raise UserError(f"--actor {path} was trained on another base than {options.base}: give its own")
    return model


def _fingerprint(base: Any) -> str:
    from fairseq_tg.loading.checkpoints import fingerprint

    return fingerprint(base.state_dict())


def _systems(options: ReportOptions, names: Sequence[str]) -> Dict[str, System]:
    common: Dict[str, Any] = {"data": options.data, "threads": options.threads}
    systems = {
        "fairseq greedy": System("fairseq greedy", "fairseq", options.base, **common),
        "greedy": System("greedy", "fast", options.base, **common),
        "beam 4": System("beam 4", "fairseq", options.base, beam=4, **common),
    }
    for name, path in zip(names, options.actors):
        systems[name] = System(name, "fast", path, **common)
        systems[f"{name}+beam 4"] = System(f"{name}+beam 4", "fairseq", path, beam=4, **common)
    return systems


def translate_all(
    translate: Translate, sources: Sequence[Tokens], name: str, progress: Callable[[str], None]
) -> List[Tokens]:
    """Translate any number of sentences, in batches of like length."""
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    results: List[Tokens] = [[] for _ in sources]
    for start in range(0, len(order), BATCH):
        progress(f"{name}: {start} of {len(order)} sentences")
        batch = order[start : start + BATCH]
        for i, found in zip(batch, translate([sources[i] for i in batch])):
            results[i] = found
    return results


def _measure_speed(
    report: Report, functions: Dict[str, Translate], subset: Subset, task: Any, say: Callable[[str], None]
) -> None:
    batches = [[source] for source in subset.sources[: report.options.speed_sentences]]
    turns = take_turns(functions, batches, report.options.turns, task.target_dictionary.eos(), say)
    report.speed = {name: Spread.of(result.tokens_per_second()) for name, result in turns.items()}


def tables(report: Report) -> str:
    """The report as plain text."""
    lines = [f"{report.options.subset}: {report.sentences} sentences; base {report.base_fingerprint[:16]}", ""]
    lines += columns(*quality_table(report))
    if report.scores is not None:
        lines += [f"{name}: {signature}" for name, signature in report.scores.signatures.items()]
        lines.append(
            "* and **: BLEU differs from greedy's, and from beam 4's, at p < 0.05 (paired bootstrap, 1000 samples)"
        )
        lines += share_lines(report)
    lines += [
        "length: of the references' (below 1, BLEU has a brevity penalty)",
        "tok/s: sentence by sentence; greedy and tg on the fast path, beam search and fairseq greedy by fairseq",
        "",
    ]
    if report.likelihoods:
        lines += ["word-level likelihood P_w (%) of translations (columns) under models (rows)"]
        lines += columns(*likelihood_table(report))
    lines += ["", *report.notes, ", ".join(f"{name} {version}" for name, version in report.versions.items())]
    lines.append(f"computed in {report.seconds:.0f} s with {report.options.threads} thread(s)")
    return "\n".join(lines) + "\n"


def quality_table(report: Report) -> Tuple[List[str], List[List[str]]]:
    """The paper's two main tables: header and rows."""
    metrics = list(report.scores.signatures) if report.scores else []
    header = ["system", *metrics, "length", "tok/s", "(range)"]
    rows = []
    for name in dict.fromkeys([*(report.scores.values if report.scores else ()), *report.speed]):
        cells = [name]
        for metric in metrics:
            value = report.scores.values.get(name, {}).get(metric) if report.scores else None
            mark = "" if metric != "BLEU" else _stars(report, name)
            cells.append("" if value is None else f"{value:.2f}{mark}")
        length = report.scores.lengths.get(name) if report.scores else None
        cells.append("" if length is None else f"{length:.3f}")
        speed = report.speed.get(name)
        cells += ["", ""] if speed is None else [f"{speed.median:,.0f}", f"{speed.low:,.0f}-{speed.high:,.0f}"]
        rows.append(cells)
    return header, rows


def share_lines(report: Report) -> List[str]:
    """What of the beam's gain each actor recovers, and whether that gain is one to take shares of."""
    if report.scores is None:
        return []
    bleu = {name: values["BLEU"] for name, values in report.scores.values.items()}
    gain = bleu["beam 4"] - bleu["greedy"]
    lines = [
        f"{name} recovers {share:.2f} of the {gain:.2f} BLEU that beam 4 gains over greedy"
        for name, share in report.shares.items()
        if share is not None
    ]
    p = report.scores.p_values.get("greedy", {}).get("beam 4", {}).get("BLEU")
    if report.shares and gain <= 0:
        lines.append("beam 4 gains nothing over greedy: there is nothing to take a share of")
    elif report.shares and p is not None and p >= 0.05:
        lines.append(f"(beam 4's gain may be chance, p = {p:.2f}: a share of it means little)")
    return lines


def _stars(report: Report, name: str) -> str:
    marks = ""
    for baseline, star in (("greedy", "*"), ("beam 4", "**")):
        p = report.scores.p_values.get(baseline, {}).get(name, {}).get("BLEU") if report.scores else None
        marks += f" {star}" if p is not None and p < 0.05 else ""
    return marks


def likelihood_table(report: Report) -> Tuple[List[str], List[List[str]]]:
    names = list(next(iter(report.likelihoods.values())))
    rows = [[model, *(f"{row[name]:.1f}" for name in names)] for model, row in report.likelihoods.items()]
    return ["", *names], rows


def write_report(report: Report) -> None:
    out = Path(report.options.out)
    figures: Dict[str, Optional[bytes]] = {}
    if report.scores is not None:
        points = [
            Point(name, speed, report.scores.values[name]["BLEU"], "tab:green" if name.startswith("tg") else "tab:gray")
            for name, speed in report.speed.items()
            if name in report.scores.values
        ]
        figures["quality_and_speed"] = quality_and_speed(points, "BLEU")
    for name, norms in report.norms.items():
        figures[f"norms-{name.replace(':', '-')}"] = plots.norms_over_training(norms)
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    for name, figure in drawn.items():
        _write(out / f"{name}.png", figure)
    content = asdict(report)
    for name in ("data", "base", "out", "train_log"):
        content["options"][name] = Path(content["options"][name]).name if content["options"][name] else None
    content["options"]["actors"] = [Path(path).name for path in report.options.actors]
    _write(out / "report.json", (json.dumps(content, indent=2) + "\n").encode())
    _write(out / "report.txt", tables(report).encode())
    _write(out / "report.html", page.render(report, drawn).encode())


def _write(path: Path, content: bytes) -> None:
    with replacing(str(path)) as temporary:
        Path(temporary).write_bytes(content)
