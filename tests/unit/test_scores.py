"""Scores of systems and shares of a gain."""

from __future__ import annotations

import pytest

from fairseq_tg.evaluation.scores import score_systems

REFERENCES = [f"the {word} dog number {i} runs over the green grass" for i, word in enumerate("abcdefghijklmnopqrst")]


def test_better_outputs_score_better_and_significantly() -> None:
    worse = [reference.replace("dog", "cat").replace("over", "to") for reference in REFERENCES]
    outputs = {"greedy": worse, "beam 4": REFERENCES, "tg": REFERENCES}
    scores = score_systems(outputs, REFERENCES, ["greedy", "beam 4"])
    assert scores.values["tg"]["BLEU"] == pytest.approx(100) and scores.values["tg"]["TER"] == 0
    assert scores.values["greedy"]["BLEU"] < 60 and scores.values["greedy"]["TER"] > 10
    p = scores.p_values["greedy"]["tg"]
    assert all(value is not None and value < 0.01 for value in p.values()) and set(p) == {"BLEU", "chrF", "TER"}
    assert all((value or 0) > 0.5 for value in scores.p_values["beam 4"]["tg"].values())


def test_equal_scores_do_not_differ_significantly() -> None:
    """Of a base that has learned nothing: BLEU of 0, whatever it says."""
    outputs = {"greedy": ["nothing"] * 20, "tg": ["something else"] * 20}
    scores = score_systems(outputs, REFERENCES, ["greedy"])
    assert scores.values["tg"]["BLEU"] == scores.values["greedy"]["BLEU"] == 0
    assert scores.p_values["greedy"]["tg"]["BLEU"] == 1
