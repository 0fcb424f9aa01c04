"""The report on one base and its actors: the paper's tables and figures, and the files they are written to."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch

from fairseq_tg.decoding.options import widest_beam
from fairseq_tg.differences import differing_words
from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.advice import advise, compare, verdict
from fairseq_tg.evaluation.batches import SENTENCES, translate_all
from fairseq_tg.evaluation.examples import Example, choose_examples
from fairseq_tg.evaluation.explained import draw_examples, picture_name
from fairseq_tg.evaluation.held import Held
from fairseq_tg.evaluation.likelihood import token_means, word_likelihood
from fairseq_tg.evaluation.lineup import ACTED, CONT, Lineup, check_compared, check_peer, file_name, label_files
from fairseq_tg.evaluation.measure import Spread, take_turns
from fairseq_tg.evaluation.norms import NormsAt, read_norms
from fairseq_tg.evaluation.options import ReportOptions
from fairseq_tg.evaluation.oracle import oracle_translations
from fairseq_tg.evaluation.plots import Point, load_pyplot, norms_over_training, quality_and_speed
from fairseq_tg.evaluation.scores import Scores, score_systems
from fairseq_tg.evaluation.shares import (
    DOUBTFUL,
    Difference,
    Groups,
    Share,
    bleu_statistics,
    corpus_bleu,
    differences,
    recovered_shares,
)
from fairseq_tg.evaluation.subset import Subset, read_subsets
from fairseq_tg.evaluation.tables import Progress, Section, as_html, as_text, in_words, settings, versions, write
from fairseq_tg.files import make_directory
from fairseq_tg.tasks.loading import load_model

#: The training's log, beside its checkpoints, if `fairseq-tg run` made them
TRAIN_LOG = "train.log"
#: How the names of fairseq's own searches begin, which find what the others do
SLOW = "fairseq "
#: How the names of beam searches by a model with actors end
BEAM_4 = "+beam 4"
#: The sets together
ALL = "all"
#: What the mean of several models, as of seeds, is called
MEAN = "{}, mean"


@dataclass(frozen=True)
class SetResult:
    """Of a test set or a part of one; of several sets together, BLEU is the mean of theirs."""

    sentences: int
    bleu: Dict[str, float]
    means: Dict[
        str, Tuple[float, float]
    ]  # of systems of which there are several seeds: BLEU's mean, standard deviation
    shares: Dict[str, Share]  # of the beam-4 gain, by tg system, and of `cont.`, and their means
    beside_cont: Dict[str, Difference]  # by tg system, and their mean


@dataclass
class Report:
    """All that was found out; what could not be is empty, and `notes` says why."""

    options: ReportOptions
    base_fingerprint: str
    sentences: int
    versions: Dict[str, str]
    speed: Dict[str, Spread] = field(default_factory=dict)  # tokens a second, sentence by sentence
    scores: Optional[Scores] = None
    shares: Dict[str, Optional[float]] = field(default_factory=dict)  # of the beam-4 gain, by tg system, of all sets
    sets: Dict[str, SetResult] = field(default_factory=dict)  # each of them, its hard half, and all together
    likelihoods: Dict[str, Dict[str, float]] = field(default_factory=dict)  # model -> translations -> P_w
    norms: Dict[str, List[NormsAt]] = field(default_factory=dict)
    helped: List[Example] = field(default_factory=list)
    hurt: List[Example] = field(default_factory=list)
    pictures: List[str] = field(default_factory=list)  # files of what the actors did with these
    notes: List[str] = field(default_factory=list)
    seconds: float = 0.0


def make_report(options: ReportOptions) -> Report:
    """Translate, score, measure, and write report.html, report.json, report.txt and the figures."""
    started, say = time.perf_counter(), Progress()
    torch.set_num_threads(options.threads)
    check_peer(options)
    if options.train_log and len(options.actor) > 1:
        raise UserError("--train-log is of one actor: give one --actor, or leave it out, for those beside each")
    held = Held(partial(load_model, languages=options.languages))
    found = check_compared(held, options)
    task = held.model(options.base, options.data)[1]
    actors, conts = label_files(ACTED, options.actor), label_files(CONT, options.cont)
    names = options.subset.split(",")
    subset = read_subsets(task, names, held.model(options.base, options.data)[0], options.text, scores_targets=True)
    widest = widest_beam(len(task.target_dictionary))
    if options.oracle_beam > widest:
        raise UserError(f"--oracle-beam {options.oracle_beam}: this dictionary allows up to {widest}, or give 0")
    make_directory(Path(options.out))
    report = Report(options, found, len(subset.sources), versions())

    lineup = Lineup(held, options)
    # All on one engine, so that speeds tell what a search costs; fairseq's own, which find the same, beside them
    lineup.add("greedy", "fast", options.base)
    lineup.add("beam 4", "fast", options.base, 4)
    for name, path in {**actors, **conts}.items():
        lineup.add(name, "fast", path)
        lineup.add(f"{name}{BEAM_4}", "fast", path, 4)
    for name, path in {"greedy": options.base, "beam 4": options.base, **actors}.items():
        lineup.add(f"{SLOW}{name}", "fairseq", path, 4 if name == "beam 4" else 1)
    if options.peer:
        say("converting for CTranslate2")
        lineup.add_converted("", options.base, [1, 4], Path(options.out))
    functions = lineup.functions()
    one_by_one = [[i] for i in range(min(options.speed_sentences, len(subset.sources)))]
    turns = take_turns(functions, subset.sources, one_by_one, options.turns, task.target_dictionary.eos(), say)
    report.speed = {name: Spread.of(result.tokens_per_second()) for name, result in turns.items()}
    if subset.references is None or subset.targets is None:
        report.notes.append(f"'{options.subset}' has no references: there are no scores, likelihoods or examples")
    else:
        functions = {name: function for name, function in functions.items() if not name.startswith(SLOW)}
        tokens = {}
        for name, function in functions.items():
            batch_size = held.batch_size(SENTENCES, lineup.systems[name].beam)
            tokens[name] = translate_all(function, subset.sources, say, name, batch_size)
        oracle = f"beam {options.oracle_beam} oracle"
        if options.oracle_beam:
            wide = replace(lineup.systems["beam 4"], name=oracle, beam=options.oracle_beam)
            batch_size = held.batch_size(16, wide.beam)
            tokens[oracle] = oracle_translations(held.search(wide), subset, say, oracle, batch_size)
        texts = {name: [subset.words(item) for item in items] for name, items in tokens.items()}
        say("scores and significance")
        report.scores = score_systems(texts, subset.references, ["greedy", "beam 4"], subset.tokenizer)
        sure = token_means(
            *held.model(options.base, options.data), subset.sources, tokens["greedy"], True, say, "how sure the base is"
        )
        report.sets = _by_set({name: texts[name] for name in functions}, subset, sure, list(actors), list(conts))
        report.shares = {name: report.sets[ALL].shares[name].value for name in actors}
        if "TER" not in report.scores.signatures:
            report.notes.append(f"no TER: {subset.tokenizer} counts characters, whose edit rate takes too long")
        if len(subset.references) < 2:
            report.notes.append("one sentence is too few for a test of significance")
        judged = {"reference": subset.targets, **{k: tokens[k] for k in ("greedy", oracle, *actors) if k in tokens}}
        for model_name, path in {"base": options.base, **actors}.items():
            doing = f"likelihood of {{}} by {model_name}"
            report.likelihoods[model_name] = {
                name: word_likelihood(*held.model(path, options.data), subset.sources, items, say, doing.format(name))
                for name, items in judged.items()
            }
        for name in list(actors)[:1]:
            report.helped, report.hurt = choose_examples(
                subset.source_text, subset.references, texts, name, tokenizer=subset.tokenizer
            )
            pictures = draw_examples(held, actors[name], options.data, subset, [*report.helped, *report.hurt])
            write(Path(options.out), pictures)
            report.pictures = list(pictures)
    for name, path in actors.items():
        report.norms[name] = read_norms(Path(options.train_log or Path(path).parent / TRAIN_LOG))
        if not report.norms[name]:
            report.notes.append(f"no norms of {name}: there is no log of its training (--train-log) with validations")
    if load_pyplot() is None:
        report.notes.append("no figures: matplotlib is not installed (pip install 'fairseq_tg[plots]'), or not usable")
    report.seconds = time.perf_counter() - started
    say.end()
    _write(report, {name: system.kind for name, system in lineup.systems.items()})
    return report


def _by_set(
    texts: Dict[str, List[str]], subset: Subset, sure: Sequence[float], actors: List[str], conts: List[str]
) -> Dict[str, SetResult]:
    """Every set, its hard half (where the base is least sure of its own greedy output), and all of them together."""
    assert subset.references is not None
    statistics = {name: bleu_statistics(output, subset.references, subset.tokenizer) for name, output in texts.items()}
    hard = {name: sorted(sorted(ids, key=sure.__getitem__)[: (len(ids) + 1) // 2]) for name, ids in subset.sets.items()}
    groups: Dict[str, List[Sequence[int]]] = {}
    for name, ids in subset.sets.items():
        groups.update({name: [ids], f"{name}, hard half": [hard[name]]})
    if len(subset.sets) > 1:
        groups["all hard halves"] = list(hard.values())
    groups[ALL] = list(subset.sets.values())
    found: Dict[str, SetResult] = {}
    for group, sets in groups.items():
        bleu = {
            name: fmean(corpus_bleu(counts[np.asarray(ids)].sum(axis=0)) for ids in sets)
            for name, counts in statistics.items()
        }
        several = {
            f"{name}{search}": [bleu[f"{one}{search}"] for one in members]
            for name, members in ((ACTED, actors), (CONT, conts))
            for search in ("", BEAM_4)
            if len(members) > 1
        }
        found[group] = SetResult(
            sum(map(len, sets)),
            bleu,
            {name: (fmean(values), stdev(values)) for name, values in several.items()},
            recovered_shares(statistics, sets, {**_with_mean(ACTED, actors), **_with_mean(CONT, conts)}),
            differences(statistics, sets, _with_mean(ACTED, actors), conts) if conts else {},
        )
    return found


def _with_mean(name: str, members: List[str]) -> Groups:
    """Each by itself, and all together if they are several."""
    return {**{one: [one] for one in members}, **({MEAN.format(name): members} if len(members) > 1 else {})}


def _write(report: Report, kinds: Dict[str, str]) -> None:
    values = report.scores.values if report.scores else {}
    points = [Point(name, kinds[name], report.speed[name], values[name]["BLEU"]) for name in kinds if name in values]
    figures = {"quality_and_speed": quality_and_speed(points, "BLEU")}
    for name, norms in report.norms.items():
        figures[_norms_figure(name)] = norms_over_training(norms)
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    content: Any = {**asdict(report), "options": settings(report.options)}
    page = as_html("Trainable greedy decoding: report", sections(report), drawn)
    files = {"report.json": content, "report.txt": as_text(sections(report)), "report.html": page}
    write(Path(report.options.out), {**{f"{name}.png": figure for name, figure in drawn.items()}, **files})


def _norms_figure(name: str) -> str:
    return f"norms-{file_name(name)}"


def sections(report: Report) -> List[Section]:
    """The report, part by part."""
    subset, base = report.options.subset, report.base_fingerprint[:16]
    made = [Section(notes=[f"{subset}: {report.sentences:,} sentences; base {base}"]), _quality(report)]
    made += [_sets(report)] if report.sets else []
    if report.likelihoods:
        names = list(next(iter(report.likelihoods.values())))
        rows = [[model, *(f"{row[name]:.1f}" for name in names)] for model, row in report.likelihoods.items()]
        note = "P_w (%): a token's mean probability, by sentence, of translations (columns) under models (rows)"
        made.append(Section("Word-level likelihood", header=["", *names], rows=rows, notes=[note]))
    figures = [_norms_figure(name) for name, norms in report.norms.items() if norms]
    if figures:
        made.append(Section("Norms over training", figures=figures, page_only=True))
    for title, examples in (("Where it helped most", report.helped), ("Where it hurt most", report.hurt)):
        if examples:
            note = "By the difference in sentence BLEU to greedy; words that differ from greedy's are marked."
            made += [
                Section(title, notes=[note], page_only=True),
                *(_example(example, report.pictures) for example in examples),
            ]
    computed = f"computed in {report.seconds:.0f} s with {report.options.threads} thread(s)"
    return [*made, Section(notes=[*report.notes, in_words(report.versions), computed])]


def _quality(report: Report) -> Section:
    """The paper's two main tables."""
    scores = report.scores or Scores({}, {}, {}, {})
    metrics, rows = list(scores.signatures), []
    for name in dict.fromkeys([*scores.values, *report.speed]):
        values, length, speed = scores.values.get(name), scores.lengths.get(name), report.speed.get(name)
        cells = [f"{values[metric]:.2f}{_stars(scores, name, metric)}" if values else "" for metric in metrics]
        cells.append("" if length is None else f"{length:.3f}")
        cells += ["", ""] if speed is None else [f"{speed.median:,.0f}", f"{speed.low:,.0f}-{speed.high:,.0f}"]
        rows.append([name, *cells])
    notes = [f"{name}: {signature}" for name, signature in scores.signatures.items()]
    if scores.values:
        notes += [
            "* and **: BLEU differs from greedy's, and from beam 4's, at p < 0.05 (paired bootstrap, 1000 samples)",
            "length: of the references' (below 1, BLEU has a brevity penalty)",
        ]
    notes.append(
        "tok/s: sentence by sentence; by fairseq's own search or a peer's where it says so, else on one engine"
    )
    header = ["system", *metrics, "length", "tok/s", "(range)"]
    return Section("Quality and speed", _share_lines(report), header, rows, notes, ["quality_and_speed"])


def _stars(scores: Scores, name: str, metric: str) -> str:
    marks = ""
    for baseline, star in (("greedy", "*"), ("beam 4", "**")):
        p = scores.p_values.get(baseline, {}).get(name, {}).get("BLEU")
        marks += f" {star}" if metric == "BLEU" and p is not None and p < 0.05 else ""
    return marks


def _share_lines(report: Report) -> List[str]:
    """What of the beam's gain each actor recovers, how sure that is, and whether there is a gain to take shares of."""
    if ALL not in report.sets or not report.shares:
        return []
    shares, beside = report.sets[ALL].shares, report.sets[ALL].beside_cont
    some = next(iter(shares.values()))
    besides = [compare(name, CONT, difference) for name, difference in beside.items()]
    if some.gain <= 0:
        return ["beam 4 gains nothing over greedy: there is nothing to take a share of", *besides]
    sets = len(report.options.subset.split(","))
    gain = f"{some.gain:.2f} BLEU that beam 4 gains over greedy" + (f", summed over {sets} sets" if sets > 1 else "")
    lengths = report.scores.lengths if report.scores else {}
    lines = []
    for name, share in shares.items():
        lines += [f"{name} recovers {share} of the {gain}", verdict(name, share)]
        if name in report.shares:
            lines += advise(share, lengths.get(name, 1.0))
    lines += besides
    if some.doubtful > DOUBTFUL:
        lines.append(f"(in {some.doubtful:.0%} of the samples beam 4 gains nothing: a share of it means little)")
    return lines


def _sets(report: Report) -> Section:
    """BLEU and shares of every set."""
    systems = list(next(iter(report.sets.values())).bleu)
    rows = []
    for name, found in report.sets.items():
        bleu = [f"{found.bleu[system]:.2f}" for system in systems]
        bleu += [f"{mean:.2f} ± {deviation:.2f}" for mean, deviation in found.means.values()]
        rows.append([name, f"{found.sentences:,}", *bleu, *map(str, found.shares.values())])
    systems += [MEAN.format(name) for name in report.sets[ALL].means]
    header = ["BLEU", "sentences", *systems, *(f"share of {name}" for name in report.sets[ALL].shares)]
    notes = ["hard half: where the base is least sure of its greedy output, by its mean log-probability"]
    if report.shares:
        notes.append("share of beam 4's gain (95% interval: paired bootstrap over sentences, 1000 samples)")
    if report.sets[ALL].means:
        notes.append("mean ± standard deviation of the checkpoints given; their share is that of the mean BLEU")
    if len(report.options.subset.split(",")) > 1:
        notes.append("all: BLEU is the mean of the sets, the share that of their gains together")
    return Section("Set by set", header=header, rows=rows, notes=notes)


def _example(example: Example, pictures: Sequence[str]) -> Section:
    greedy = example.outputs["greedy"]
    rows: List[List[Any]] = [["source", example.source], ["reference", example.reference]]
    rows += [[name, differing_words(text, greedy)] for name, text in example.outputs.items()]
    name = picture_name(example)
    links = {"Where the actors acted": name} if name in pictures else {}
    return Section(lead=[f"Sentence {example.index}, {example.gain:+.1f}"], rows=rows, page_only=True, links=links)
