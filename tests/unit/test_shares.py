"""Shares of the beam's gain and their intervals."""

from __future__ import annotations

import random
from typing import Dict, List, Tuple

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from fairseq_tg.evaluation.advice import verdict
from fairseq_tg.evaluation.shares import Share, bleu_statistics, corpus_bleu, differences, recovered_shares

WORDS = ["the", "a", "dog", "cat", "man", "sees", "runs", "on", "in", "red", "blue", "big", "small", "house", "street"]


def spoiled(sentence: str, rate: float, generator: random.Random) -> str:
    return " ".join(generator.choice(WORDS) if generator.random() < rate else word for word in sentence.split())


def example(sentences: int, rates: Dict[str, float], seed: int = 1) -> Tuple[Dict[str, List[str]], List[str]]:
    generator = random.Random(seed)
    references = [" ".join(generator.choices(WORDS, k=generator.randint(6, 14))) for _ in range(sentences)]
    return {name: [spoiled(r, rate, generator) for r in references] for name, rate in rates.items()}, references


def test_corpus_bleu_is_sacrebleus() -> None:
    outputs, references = example(50, {"x": 0.3})
    found = corpus_bleu(bleu_statistics(outputs["x"], references).sum(axis=0))
    assert found == pytest.approx(BLEU().corpus_score(outputs["x"], [references]).score, abs=1e-9)


def test_a_share_is_that_of_the_gains_of_all_sets() -> None:
    outputs, references = example(300, {"greedy": 0.4, "beam 4": 0.3, "tg": 0.35})
    statistics = {name: bleu_statistics(output, references) for name, output in outputs.items()}
    sets = [range(100), range(100, 300)]
    gains = {"beam 4": 0.0, "tg": 0.0}
    for one in sets:
        bleu = {
            n: BLEU().corpus_score([o[i] for i in one], [[references[i] for i in one]]).score
            for n, o in outputs.items()
        }
        for name in gains:
            gains[name] += bleu[name] - bleu["greedy"]
    share = recovered_shares(statistics, sets, {"tg": ["tg"]})["tg"]
    assert share.gain == pytest.approx(gains["beam 4"]) and share.value == pytest.approx(gains["tg"] / gains["beam 4"])
    assert share.low < share.value < share.high and share.doubtful == 0.0
    assert recovered_shares(statistics, sets, {"tg": ["tg"]})["tg"] == share  # the same again


def test_a_difference_is_the_mean_over_sets_and_its_interval_finds_what_is_there() -> None:
    outputs, references = example(300, {"cont.": 0.3, "like": 0.3, "better": 0.15})
    statistics = {name: bleu_statistics(output, references) for name, output in outputs.items()}
    sets = [range(100), range(100, 300)]
    found = differences(statistics, sets, {n: [n] for n in ("like", "better", "cont.")}, ["cont."])
    means = {
        name: np.mean([corpus_bleu(each[np.asarray(one)].sum(axis=0)) for one in sets])
        for name, each in statistics.items()
    }
    for name, difference in found.items():
        assert difference.value == pytest.approx(means[name] - means["cont."])
    assert found["better"].low > 0 and found["like"].low < 0 < found["like"].high
    assert (found["cont."].low, found["cont."].high) == (0, 0)  # to itself
    one = differences({name: each[:1] for name, each in statistics.items()}, [range(1)], {"like": ["like"]}, ["cont."])[
        "like"
    ]
    assert one.low is None and one.high is None


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Systems whose share is 1 by construction: tg and beam are spoiled at the same rate."""
    covered = 0
    for seed in range(40):
        outputs, references = example(150, {"greedy": 0.45, "beam 4": 0.3, "tg": 0.3}, seed)
        statistics = {name: bleu_statistics(output, references) for name, output in outputs.items()}
        share = recovered_shares(statistics, [range(150)], {"tg": ["tg"]})["tg"]
        covered += share.low <= 1 <= share.high
    assert 34 <= covered <= 40


def test_a_set_of_one_sentence_is_no_sample_beside_others() -> None:
    outputs, references = example(101, {"greedy": 0.5, "beam 4": 0.3, "tg": 0.3})
    statistics = {name: bleu_statistics(output, references) for name, output in outputs.items()}
    groups = {"tg": ["tg"]}
    share = recovered_shares(statistics, [range(100), range(100, 101)], groups)["tg"]
    assert share.low is not None and share.low < share.high
    assert recovered_shares(statistics, [range(100, 101)], groups)["tg"].low is None


def test_more_sentences_make_it_narrower() -> None:
    outputs, references = example(800, {"greedy": 0.45, "beam 4": 0.3, "tg": 0.35})
    statistics = {name: bleu_statistics(output, references) for name, output in outputs.items()}
    few, many = (recovered_shares(statistics, [range(n)], {"tg": ["tg"]})["tg"] for n in (50, 800))
    assert many.high - many.low < 0.5 * (few.high - few.low)


def test_without_a_gain_there_is_no_share() -> None:
    outputs, references = example(40, {"greedy": 0.2, "beam 4": 0.4, "tg": 0.1})
    statistics = {name: bleu_statistics(output, references) for name, output in outputs.items()}
    share = recovered_shares(statistics, [range(40)], {"tg": ["tg"]})["tg"]
    assert share.value is None and share.gain < 0 and str(share) == "none: the beam gains nothing"
    one = recovered_shares({n: s[:1] for n, s in statistics.items()}, [range(1)], {"greedy": ["greedy"]})["greedy"]
    assert one.low is None


def test_doubtful_gains_are_said_to_be() -> None:
    outputs, references = example(30, {"greedy": 0.4, "beam 4": 0.38, "tg": 0.3}, seed=4)
    statistics = {name: bleu_statistics(output, references) for name, output in outputs.items()}
    share = recovered_shares(statistics, [range(30)], {"tg": ["tg"]})["tg"]
    assert isinstance(share, Share) and 0 < share.doubtful < 1
    assert np.isfinite([share.low, share.high]).all()


def test_the_mean_of_seeds_is_a_system_too() -> None:
    outputs, references = example(300, {"greedy": 0.4, "beam 4": 0.3, "a": 0.35, "b": 0.25, "c": 0.3})
    statistics = {name: bleu_statistics(output, references) for name, output in outputs.items()}
    sets = [range(100), range(100, 300)]
    groups = {"a": ["a"], "b": ["b"], "mean": ["a", "b"]}
    shares = recovered_shares(statistics, sets, groups)
    assert shares["mean"].value == pytest.approx((shares["a"].value + shares["b"].value) / 2)
    assert shares["a"].low < shares["mean"].low < shares["b"].low
    ways = differences(statistics, sets, groups, ["c"]), differences(statistics, sets, {"c": ["c"]}, groups["mean"])
    assert ways[0]["mean"].value == pytest.approx(-ways[1]["c"].value)
    assert ways[0]["mean"].low == pytest.approx(-ways[1]["c"].high)


def test_a_share_of_hardly_any_gain_says_so() -> None:
    sure, unsure = (Share(1.0, 0.5, 0.2, 0.8, doubtful) for doubtful in (0.0, 0.18))
    assert "samples" not in str(sure) and "18% of the samples have no gain" in str(unsure)
    assert "is not as good as beam 4" in verdict("tg", sure) and "cannot be said" in verdict("tg", unsure)
