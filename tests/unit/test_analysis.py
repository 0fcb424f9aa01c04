"""Scores, likelihoods, norms and examples, on values worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fairseq_tg.evaluation.examples import choose_examples, differing_words
from fairseq_tg.evaluation.likelihood import word_likelihood
from fairseq_tg.evaluation.measure import Spread, Turns, latency_table, ratio, take_turns
from fairseq_tg.evaluation.norms import read_norms
from fairseq_tg.evaluation.scores import recovered_share, score_systems
from fairseq_tg.evaluation.subset import label_actors
from tests.conftest import BASES, Workspace

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


def test_share_of_the_beam_gain() -> None:
    assert recovered_share(30.0, 32.0, 31.0) == 0.5
    assert recovered_share(30.0, 32.0, 33.0) == 1.5
    assert recovered_share(30.0, 29.0, 33.0) is None


@pytest.mark.parametrize("base", BASES)
def test_word_likelihood_is_the_papers(workspace: Workspace, base: str) -> None:
    """1/T sum_t P(y_t | y_<t, x), one sentence and one token at a time."""
    model, task = workspace.base_model(base).eval(), workspace.task()
    sources, targets = [[5, 6, 7, 2], [8, 2], [9, 5, 2]], [[10, 11, 2], [12, 13, 14, 15, 2], [2]]
    expected = []
    for source, target in zip(sources, targets):
        arguments = {"src_tokens": torch.tensor([source]), "src_lengths": torch.tensor([len(source)])}
        with torch.no_grad():
            output = model(**arguments, prev_output_tokens=torch.tensor([[2, *target[:-1]]]))
        probabilities = output[0][0].softmax(-1)
        expected.append(sum(probabilities[t, token].item() for t, token in enumerate(target)) / len(target))
    assert word_likelihood(model, task, sources, targets) == pytest.approx(100 * sum(expected) / 3, rel=1e-4)


def test_norms_are_read_from_a_log(tmp_path: Path) -> None:
    names = ("num_updates", "action_norm", "state_norm", "context_norm")
    rows = ((10, 0.5, 9, 3), (20, 0.7, 9, 3), (10, 0.6, 9, 3))
    entries = [{f"valid_{name}": str(value) for name, value in zip(names, row)} for row in rows]
    lines = [f"2026 | INFO | valid | {json.dumps(entry)}" for entry in entries]
    (tmp_path / "log").write_text("\n".join(["nothing", '{"valid_action_norm": "cut', *lines]))
    norms = read_norms(tmp_path / "log")
    assert [(at.updates, at.action) for at in norms] == [(10, 0.6), (20, 0.7)]
    assert read_norms(tmp_path / "none") == []


def test_examples_are_the_largest_gains_and_losses() -> None:
    references = ["a b c d e", "f g h i j", "k l m n o", "p q r s t"]
    greedy = ["a b c d x", "f g h i j", "x x x x x", "p q r s t"]
    tg = ["a b c d e", "f g h i x", "k l m n o", "p q r s t"]
    helped, hurt = choose_examples(list("wxyz"), references, {"greedy": greedy, "tg": tg}, "tg")
    assert [example.index for example in helped] == [2, 0] and [example.index for example in hurt] == [1]
    assert helped[0].source == "y" and helped[0].outputs["tg"] == "k l m n o"


def test_words_that_differ_are_marked() -> None:
    assert differing_words("a new dog runs", "a dog runs") == [
        ("a", False), ("new", True), ("dog", False), ("runs", False)
    ]  # fmt: skip
    assert differing_words("", "a") == []


def test_turns_are_taken_in_changing_order_and_timed() -> None:
    order = []

    def system(name):
        return lambda batch: order.append(name) or [[5, 6, 2] for _ in batch]

    results = take_turns({"a": system("a"), "b": system("b")}, [[[7, 2]], [[8, 9, 2]]], 2, eos=2)
    assert "".join(order) == "ab" + "aabb" + "bbaa"  # a warm-up, then two turns
    assert results["a"].tokens == [4, 4] and results["a"].sentences == 2
    assert set(results["a"].latencies) == {2, 3}
    assert len(latency_table(results["a"])) >= 1


def test_ratios_are_of_turns() -> None:
    assert ratio(Turns([10, 30], [1.0, 1.0]), Turns([5, 5], [1.0, 1.0])) == Spread(4.0, 2.0, 6.0)


def test_labels_tell_checkpoints_apart() -> None:
    assert label_actors(["x/y.pt"]) == ["tg"]
    assert label_actors(["x/a.pt", "x/b.pt"]) == ["tg:a", "tg:b"]
    assert label_actors(["x/best.pt", "y/best.pt"]) == ["tg:x", "tg:y"]
