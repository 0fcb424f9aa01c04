"""Rounds: lists of what the model with its actors finds, training on from these actors, and the best round at the end.

The first round is the paper's, and a second training on whole lists (see `Refinement`). In each that follows, the lists
are those of the last round, but for the sentences whose greedy translation the actors have changed since: these are
searched again, with the actors; from then on it is the second training alone, if there is one.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from fairseq_tg.corpus.directory import hash_file
from fairseq_tg.evaluation.report import TRAIN_LOG
from fairseq_tg.files import replacing
from fairseq_tg.loading.checkpoints import load_checkpoint
from fairseq_tg.models.base import Base
from fairseq_tg.recipe.corpora import build_corpus, corpus_hash
from fairseq_tg.recipe.options import Recipe
from fairseq_tg.recipe.stages import Stage
from fairseq_tg.recipe.training import BEST, train


def train_in_rounds(recipe: Recipe, base: Base, task: Any, out: Path) -> Path:
    """Do what is not done of all trainings; gives the best one's checkpoint, OUT/actor/checkpoint_best.pt."""
    refined = recipe.refined()
    corpus, checkpoint = out / "pseudo-bin", None
    done: List[Tuple[float, Path]] = []
    several = recipe.rounds > 1 or refined is not None
    for number in range(1, recipe.rounds + 1):
        place = f"{number} of {recipe.rounds}: " if recipe.rounds > 1 else ""
        manifest = _lists(recipe, task, out, number, corpus, checkpoint, place)
        corpus = lists_directory(out, number)
        trainings = {f"round-{number}": refined or recipe.training}
        if refined is not None and number == 1:
            trainings = {"first": recipe.training, **trainings}
        for name, training in trainings.items():
            directory = out / name / "actor" if several else out / "actor"
            print(f"== 2 of 3: {place}{training.actor} actors by {training.criterion}, {directory}")
            digest, workers = corpus_hash(manifest), recipe.workers
            checkpoint = train(
                training,
                corpus,
                recipe.base,
                base,
                directory,
                task,
                digest,
                workers,
                text=recipe.text,
                start=checkpoint,
            )
            done.append((validation_score(checkpoint), checkpoint))
            if several:
                print(f"{name}: greedy BLEU on the validation set {done[-1][0]:.2f}")
    assert checkpoint is not None
    return _keep_best(out / "actor", done) if several else checkpoint


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


def _keep_best(directory: Path, done: List[Tuple[float, Path]]) -> Path:
    """Copy the best training's checkpoint and log; of equal ones, the first's."""
    best = max(range(len(done)), key=lambda number: (done[number][0], -number))
    source = done[best][1]
    print(f"the best is {source.parent.parent.name}")
    rounds = "best of rounds"
    stage = Stage(directory, {rounds: [hash_file(path) for _, path in done]}, follows=[rounds])
    if not stage.is_done():
        with stage.doing([BEST, TRAIN_LOG]):
            for name in (BEST, TRAIN_LOG):
                with replacing(str(directory / name)) as temporary:
                    shutil.copyfile(source.with_name(name), temporary)
    return directory / BEST
