"""How data was made of text: tokenizers and subword models, by fairseq's names."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Dict, List, Optional, Sequence

from fairseq_tg.arguments import option

#: SentencePiece's, of the beginning of a word
WORD_START = "\u2581"
_MARKS = {"sentencepiece": lambda symbol: symbol.startswith(WORD_START), "subword_nmt": lambda s: s.endswith("@@")}


def guess_subwords(symbols: Sequence[str]) -> Optional[str]:
    """Which subword model made the symbols of a dictionary, by their marks; None for words."""
    for name, is_subword in _MARKS.items():
        if sum(map(is_subword, symbols)) > len(symbols) / 20:
            return name
    return "sentencepiece" if WORD_START in symbols else None  # a model of characters has that mark once


def begins_word(subwords: Optional[str], before: str, symbol: str) -> bool:
    """Whether a word begins with `symbol`, which comes after the symbol `before`."""
    if subwords == "sentencepiece":
        return _MARKS[subwords](symbol)
    return subwords is None or not _MARKS[subwords](before)


@dataclass(frozen=True)
class WordOptions:
    """How the data was made of text, as fairseq-generate is told: scores are of that text."""

    tokenizer: Optional[str] = option("what the data was tokenised with, as moses", None)
    bpe: Optional[str] = option("fairseq's name of the subwords; by the marks of the symbols if not given", None)
    sentencepiece_model: Optional[str] = option("file for --bpe sentencepiece", None)
    bpe_codes: Optional[str] = option("file for --bpe subword_nmt or fastbpe", None)

    def given(self) -> Dict[str, str]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def flags(self, source_lang: str, target_lang: str) -> List[str]:
        """For fairseq-generate, whose tokenizer has to know the language too."""
        languages = {"source_lang": source_lang, "target_lang": target_lang} if self.tokenizer else {}
        given = self.given()
        if self.bpe is None:  # fairseq knows of such files only with it
            given = {name: value for name, value in given.items() if name == "tokenizer"}
        named = {**given, **languages}.items()
        return [f"--{name.replace('_', '-')}={value}" for name, value in named]

    def validation_flags(self, symbols: Sequence[str], language: str) -> List[str]:
        """For fairseq-train --eval-bleu, which joins subwords by their marks only."""
        flags = ["--eval-bleu-detok", self.tokenizer or "space"]
        if self.tokenizer:
            flags += ["--eval-bleu-detok-args", json.dumps({"target_lang": language})]
        subwords = guess_subwords(symbols)
        return flags + (["--eval-bleu-remove-bpe", subwords] if subwords else [])
