"""A text in sentences, and those that are too long for a model in pieces."""

from __future__ import annotations

from typing import Any, List, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_tg.compiled import InputError
from fairseq_tg.compiled.pieces import encode_pieces
from fairseq_tg.sentences import halves, split_text
from fairseq_tg.serve.drafts import Draft


def sentences(text: str) -> List[str]:
    return [piece for piece, is_sentence in split_text(text) if is_sentence]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Ein Hund läuft. Zwei Hunde laufen.", ["Ein Hund läuft.", "Zwei Hunde laufen."]),
        ("Wie? So! Ach …  Gut.", ["Wie?", "So!", "Ach …", "Gut."]),
        ('Er sagte: "Ja." Dann ging er.', ['Er sagte: "Ja."', "Dann ging er."]),
        ("Am 3. Mai kam Dr. Meier.", ["Am 3. Mai kam Dr. Meier."]),
        ("J. R. Ewing kam z.B. Montag.", ["J. R. Ewing kam z.B. Montag."]),
        ("Es kostet 1.50 Euro. das ist klein.", ["Es kostet 1.50 Euro. das ist klein."]),
        ("你好。我是。", ["你好。", "我是。"]),
        ("eins\r\n\n  zwei \n", ["eins", "zwei"]),
        ("", []),
    ],
)
def test_sentences(text: str, expected: List[str]) -> None:
    assert sentences(text) == expected


@given(st.text(alphabet="aB1. !?\n\t\"'\u2028<>&/x-=", max_size=60))
@settings(max_examples=300, deadline=None)
def test_nothing_of_a_text_is_lost(text: str) -> None:
    assert "".join(piece for piece, _ in split_text(text)) == text
    draft = Draft.of(text, html=False)
    assert draft.fill(draft.sentences.__getitem__) == text


def test_a_sentence_that_is_too_long_is_cut_at_a_space() -> None:
    assert halves("aaaa bb cccc") == ("aaaa bb", " cccc")
    assert halves("aaaaaa") == ("aaa", "aaa")
    assert halves(halves("aaaa bbbb cccc dddd")[1]) == ("cccc", " dddd")


class Narrow:
    """A translator that takes two letters, and no "x" at all; translations have at most three."""

    def limit(self, source: List[int]) -> int:
        return 3

    def encode(self, sentence: str) -> List[int]:
        if "x" in sentence or len(sentence.strip()) > 2:
            raise InputError("too long")
        return list(map(ord, sentence.strip()))


def test_a_character_that_is_too_long_by_itself_is_left_out() -> None:
    pieces = encode_pieces(cast(Any, Narrow()), "ab xcd ef")
    assert ["".join(map(chr, piece)) for piece in pieces] == ["ab", "", "cd", "ef"]


def test_a_sentence_whose_translation_would_be_cut_is_cut_itself() -> None:
    class Wide(Narrow):
        def encode(self, sentence: str) -> List[int]:
            return list(map(ord, sentence.strip()))

    pieces = encode_pieces(cast(Any, Wide()), "ab cd efg x")
    assert ["".join(map(chr, piece)) for piece in pieces] == ["ab", "cd", "e", "fg", "x"]
