"""The score of the chosen hypotheses, which fairseq-generate prints at the end: of words, by sacreBLEU."""

# Without `from __future__ import annotations`: fairseq wants the types of a config's fields, not their names.
from dataclasses import dataclass
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.scoring import register_scorer
from omegaconf import DictConfig, OmegaConf, open_dict
from sacrebleu.metrics import BLEU

from fairseq_tg.tokenizers import NONE, USUAL, divide_any

ORDER = 4


@dataclass
class WordBLEUConfig(FairseqDataclass):
    sacrebleu_tokenizer: Optional[str] = USUAL  # None: texts are of several languages


@register_scorer("word_bleu", dataclass=WordBLEUConfig)
class WordBLEU:
    """sacreBLEU with its signature, from sums: fairseq's own scorer of that name keeps every sentence in memory."""

    def __init__(self, cfg: Any = None) -> None:
        self._tokenizer = cfg.sacrebleu_tokenizer if cfg is not None else USUAL
        # A single sentence is to have an effective order; its counts are the same
        self._metric = BLEU(effective_order=True, tokenize=self._tokenizer or NONE)
        self._sums = [0] * (2 + 2 * ORDER)

    def add_string(self, ref: str, pred: str) -> None:
        if self._tokenizer is None:
            ref, pred = divide_any(ref), divide_any(pred)
        found = self._metric.sentence_score(pred, [ref])
        counts = found.sys_len, found.ref_len, *found.counts, *found.totals
        self._sums = [total + count for total, count in zip(self._sums, counts)]

    def _score(self) -> Any:
        sys_len, ref_len, *grams = self._sums
        return BLEU.compute_bleu(grams[:ORDER], grams[ORDER:], sys_len, ref_len, smooth_method="exp")

    def score(self) -> float:
        return self._score().score

    def result_string(self) -> str:
        usual = BLEU(tokenize=self._tokenizer or NONE)
        usual.corpus_score(["a"], [["a"]])  # it knows the number of references, which is in its signature, from a call
        signature = str(usual.get_signature())
        if self._tokenizer is None:
            signature = signature.replace(f"tok:{NONE}", "tok:by-language")
        return f"{self._score().format()} {signature}"


def score_words(root: DictConfig, subwords: Optional[str], tokenizer: Optional[str]) -> None:
    """Let fairseq-generate score words: by default it counts matches of symbols, which may be pieces of words.

    Args:
        root: all its options; it makes its scorer from them after its batches.
        subwords: what joins them, as for --remove-bpe; None if --bpe does, or nothing.
        tokenizer: what words are counted by; None where targets are of several languages.
    """
    root.common_eval.post_process = subwords
    if root.scoring is not None and root.scoring._name == "sacrebleu" and tokenizer is not None:
        root.scoring.sacrebleu_tokenizer = tokenizer
    if root.scoring is None or root.scoring._name == "bleu":
        with open_dict(root):
            root.scoring = OmegaConf.create({"_name": "word_bleu", "sacrebleu_tokenizer": tokenizer})
            root.generation.sacrebleu = True  # else it would warn that pieces are scored
