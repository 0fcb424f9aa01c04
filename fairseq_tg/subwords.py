"""How data was made of text: tokenizers and subword models, by fairseq's names."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Dict, List, Mapping, Optional, Sequence

from fairseq_tg.arguments import option
from fairseq_tg.tokenizers import HELP, USUAL

#: SentencePiece's, of the beginning of a word
WORD_START = "\u2581"
#: Those of fairseq's --bpe that marks join, and what joins them
_JOINED = {"sentencepiece": "sentencepiece", "subword_nmt": "subword_nmt", "fastbpe": "subword_nmt"}
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
    sentencepiece_model: Optional[str] = option("file for --bpe sentencepiece or byte_bpe", None)
    bpe_codes: Optional[str] = option("file for --bpe subword_nmt or fastbpe", None)
    sacrebleu_tokenizer: Optional[str] = option(HELP, None)

    def given(self) -> Dict[str, str]:
        """What is not as usual: 13a that is asked for is what there is without."""
        usual = (None, USUAL)
        return {name: value for name, value in asdict(self).items() if value not in usual}

    def flags(self, source_lang: str, target_lang: str) -> List[str]:
        """For fairseq-generate, whose tokenizer has to know the language too."""
        languages = {"source_lang": source_lang, "target_lang": target_lang} if self.tokenizer else {}
        tokenizers = {"tokenizer": self.tokenizer, "sacrebleu_tokenizer": self.sacrebleu_tokenizer}
        return _as_flags({**tokenizers, **self.subword_options(), **languages})

    def subword_options(self) -> Dict[str, str]:
        """Those of --bpe, by fairseq's names. It knows of the files only with it, and of one by another name."""
        if self.bpe is None:
            return {}
        model = "sentencepiece_model_path" if self.bpe == "byte_bpe" else "sentencepiece_model"
        given = {"bpe": self.bpe, model: self.sentencepiece_model, "bpe_codes": self.bpe_codes}
        return {name: value for name, value in given.items() if value is not None}

    def validation_flags(self, symbols: Sequence[str], language: str) -> List[str]:
        """For fairseq-train --eval-bleu, which joins subwords by their marks; what has none, --bpe decodes."""
        flags = ["--eval-bleu-detok", self.tokenizer or "space"]
        if self.tokenizer:
            flags += ["--eval-bleu-detok-args", json.dumps({"target_lang": language})]
        flags += _as_flags({"sacrebleu_tokenizer": self.sacrebleu_tokenizer})
        if self.bpe is not None and self.bpe not in _JOINED:
            return flags + _as_flags(self.subword_options())
        subwords = guess_subwords(symbols) if self.bpe is None else _JOINED[self.bpe]
        return flags + (["--eval-bleu-remove-bpe", subwords] if subwords else [])


def _as_flags(options: Mapping[str, Optional[str]]) -> List[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]
