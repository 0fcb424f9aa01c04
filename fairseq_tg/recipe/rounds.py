"""Rounds: lists of what the model with its actors finds, training on from these actors, and the best round at the end.

The first round is the paper's, once for every selection that is tried, and then, if there is to be one, a second
training on whole lists (see `Refinement`). In each that follows, the lists are those of the last round, but for the
sentences whose greedy translation the actors have changed since: these are searched again, with the actors. It goes on
from the last actors (after the first trainings, the best of these), by the second training, if there is one, else by
the first, on what the first selection chooses, by the objective that the length of their translations asks for, if none
is given.

After several first trainings the next round goes on from the one that is best with a beam: what greedy search then
learns is to find by itself what that model finds with one. (By greedy search, a model that has learned more may be
behind one that has learned nothing but to search.)
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from fairseq_tg.corpus.directory import hash_file
from fairseq_tg.evaluation.report import TRAIN_LOG
from fairseq_tg.files import replacing
from fairseq_tg.loading.checkpoints import load_checkpoint
from fairseq_tg.models.record import Base
from fairseq_tg.recipe.corpora import build_corpus, corpus_hash
from fairseq_tg.recipe.lengths import validate, with_objective
from fairseq_tg.recipe.options import AUTO, TRIED, Recipe, Training
from fairseq_tg.recipe.stages import Stage, recorded_settings
from fairseq_tg.recipe.training import BEST, Job, check_same_base
from fairseq_tg.tasks.loading import load_model

#: In the stamp of OUT/actor: the checkpoints of which it has the best
BEST_OF = "best of rounds"
#: With which a model is tried that a round is to go on from
BEAM = 4
#: What the first training is called: of rounds without a second training, with one, and of several selections
FIRST = ("round-1", "first", TRIED[0])


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
    several: bool  # whether there is a best of several trainings

    def directory(self, name: str) -> Path:
        return self.out / name / "actor" if self.several else self.out / "actor"

    def take_over(self, name: str, lists: Lists) -> None:
        """Let the first training be the one that a run with other --rounds, --selection or --refine has begun, if it is
        the same but for its place; refuse now what OUT/actor could not be the place of the best in."""
        first = self._job(name, self.recipe.training_on(self.recipe.selections()[0]), lists).stage()
        for other in (self.out / "actor", *(self.out / other / "actor" for other in FIRST)):
            first.take_over(other)
        if self.several:
            _best_of(self.out / "actor", []).is_done()

    def train(self, name: str, training: Training, selection: str, lists: Lists, start: Optional[Path]) -> Trained:
        """Train on what a selection chooses of lists, from fresh actors or on from a checkpoint's."""
        recipe, chosen = self.recipe, lists
        if selection != recipe.selections()[0]:  # the same lists, chosen from otherwise
            data = lists.directory.with_name(f"pseudo-{selection}")
            manifest = build_corpus(recipe, self.task, data, selection=selection, kbest_from=lists.directory)
            chosen = Lists(data, manifest)
        job = self._job(name, training, chosen, start)
        print(f"== 2 of 3: {training.actor} actors by {training.criterion}, on {selection}, {job.directory}")
        checkpoint = job.run(recipe.workers)
        found = Trained(validation_score(checkpoint), checkpoint)
        if self.several:
            print(f"{name}: greedy BLEU on the validation set {found.score:.2f}")
        return found

    def beam_score(self, trained: Trained) -> float:
        """BLEU on the validation set with a beam."""
        model, _ = load_model(str(trained.checkpoint), self.recipe.data, languages=self.recipe.languages)
        found = validate(self.recipe, model, self.task, str(trained.checkpoint), BEAM).bleu
        print(f"{trained.checkpoint.parent.parent.name}: BLEU on the validation set {found:.2f} with beam {BEAM}")
        return found

    def _job(self, name: str, training: Training, lists: Lists, start: Optional[Path] = None) -> Job:
        base, record, text = self.recipe.base, self.base, self.recipe.text
        corpus, directory = corpus_hash(lists.manifest), self.directory(name)
        return Job(training, base, record, self.task, lists.directory, corpus, directory, text=text, start=start)

    def lists(self, number: int, before: Optional[Lists] = None, model: Optional[Path] = None) -> Lists:
        """Those of the base or, in a later round, of a model with actors, where these have changed something."""
        directory = lists_directory(self.out, number)
        print(f"== 1 of 3: the oracle corpus, {directory}")
        if before is None or model is None:
            manifest = build_corpus(self.recipe, self.task, directory)
            check_same_base(self.recipe.base, self.base, manifest["recipe"]["base"][0])
            return Lists(directory, manifest)
        recipe = self.recipe
        if self.by_length:
            loaded = load_model(str(model), recipe.data, languages=recipe.languages)
            recipe = with_objective(replace(recipe, objective=AUTO), *loaded)
        manifest = build_corpus(recipe, self.task, directory, model, kbest_refresh=before.directory)
        counts = manifest["counts"]
        print(f"{counts['sentences'] - counts['kept']:,} of {counts['sentences']:,} sentences were searched again")
        return Lists(directory, manifest)


def train_in_rounds(
    recipe: Recipe,
    base: Base,
    task: Any,
    out: Path,
    by_length: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Path:
    """Do what is not done of all trainings; gives the best one's checkpoint, OUT/actor/checkpoint_best.pt.

    Args:
        by_length: the recipe's objective follows from the length of the base's translations, so that further rounds,
            which begin with others, have one of their own.
        check: called when the first lists are there, before anything is trained.
    """
    refined, selections = recipe.refined(), recipe.selections()
    several = recipe.trains_several() or BEST_OF in recorded_settings(out / "actor")
    trainings = Trainings(recipe, base, task, out, by_length, several)
    lists = trainings.lists(1)
    names = selections if len(selections) > 1 else FIRST[:1] if refined is None else FIRST[1:2]
    check()
    trainings.take_over(names[0], lists)
    done = [trainings.train(name, recipe.training_on(of), of, lists, None) for name, of in zip(names, selections)]
    goes_on = (recipe.rounds or 1) > 1 or refined is not None
    last = max(done, key=lambda one: trainings.beam_score(one) if goes_on and len(done) > 1 else one.score)
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
    return _keep_best(out / "actor", done) if several else last.checkpoint


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
    stage = _best_of(directory, [hash_file(one.checkpoint) for one in done])
    if not stage.is_done():
        with stage.doing([BEST, TRAIN_LOG]):
            for name in (BEST, TRAIN_LOG):
                with replacing(str(directory / name)) as temporary:
                    shutil.copyfile(source.with_name(name), temporary)
    return directory / BEST


def _best_of(directory: Path, hashes: List[str]) -> Stage:
    return Stage(directory, {BEST_OF: hashes}, follows=[BEST_OF])
