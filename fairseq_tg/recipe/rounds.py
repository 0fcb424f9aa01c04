"""Rounds: lists of what the model with its actors finds, training on from these actors, and the best round at the end.

The first round is the paper's, once for every selection that is tried, and then, if there is to be one, a second
training on whole lists (see `Refinement`). In each that follows, the lists are those of the last round, but for the
sentences whose greedy translation the actors have changed since: these are searched again, with the actors. It goes on
from the best actors so far, by the second training, if there is one, else by the first, on what the first selection
chooses, by the objective that the length of their translations asks for, if none is given.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from fairseq_tg.corpus.directory import hash_file
from fairseq_tg.evaluation.report import TRAIN_LOG
from fairseq_tg.files import replacing
from fairseq_tg.loading.checkpoints import load_checkpoint
from fairseq_tg.models.base import Base
from fairseq_tg.recipe.corpora import build_corpus, corpus_hash
from fairseq_tg.recipe.lengths import with_objective
from fairseq_tg.recipe.options import AUTO, Recipe, Training
from fairseq_tg.recipe.stages import Stage
from fairseq_tg.recipe.training import BEST, train
from fairseq_tg.tasks.loading import load_model


class Trained(NamedTuple):
    score: float  # greedy BLEU on the validation set
    checkpoint: Path


class Lists(NamedTuple):
    """The k-best lists of a round, and what is chosen of them by the first selection."""

    directory: Path
    manifest: Dict[str, Any]


@dataclass(frozen=True)
class Trainings:
    """What is the same in all rounds."""

    recipe: Recipe
    base: Base
    task: Any
    out: Path
    by_length: bool  # whether the objective is the first round's, and each of the others has its own

    def train(self, name: str, training: Training, selection: str, lists: Lists, start: Optional[Path]) -> Trained:
        """Train on what a selection chooses of lists, from fresh actors or on from a checkpoint's."""
        recipe, data, manifest = self.recipe, lists.directory, lists.manifest
        if selection != recipe.selections()[0]:  # the same lists, chosen from otherwise
            data = lists.directory.with_name(f"pseudo-{selection}")
            manifest = build_corpus(recipe, self.task, data, selection=selection, kbest_from=lists.directory)
        directory = self.out / name / "actor" if recipe.trains_several() else self.out / "actor"
        print(f"== 2 of 3: {training.actor} actors by {training.criterion}, on {selection}, {directory}")
        checkpoint = train(
            training,
            data,
            recipe.base,
            self.base,
            directory,
            self.task,
            corpus_hash(manifest),
            recipe.workers,
            text=recipe.text,
            start=start,
        )
        found = Trained(validation_score(checkpoint), checkpoint)
        if recipe.trains_several():
            print(f"{name}: greedy BLEU on the validation set {found.score:.2f}")
        return found

    def lists(self, number: int, before: Optional[Lists] = None, model: Optional[Path] = None) -> Lists:
        """Those of the base or, in a later round, of a model with actors, where these have changed something."""
        directory = lists_directory(self.out, number)
        print(f"== 1 of 3: the oracle corpus, {directory}")
        if before is None or model is None:
            return Lists(directory, build_corpus(self.recipe, self.task, directory))
        recipe = self.recipe
        if self.by_length:
            loaded = load_model(str(model), recipe.data, languages=recipe.languages)
            recipe = with_objective(replace(recipe, objective=AUTO), *loaded)
        manifest = build_corpus(recipe, self.task, directory, model, kbest_refresh=before.directory)
        counts = manifest["counts"]
        print(f"{counts['sentences'] - counts['kept']:,} of {counts['sentences']:,} sentences were searched again")
        return Lists(directory, manifest)


def train_in_rounds(recipe: Recipe, base: Base, task: Any, out: Path, by_length: bool = False) -> Path:
    """Do what is not done of all trainings; gives the best one's checkpoint, OUT/actor/checkpoint_best.pt.

    by_length: the recipe's objective follows from the length of the base's translations, so that further rounds, which
        begin with others, have one of their own.
    """
    refined, selections = recipe.refined(), recipe.selections()
    trainings = Trainings(recipe, base, task, out, by_length)
    lists = trainings.lists(1)
    alone = "round-1" if refined is None else "first"
    done = [
        trainings.train(of if len(selections) > 1 else alone, recipe.training_on(of), of, lists, None)
        for of in selections
    ]
    last = max(done, key=lambda one: one.score)
    for number in range(1, (recipe.rounds or 1) + 1):
        if number > 1:
            print(f"== round {number} of {recipe.rounds}")
            lists = trainings.lists(number, lists, last.checkpoint)
        elif refined is None:
            continue
        # What the references have to give, the first round has taken: from then on it is the best of each list
        training = refined or recipe.training_on(selections[0])
        last = trainings.train(f"round-{number}", training, selections[0], lists, last.checkpoint)
        done.append(last)
    return _keep_best(out / "actor", done) if recipe.trains_several() else last.checkpoint


def lists_directory(out: Path, number: int) -> Path:
    """Where the lists of a round are: of the first, where they are without rounds."""
    return out / "pseudo-bin" if number == 1 else out / f"round-{number}" / "pseudo-bin"


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
