"""Objectives: against the libraries they come from, and at the edges."""

from __future__ import annotations

import math

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_tg.errors import UserError
from fairseq_tg.objectives import OBJECTIVES, get_objective, score_hypothesis, score_list, score_pairs

HYPOTHESIS = "The cat sat on the mat , and slept ."
REFERENCE = "A cat is sitting on the mat and sleeps ."
ALL = pytest.mark.parametrize("name", OBJECTIVES.names())


def explode(hypothesis: str, reference: str) -> float:
    raise RuntimeError("boom")


def not_a_number(hypothesis: str, reference: str) -> float:
    return math.nan


def shorter_is_better(hypothesis: str, reference: str) -> float:
    return -len(hypothesis)


def test_sacrebleus_own_functions_agree():
    expected = {
        "sbleu": sacrebleu.sentence_bleu(HYPOTHESIS, [REFERENCE], use_effective_order=True).score,
        "chrf": sacrebleu.sentence_chrf(HYPOTHESIS, [REFERENCE]).score,
        "ter": -sacrebleu.sentence_ter(HYPOTHESIS, [REFERENCE]).score,
    }
    for name, value in expected.items():
        assert get_objective(name).score(HYPOTHESIS, REFERENCE) == pytest.approx(value)


WORDS = st.lists(st.sampled_from(["a", "b", "cat", "sat.", "the", "1,5", "&amp;", "(x)"]), max_size=9).map(" ".join)


@settings(deadline=None)
@given(texts=st.lists(WORDS, min_size=1, max_size=6))
def test_all_pairs_at_once_are_the_same_scores(texts):
    """To the bit: a choice by them is the same."""
    for name in ("sbleu", "sbleu+1", "sbleu+2", "chrf"):
        objective = get_objective(name)
        assert objective.score_pairs(texts) == [[objective.score(a, b) for b in texts] for a in texts], name


TEXTS = st.text(st.sampled_from("aB1 9.,-\n\t\u00a0\u2028&;<>()'\"ü中quotamplgskied"), max_size=30) | WORDS


@settings(deadline=None)
@given(texts=st.lists(TEXTS, max_size=6), reference=TEXTS)
def test_a_list_at_once_has_the_same_scores(texts, reference):
    """Likewise: words are looked at by themselves there, and sacreBLEU looks at lines."""
    for name in ("sbleu", "sbleu+2"):
        objective = get_objective(name)
        expected = [objective.score(text, reference) for text in texts]
        assert objective.score_list(texts, reference) == expected == score_list(objective, texts, reference, 0), name


def test_a_list_of_an_objective_that_scores_one_by_one():
    texts = ["a b", "a", "c d e"]
    for name in ("chrf", "tests.unit.test_objectives:shorter_is_better"):
        objective = get_objective(name)
        assert score_list(objective, texts, "a b", 0) == [objective.score(text, "a b") for text in texts]


@pytest.mark.parametrize("name", ["ter", "tests.unit.test_objectives:shorter_is_better"])
def test_pairs_one_by_one(name):
    objective = get_objective(name)
    texts = ["a b", "a", "c d e"]
    for i, row in enumerate(score_pairs(objective, texts, 0)):
        assert all(value == objective.score(texts[i], texts[j]) for j, value in enumerate(row) if i != j)


def test_known_values():
    assert get_objective("sbleu").score("a b c d", "a b c d") == pytest.approx(100)
    # precisions 3/4, 2/3, 1/2 and, smoothed, 1/2 of 1/1
    assert get_objective("sbleu").score("a b c x", "a b c d") == pytest.approx(
        100 * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25
    )
    # precisions 3/4 and, each with one added, 3/4, 2/3 and 1/2; 4 words for a reference that counts 6
    assert get_objective("sbleu+2").score("a b c x", "a b c d") == pytest.approx(
        100 * (3 / 4 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25 * math.exp(1 - 6 / 4)
    )
    assert get_objective("ter").score("a b c x", "a b c d") == pytest.approx(-25)
    # two of two unigrams match in one chunk: F 1, penalty 0.5 * (1/2)^3
    assert get_objective("meteor").score("a b", "a b") == pytest.approx(1 - 0.5 * 0.125)
    # "walks" and "walking" match by their stem
    assert get_objective("meteor").score("he walks", "he walking") == pytest.approx(1 - 0.5 * 0.125)
    # each of 4 different reference words carries log2(4) = 2 bits; no n-gram of higher order tells more
    assert get_objective("nist").score("a b c d", "a b c d") == pytest.approx(2.0)


def test_of_equal_matches_the_longer():
    reference = "two young men are outside near many bushes ."
    short, long = "two young men are outside near bushes .", "two young men are outside near a lot of bushes ."
    assert get_objective("sbleu").score(short, reference) > get_objective("sbleu").score(long, reference)
    assert get_objective("sbleu+2").score(short, reference) < get_objective("sbleu+2").score(long, reference)


@ALL
def test_a_perfect_translation_is_the_best(name):
    objective = get_objective(name)
    perfect = objective.score(REFERENCE, REFERENCE)
    assert perfect > objective.score(HYPOTHESIS, REFERENCE) > objective.score("completely different words", REFERENCE)


@ALL
@settings(max_examples=60, deadline=None)
@given(hypothesis=st.text(max_size=40), reference=st.text(max_size=40))
def test_any_text_gives_a_number(name, hypothesis, reference):
    objective = get_objective(name)
    value = score_hypothesis(objective, hypothesis, reference, 0)
    assert math.isfinite(value) and value == objective.score(hypothesis, reference)


@ALL
@pytest.mark.parametrize("pair", [("", ""), ("", "a b"), ("a b", ""), (" ", " ")])
def test_empty_text(name, pair):
    assert math.isfinite(get_objective(name).score(*pair))


@ALL
def test_signatures_say_what_was_used(name):
    signature = get_objective(name).signature
    assert "version:" in signature and ("tok:" in signature or name == "chrf")


def test_meteor_records_its_matches():
    assert "match:exact+stem" in get_objective("meteor").signature


def test_a_function_of_the_users():
    objective = get_objective("tests.unit.test_objectives:shorter_is_better")
    assert objective.score("four", "") == -4 and "user-defined" in objective.signature


@pytest.mark.parametrize(
    "name, message",
    [
        ("bleu", "--objective takes one of sbleu, sbleu\\+1, sbleu\\+2, chrf, ter, meteor, nist"),
        ("no.such.module:function", "No module named 'no'"),
        ("tests.unit.test_objectives:missing", "has no attribute 'missing'"),
        ("tests.unit.test_objectives:REFERENCE", "is no function"),
        (":", "importable pkg.module:function"),
    ],
)
def test_unknown_objectives(name, message):
    with pytest.raises(UserError, match=message):
        get_objective(name)


@pytest.mark.parametrize("function, problem", [("explode", "raised RuntimeError: boom"), ("not_a_number", "gave nan")])
def test_an_objective_that_fails_shows_the_sentence(function, problem):
    objective = get_objective(f"tests.unit.test_objectives:{function}")
    with pytest.raises(UserError, match=rf"{problem} for sentence 17, hypothesis 'x y', reference 'z'"):
        score_hypothesis(objective, "x y", "z", 17)
