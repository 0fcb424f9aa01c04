"""Two texts beside each other: which words differ."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import List, Tuple


def differing_words(text: str, other: str) -> List[Tuple[str, bool]]:
    """The words of a text, each with whether it differs from another text."""
    words = text.split()
    matcher = SequenceMatcher(None, other.split(), words, autojunk=False)
    marked = []
    for kind, _, _, start, end in matcher.get_opcodes():
        marked += [(word, kind != "equal") for word in words[start:end]]
    return marked
