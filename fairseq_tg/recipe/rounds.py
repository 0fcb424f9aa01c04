"""Rounds: lists of what the model with its actors finds, training on from these actors, and the best round at the end.

The first round is the paper's, once for every selection that is tried, and then, if there is to be one, a second
training on whole lists (see `Refinement`). In each that follows, the lists are those of the last round, but for the
sentences whose greedy translation the actors have changed since: these are searched again, with the actors; from then
on it is the second training alone, if there is one, else the first with the better selection.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from fairseq_tg.corpus.directory import hash_file
from fairseq_tg.evaluation.report import TRAIN_LOG
from fairseq_tg.files import replacing
from fairseq_tg.loading.checkpoints import load_checkpoint
from fairseq_tg.models.base import Base
from fairseq_tg.recipe.corpora import build_corpus, corpus_hash
from fairseq_tg.recipe.options import Recipe, Training
from fairseq_tg.recipe.stages import Stage
from fairseq_tg.recipe.training import BEST, train


class Trained(NamedTuple):
    score: float  # greedy BLEU on the validation set
    checkpoint: Path
    selection: str


def train_in_rounds(recipe: Recipe, base: Base, task: Any, out: Path) -> Path:
    """Do what is not done of all trainings; gives the best one's checkpoint, OUT/actor/checkpoint_best.pt."""
    refined, selections = recipe.refined(), recipe.selections()
    several = recipe.rounds > 1 or refined is not None or len(selections) > 1
    corpus = out / "pseudo-bin"
    last: Optional[Trained] = None
    done: List[Trained] = []

    def learn(name: str, training: Training, selection: str, start: Optional[Path]) -> Trained:
        data, digest = corpus, corpus_hash(manifest)
        if selection != selections[0]:  # the same lists, chosen from otherwise
            data = corpus.with_name(f"pseudo-{selection}")
            digest = corpus_hash(build_corpus(recipe, task, data, selection=selection, kbest_from=corpus))
        directory = out / name / "actor" if several else out / "actor"
        print(f"== 2 of 3: {place}{training.actor} actors by {training.criterion}, on {selection}, {directory}")
        checkpoint = train(
            training,
            data,
            recipe.base,
            base,
            directory,
            task,
            digest,
            recipe.workers,
            text=recipe.text,
            start=start,
        )
        found = Trained(validation_score(checkpoint), checkpoint, selection)
        if several:
            print(f"{name}: greedy BLEU on the validation set {found.score:.2f}")
        done.append(found)
        return found

    for number in range(1, recipe.rounds + 1):
        place = f"{number} of {recipe.rounds}: " if recipe.rounds > 1 else ""
        manifest = _lists(recipe, task, out, number, corpus, last.checkpoint if last else None, place)
        corpus = lists_directory(out, number)
        if last is None:
            name = "round-1" if refined is None else "first"
            names = {selection: selection if len(selections) > 1 else name for selection in selections}
            tried = [learn(name, recipe.training_on(of), of, None) for of, name in names.items()]
            last = max(tried, key=lambda one: one.score)
        elif refined is None:
            last = learn(f"round-{number}", recipe.training_on(last.selection), last.selection, last.checkpoint)
        if refined is not None:
            last = learn(f"round-{number}", refined, selections[0], last.checkpoint)
    assert last is not None
    return _keep_best(out / "actor", done) if several else last.checkpoint


def lists_directory(out: Path, number: int) -> Path:
    """Where the lists of a round are: of the first, where they are without rounds."""
    return out / "pseudo-bin" if number == 1 else out / f"round-{number}" / "pseudo-bin"


def _lists(
    recipe: Recipe, task: Any, out: Path, number: int, before: Path, checkpoint: Optional[Path], place: str
) -> Dict[str, Any]:
    directory = lists_directory(out, number)
    print(f"== 1 of 3: {place}the oracle corpus, {directory}")
    if checkpoint is None:
        return build_corpus(recipe, task, directory)
    manifest = build_corpus(recipe, task, directory, model=str(checkpoint), kbest_refresh=before)
    counts = manifest["counts"]
    print(f"{counts['sentences'] - counts['kept']:,} of {counts['sentences']:,} sentences were searched again")
    return manifest


def validation_score(checkpoint: Path) -> float:
    """What fairseq-train chose a best checkpoint by: greedy BLEU on the validation set."""
    return float(load_checkpoint(str(checkpoint))["extra_state"]["best"])


def _keep_best(directory: Path, done: List[Trained]) -> Path:
    """Copy the best training's checkpoint and log; of equal ones, the first's."""
    source = max(done, key=lambda one: one.score).checkpoint
    print(f"the best is {source.parent.parent.name}")
    rounds = "best of rounds"
    stage = Stage(directory, {rounds: [hash_file(one.checkpoint) for one in done]}, follows=[rounds])
    if not stage.is_done():
        with stage.doing([BEST, TRAIN_LOG]):
            for name in (BEST, TRAIN_LOG):
                with replacing(str(directory / name)) as temporary:
                    shutil.copyfile(source.with_name(name), temporary)
    return directory / BEST
