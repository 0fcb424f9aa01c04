"""What a report says in words follows from the interval, not from the share alone."""

import pytest

from fairseq_tg.evaluation.advice import advise, compare, verdict
from fairseq_tg.evaluation.shares import Difference, Share


@pytest.mark.parametrize(
    "low, high, said",
    [
        (1.05, 1.9, "better than beam 4"),
        (0.6, 1.4, "cannot be told apart"),
        (0.2, 0.9, "not as good as beam 4"),
        (-0.9, -0.1, "worse than greedy search"),
        (-0.4, 2.2, "too few"),
    ],
)
def test_the_verdict_is_that_of_the_interval(low: float, high: float, said: str) -> None:
    assert said in verdict("tg", Share(2.0, 1.2, low, high))


def test_without_an_interval_nothing_is_claimed() -> None:
    assert "cannot be said" in verdict("tg", Share(2.0, 1.2))


@pytest.mark.parametrize(
    "low, high, said",
    [
        (0.1, 0.9, "+0.40 (+0.10 to +0.90) BLEU: it is better"),
        (-0.1, 0.9, "cannot be told apart"),
        (-0.9, -0.1, "worse"),
        (None, None, "too few"),
    ],
)
def test_two_systems_are_told_apart_by_the_interval(low: float, high: float, said: str) -> None:
    assert said in compare("tg", "cont.", Difference(0.4, low, high))


def test_advice_is_for_those_who_got_little() -> None:
    assert advise(Share(2.0, 1.0, 0.5, 1.5), 0.9) == []
    assert advise(Share(0.0), 0.9) == []
    little = Share(2.0, 0.4, 0.1, 0.9)
    assert "short (0.950" in advise(little, 0.95)[0]
    assert "long (1.050" in advise(little, 1.05)[0]
    assert "--objective" not in advise(little, 1.0)[0]
    assert "--rounds 3" in advise(little, 1.0)[0]
