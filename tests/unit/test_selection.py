"""Selections: pure functions of scores."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_tg.corpus.selection import SELECTIONS, Scored, best_first, expected_scores, get_selection
from fairseq_tg.errors import UserError

SCORES = st.lists(st.floats(-100, 100) | st.sampled_from([0.0, 1.0]), min_size=1, max_size=12)


@pytest.mark.parametrize(
    "name, chosen",
    [
        ("top1", [1]),
        ("full", [1, 2, 0, 3]),
        ("thd", [1, 2]),
        ("comb", [1]),
        ("topn:3", [1, 2, 0]),
        ("topn:9", [1, 2, 0, 3]),
    ],
)
def test_selections(name, chosen):
    scored = Scored(scores=[2.0, 5.0, 5.0, 1.0], greedy_score=2.0)  # ties go to the lower rank
    assert get_selection(name).choose(scored) == chosen


def test_only_comb_adds_the_reference():
    assert [name for name in SELECTIONS.names() if name != "topn" and get_selection(name).adds_gold] == ["comb"]


def test_thd_may_choose_nothing():
    assert get_selection("thd").choose(Scored([1.0, 2.0], greedy_score=2.0)) == []


@given(scores=SCORES)
def test_best_first_is_a_stable_order(scores):
    order = best_first(scores)
    assert sorted(order) == list(range(len(scores)))
    for a, b in itertools.pairwise(order):
        assert scores[a] > scores[b] or (scores[a] == scores[b] and a < b)


@given(scores=SCORES, count=st.integers(1, 12))
def test_topn_is_the_beginning_of_full(scores, count):
    scored = Scored(scores)
    assert get_selection(f"topn:{count}").choose(scored) == get_selection("full").choose(scored)[:count]
    assert get_selection("top1").choose(scored) == get_selection("topn:1").choose(scored)


def overlap(a: str, b: str) -> float:
    return len(set(a.split()) & set(b.split()))


def test_mbr_takes_the_middle_of_the_crowd():
    texts = ["x y", "a b c", "a b d", "a b"]
    expected = expected_scores([0.0, -1.0, -1.0, -1.0], [[overlap(a, b) for b in texts] for a in texts])
    assert best_first(expected)[0] in (1, 2, 3) and expected[0] == 0
    # rank 1 against the others: nothing in common with x y (weight 1), two words with each of the rest (weight 1/e)
    assert expected[1] == pytest.approx((2 + 2) * 0.36788 / (1 + 2 * 0.36788), rel=1e-4)


def test_mbr_of_one():
    assert expected_scores([-3.0], [[100.0]]) == [0.0]


@pytest.mark.parametrize(
    "name, message",
    [
        ("best", "unknown selection 'best': --selection takes one of top1, full, thd, comb, topn, mbr"),
        ("topn", "topn:: give a number"),
        ("topn:0", "topn:0: give a number"),
        ("topn:x", "topn:x: give a number"),
        ("top1:3", "top1 takes no argument"),
    ],
)
def test_unknown_selections(name, message):
    with pytest.raises(UserError, match=message):
        get_selection(name)
