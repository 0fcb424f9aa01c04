"""Which words of a source the words of its translation came from, by the decoder's attention."""

from __future__ import annotations

import re
from typing import List, Optional, Sequence, Tuple

import numpy as np

from fairseq_tg.compiled.translator import Translator

Span = Tuple[int, int]

#: A word, a sign, or a character of a script without spaces between words
_ALONE = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_UNIT = re.compile(rf"[{_ALONE}]|[^\W{_ALONE}]+(?:['\u2019-][^\W{_ALONE}]+)*|[^\w\s]")


def units(text: str) -> List[Span]:
    """Where the words and signs of a text are; together they are all that is no space."""
    return [found.span() for found in _UNIT.finditer(text)]


def align(
    translator: Translator,
    line: str,
    output: str,
    target: Sequence[int],
    actors: bool = True,
    actor: Optional[str] = None,
) -> np.ndarray:
    """Units of a translation x units of its source: where each came from, in shares of 1.

    Args:
        translator: what made the translation.
        line: the source.
        output: the translation, and target: its token ids, ending with eos.
        actors: whether they acted, and actor: which ones, of several.
    """
    source = translator.encode(line)
    traced = translator.trace(source, target, actors, likeliest=1, actor=actor)
    attention = traced.attention.mean(axis=1)  # tokens x source tokens
    subwords = translator.segment(line)
    before = [""] * len(translator.marks.source)  # marks of languages; behind the line comes its end
    behind = [""] * (len(source) - len(before) - len(subwords))
    here, there = _shares(translator.shown(target), output), _shares([*before, *subwords, *behind], line)
    found = here.T @ attention @ there + 1e-9
    return found / found.sum(axis=1, keepdims=True)


def _shares(tokens: Sequence[str], text: str) -> np.ndarray:
    """Tokens x units of a text: how much of each token lies in each unit.

    A place is a number of characters that are no spaces. If subwords were normalized, there are more or fewer of them
    in the tokens than in the text, and places are only about right.
    """
    surfaces = [token.removesuffix("@@").replace("\u2581", "") for token in tokens]
    ends = np.cumsum([0, *map(len, surfaces)], dtype=float)
    places = np.cumsum([0, *(not character.isspace() for character in text)], dtype=float)
    ends *= places[-1] / max(1.0, ends[-1])
    spans = np.array(units(text), dtype=int).reshape(-1, 2)
    starts, stops = places[spans[:, 0]], places[spans[:, 1]]
    overlap = np.minimum(ends[1:, None], stops) - np.maximum(ends[:-1, None], starts)
    return np.maximum(overlap, 0) / np.maximum(ends[1:] - ends[:-1], 1e-9)[:, None]
