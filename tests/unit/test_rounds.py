"""A run that is started again with other rounds or another selection: what is trained already is not trained again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, List

import pytest

from fairseq_tg.corpus.directory import hash_file
from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.report import TRAIN_LOG
from fairseq_tg.recipe import rounds
from fairseq_tg.recipe.options import Recipe, Refinement, Training
from fairseq_tg.recipe.training import BEST, Job

TASK = SimpleNamespace(marks=())
BASE: Any = SimpleNamespace(family="lstm", fingerprint="of the base")
ONE = Recipe(data="data", base="base.pt", out="out", rounds=1, selection="top1", objective="sbleu")
TWO = replace(ONE, rounds=2)
AUTO = replace(TWO, selection="auto")

Start = Callable[[Recipe], List[str]]


@pytest.fixture
def corpus_base() -> List[str]:
    """The fingerprint that a build finds."""
    return ["of the base"]


@pytest.fixture
def start(tmp_path: Path, corpus_base: List[str], monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a run whose corpora and trainings are stages without work; gives where it has trained."""
    trained: List[str] = []

    def build_corpus(recipe: Recipe, task: Any, directory: Path, model: Any = None, **changes: Any) -> Any:
        counts = {"sentences": 3, "kept": 1}
        files = {"train": f"{changes.get('selection')} {model and model.read_text()}"}
        return {"files": files, "counts": counts, "recipe": {"base": corpus_base}}

    def train(job: Job, threads: int) -> Path:
        stage, directory = job.stage(), job.directory
        if not stage.is_done():
            with stage.doing([BEST, TRAIN_LOG]):
                trained.append(directory.parent.name)
                (directory / BEST).write_text(f"{stage.settings}")
                (directory / TRAIN_LOG).write_text("log")
        return directory / BEST

    def begin(recipe: Recipe) -> List[str]:
        trained.clear()
        best = rounds.train_in_rounds(recipe, BASE, TASK, tmp_path)
        assert best == tmp_path / "actor" / BEST and best.is_file()
        return list(trained)

    monkeypatch.setattr(rounds, "build_corpus", build_corpus)
    monkeypatch.setattr(Job, "run", train)
    monkeypatch.setattr(rounds, "validation_score", lambda path: len(path.read_text()))
    monkeypatch.setattr(rounds.Trainings, "beam_score", lambda self, one: one.score)
    return begin


@pytest.mark.parametrize(
    "before, after, more",
    [
        (ONE, TWO, ["round-2"]),
        (TWO, ONE, []),
        (TWO, replace(ONE, rounds=3), ["round-3"]),
        (ONE, AUTO, ["comb", "round-2"]),
        (AUTO, replace(AUTO, rounds=1), []),
        (replace(AUTO, rounds=1), ONE, []),
        (ONE, replace(ONE, refinement=Refinement(refine="actor_risk")), ["round-1"]),
    ],
)
def test_what_is_trained_is_not_trained_again(
    start: Start, tmp_path: Path, before: Recipe, after: Recipe, more: List[str]
) -> None:
    start(before)
    first = next(path for path in tmp_path.rglob(BEST) if "start" not in path.read_text()).read_bytes()
    assert start(after) == more and start(after) == []
    assert any(path.read_bytes() == first for path in tmp_path.rglob(BEST))


def test_another_training_in_the_place_of_the_best_is_refused_before_any_other(start: Start) -> None:
    start(replace(ONE, training=Training(seed=1)))
    for recipe in (ONE, TWO, AUTO):
        with pytest.raises(UserError, match=r"actor' was begun with other settings \(.*"):
            assert start(replace(recipe, training=Training(seed=2))) == "refused"
    assert start(ONE) == []
    start(replace(ONE, refinement=Refinement(refine="actor_risk")))
    with pytest.raises(UserError, match=r"round-1/actor' was begun with other settings \(.*actor_risk"):
        assert start(ONE) == "refused"


def test_a_base_that_changes_meanwhile_is_noticed(start: Start, corpus_base: List[str]) -> None:
    """As a checkpoint_last.pt does whose own training is still under way."""
    corpus_base[0] = "of an update more"
    with pytest.raises(UserError, match=r"'base.pt' has changed meanwhile: give a copy that stays as it is"):
        start(ONE)


def test_the_best_is_where_it_is_promised_whatever_came_before(start: Start, tmp_path: Path) -> None:
    """And it is that of the rounds that are asked for."""
    wanted = {}
    for number in (1, 2, 3):
        start(replace(ONE, rounds=number))
        wanted[number] = (tmp_path / "actor" / BEST).read_bytes()
    for number in (2, 1, 3, 1):
        start(replace(ONE, rounds=number))
        assert (tmp_path / "actor" / BEST).read_bytes() == wanted[number]


def test_a_round_goes_on_from_what_is_best_with_a_beam(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever is best by greedy search, which is what the best of all is chosen by."""
    for best in ("top1", "comb"):
        out = tmp_path / best
        monkeypatch.setattr(
            rounds.Trainings, "beam_score", lambda self, one, best=best: one.checkpoint.parent.parent.name == best
        )
        rounds.train_in_rounds(AUTO, BASE, TASK, out)
        settings = json.loads((out / "round-2" / "actor" / "stage.json").read_text())["settings"]
        assert settings["start"] == hash_file(out / best / "actor" / BEST)
