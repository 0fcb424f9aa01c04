"""Examples, chosen by a rule."""

from __future__ import annotations

from fairseq_tg.differences import differing_words
from fairseq_tg.evaluation.examples import choose_examples


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
