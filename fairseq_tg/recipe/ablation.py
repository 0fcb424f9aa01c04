"""The paper's ablations for the user's own base: actors, beam sizes, corpora and objectives, one change at a time.

Every cell is a training on a corpus, done once; greedy translations of a split are scored by all metrics.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, Tuple

from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.batches import translate_all
from fairseq_tg.evaluation.plots import dots
from fairseq_tg.evaluation.scores import Scores, score_systems
from fairseq_tg.evaluation.subset import read_subset
from fairseq_tg.evaluation.systems import System, build
from fairseq_tg.evaluation.tables import Progress, Section, as_text, in_words, versions, write
from fairseq_tg.names import LIST_CRITERIA
from fairseq_tg.objectives import get_objective
from fairseq_tg.recipe.corpora import build_corpus, corpus_hash, hash_originals
from fairseq_tg.recipe.lengths import with_objective, with_tokenizer
from fairseq_tg.recipe.methods import METHODS, PAPERS, compare_methods, of_all
from fairseq_tg.recipe.options import KINDS, Ablation, Recipe, Training
from fairseq_tg.recipe.run import check, check_objective, open_base
from fairseq_tg.recipe.training import Job, count_updates
from fairseq_tg.tokenizers import OF_CHARACTERS, USUAL

COMPOSITIONS = ("para", "full", "thd", "top1", "comb")
OBJECTIVES = ("sbleu", "sbleu+2", "meteor", "ter")


@dataclass(frozen=True)
class Cell:
    """One setting: how its corpus differs, and its training."""

    name: str
    training: Training
    corpus: Dict[str, Any]
    original: bool = False  # trained on the original corpus


def cells(recipe: Ablation) -> List[Cell]:
    """The cells of an ablation, in the order of its plot."""
    kind, usual = recipe.kind, recipe.training
    if kind == "actor":  # whose forms are those at the attention
        usual = replace(usual, actor_sites=usual.actor_sites or "attention", lr=usual.lr or PAPERS["lr"])
        made = [Cell(actor, replace(usual, actor=actor), {}) for actor in ("gate", "linear")]
        for actor in ("ff", "ff2", "rnn"):
            made += [
                Cell(f"{actor} {n or ''}".strip(), replace(usual, actor=actor, actor_hidden=n), {})
                for n in recipe.hidden
            ]
        return [*made, Cell("cont.", of_all(usual), {})]
    if kind == "beam":
        return [Cell(f"k={k}", usual, {"beam": k}) for k in recipe.beams]
    if kind == "composition":
        return [Cell(name, usual, {"selection": name}, original=name == "para") for name in COMPOSITIONS]
    if kind == "objective":
        return [Cell(name, usual, {"objective": name}) for name in OBJECTIVES]
    raise UserError(f"no ablation '{kind}': there are {', '.join(KINDS)}")


def ablate(recipe: Ablation) -> Tuple[Scores, str]:
    """Do what is not done of an ablation; gives the scores and a table, which are also written to the directory."""
    kind = recipe.kind
    if kind == "composition" and recipe.training.criterion in LIST_CRITERIA:
        raise UserError(
            f"--criterion {recipe.training.criterion} learns from whole lists, and `ablate composition` compares "
            "trainings on what is chosen of them: leave it out"
        )
    planned = [] if kind == "method" else cells(recipe)
    names = METHODS if kind == "method" else [cell.name for cell in planned]
    unknown = set(recipe.only) - set(names)
    if unknown:
        raise UserError(f"--only {min(unknown)}: there are {', '.join(names)}")
    planned = [cell for cell in planned if not recipe.only or cell.name in recipe.only]
    recipe, base, model, task = open_base(recipe)
    out = Path(recipe.out)
    check(recipe, model, task)
    recipe = with_tokenizer(recipe, model, task)
    tokenizer = recipe.text.sacrebleu_tokenizer or USUAL
    if tokenizer in OF_CHARACTERS and "ter" not in recipe.only:
        planned = [cell for cell in planned if cell.corpus.get("objective") != "ter"]
    for cell in planned:
        if "objective" in cell.corpus:
            get_objective(cell.corpus["objective"], tokenizer)  # one that cannot be had is found now
    check_objective(recipe)
    recipe = with_objective(recipe, model, task)
    subset = read_subset(task, recipe.subset, model, recipe.text)
    if subset.references is None:
        raise UserError(f"the split '{recipe.subset}' has no references to score by: give --subset another")
    if kind == "method" and task.marks and "policy gradient" in (recipe.only or METHODS):
        others = " ".join(f"'{name}'" for name in METHODS[1:] if name != "policy gradient")
        raise UserError(f"the policy gradient does not know language symbols: give --only {others}")
    if kind == "method":
        return compare_methods(recipe, base, task, subset, ("greedy", *recipe.only) if recipe.only else METHODS)
    pseudo = out / "pseudo-bin"
    manifest = build_corpus(recipe, task, pseudo)
    updates = count_updates(pseudo, recipe.training.of_family(base.family))
    texts: Dict[str, List[str]] = {}
    say = Progress()
    checkpoints = {"greedy": recipe.base}
    for number, cell in enumerate(planned, start=1):
        print(f"== {kind} {number} of {len(planned)}: {cell.name}")
        data, digest = _corpus(recipe, cell, out, pseudo, manifest, task)
        directory = out / "cells" / f"{kind}-{cell.name.replace(' ', '-').replace('=', '').rstrip('.')}"
        job = Job(cell.training, recipe.base, base, task, data, digest, directory, updates, recipe.text)
        checkpoints[cell.name] = str(job.run(recipe.workers))
    for name, checkpoint in checkpoints.items():
        function = build(
            System(name, "fast", checkpoint, recipe.data, threads=recipe.workers, languages=recipe.languages)
        )
        texts[name] = [subset.words(tokens) for tokens in translate_all(function, subset.sources, say, name)]
    say.end()
    scores = score_systems(texts, subset.references, ["greedy"], subset.tokenizer)
    table = _table(kind, recipe, scores, updates)
    _write(out, kind, scores, table)
    return scores, table


def _corpus(
    recipe: Recipe, cell: Cell, out: Path, pseudo: Path, manifest: Dict[str, Any], task: Any
) -> Tuple[Path, str]:
    """The data directory that a cell is trained on, and what tells it from any other."""
    if cell.original:
        data = Path(recipe.data)
        return data, hash_originals(data, task)
    usual = {"beam": recipe.beam, "objective": recipe.objective, "selection": recipe.selection}
    if all(usual[name] == value for name, value in cell.corpus.items()):
        return pseudo, corpus_hash(manifest)
    name = "-".join(str(value).replace(":", "-") for value in cell.corpus.values())
    changes = dict(cell.corpus)
    if "beam" not in changes:
        changes["kbest_from"] = str(pseudo)  # the same lists, chosen from otherwise
    directory = out / f"pseudo-{name}"
    return directory, corpus_hash(build_corpus(recipe, task, directory, **changes))


def _table(kind: str, recipe: Recipe, scores: Scores, updates: int) -> str:
    metrics = list(scores.signatures)
    rows = []
    for name, values in scores.values.items():
        p = scores.p_values.get("greedy", {}).get(name, {}).get("BLEU")
        rows.append([name, *(f"{values[metric]:.2f}" for metric in metrics), "" if p is None else f"{p:.3f}"])
    notes = [f"greedy translations of {recipe.subset}; up to {updates} updates each, seed {recipe.training.seed}"]
    notes += [f"{name}: {signature}" for name, signature in scores.signatures.items()]
    return as_text([Section(header=[kind, *metrics, "p (BLEU)"], rows=rows, notes=[*notes, in_words(versions())])])


def _write(out: Path, kind: str, scores: Scores, table: str) -> None:
    bleu = [(name, values["BLEU"]) for name, values in scores.values.items() if name != "greedy"]
    content = {"values": scores.values, "p_values": scores.p_values, "signatures": scores.signatures}
    figure = dots(bleu, scores.values["greedy"]["BLEU"], "BLEU, greedy", kind)
    files = {"txt": table, "json": content, "png": figure}
    write(out, {f"ablation-{kind}.{suffix}": data for suffix, data in files.items()})
