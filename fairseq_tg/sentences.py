"""A text cut into its sentences and what stands between them."""

from __future__ import annotations

import re
from typing import List, Tuple

Piece = Tuple[str, bool]  # and whether it is to be translated

#: A sentence's end: its mark, closing quotes and brackets, a space, and something that a sentence begins with
_END = re.compile(
    r"""[.!?…]["'\u201d\u2019»)\]]*(\s+)(?=["'\u201c\u2018\u201e«¿¡(\[]*[^\W_])|(?<=[\u3002\uff01\uff1f])\s*(?=[^\W_])"""
)
#: Characters of what is looked at for being an abbreviation
LONGEST = 20
#: No ends: initials, ordinals of German (the 3. of May) and what is abbreviated in many languages
_ABBREVIATIONS = "Dr|Prof|Mr|Mrs|Ms|St|Nr|No|bzw|vgl|ca|Abb|Bd|vs|Jan|Feb|Aug|Sept|Okt|Oct|Nov|Dez|Dec"
_ABBREVIATION = re.compile(rf"(?:^|[\s(\[\"'\u201e\u201c«])(?:[^\W\d_](?:\.[^\W\d_])*|\d+|{_ABBREVIATIONS})\.$")


def split_text(text: str) -> List[Piece]:
    """Sentences, and the white space between them and around lines, which is kept as it is."""
    pieces: List[Piece] = []
    for line in text.splitlines(keepends=True):
        sentences = line.strip()
        start = line.find(sentences)
        for space, content in ((line[:start], sentences), (line[start + len(sentences) :], "")):
            pieces += [(space, False)] if space else []
            pieces += _sentences(content) if content else []
    # a line of dashes, say, stays one
    return [(piece, is_sentence and any(map(str.isalnum, piece))) for piece, is_sentence in pieces]


def _sentences(line: str) -> List[Piece]:
    pieces: List[Piece] = []
    start = 0
    for end in _END.finditer(line):
        gap = end.start() if end.group(1) is None else end.start(1)
        first = next(character for character in line[end.end() :] if character.isalnum())
        if end.group(1) is not None and (first.islower() or _ABBREVIATION.search(line, max(start, gap - LONGEST), gap)):
            continue
        pieces.append((line[start:gap], True))
        pieces += [(line[gap : end.end()], False)] if gap < end.end() else []
        start = end.end()
    return [*pieces, (line[start:], True)]


def halves(sentence: str) -> Tuple[str, str]:
    """A sentence that is too long for a model, cut at the space nearest to its middle, or in the middle."""
    sentence = sentence.strip()
    middle = len(sentence) // 2
    spaces = [match.start() for match in re.finditer(r"\s", sentence)]
    at = min(spaces, key=lambda place: abs(place - middle)) if spaces else middle
    return sentence[:at], sentence[at:]
