"""Which subword model made the symbols of a dictionary; the names are fairseq's, of --bpe and --remove-bpe."""

from __future__ import annotations

from typing import Optional, Sequence

_MARKS = {"sentencepiece": lambda symbol: symbol.startswith("\u2581"), "subword_nmt": lambda s: s.endswith("@@")}


def guess_subwords(symbols: Sequence[str]) -> Optional[str]:
    """By the marks of their symbols; None for words."""
    for name, is_subword in _MARKS.items():
        if sum(map(is_subword, symbols)) > len(symbols) / 20:
            return name
    return None
