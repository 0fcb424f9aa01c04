"""Sentence objectives O(z, y): how good a translation z is, given the reference y. Text in, number out, more is better.

Neither torch nor fairseq is needed here. To add one, decorate a function that returns an `Objective`; it is called when
the objective is asked for, with the name of the tokenizer that words are counted by (see `tokenizers`), and may import
a library of its own.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from fairseq_tg.errors import UserError
from fairseq_tg.ngrams import common_ngrams, ngram_matches
from fairseq_tg.registry import Registry
from fairseq_tg.tokenizers import FLAG, OF_CHARACTERS, USUAL, load_tokenizer, word_splitter


@dataclass(frozen=True)
class Objective:
    """A function of a hypothesis and a reference, with what is needed to tell its scores from any others."""

    name: str
    score: Callable[[str, str], float]
    signature: str
    #: Faster than one by one, and the same: the scores of every text (rows) against every text (columns)
    score_pairs: Optional[Callable[[Sequence[str]], List[List[float]]]] = None
    #: Likewise: the scores of every text against one reference
    score_list: Optional[Callable[[Sequence[str], str], List[float]]] = None


OBJECTIVES: Registry[Callable[[str], Objective]] = Registry("objective", flag="--objective")


@OBJECTIVES.register("sbleu")
def sentence_bleu(tokenizer: str = USUAL) -> Objective:
    """Sentence BLEU, 0 to 100, smoothed, of the orders that the sentence has."""
    from sacrebleu.metrics import BLEU

    def score(counts: List[int], totals: List[int], length: int, reference_length: int) -> float:
        return BLEU.compute_bleu(
            counts, totals, length, reference_length, smooth_method="exp", effective_order=True
        ).score

    metric = BLEU(effective_order=True, tokenize=tokenizer)
    return replace(_sacrebleu("sbleu", metric), **_many_bleus(score, tokenizer))


@OBJECTIVES.register("sbleu+1")
def sentence_bleu_of_one_word_more(tokenizer: str) -> Objective:
    return _longer_bleu(1, tokenizer)


@OBJECTIVES.register("sbleu+2")
def sentence_bleu_of_two_words_more(tokenizer: str) -> Objective:
    return _longer_bleu(2, tokenizer)


def _longer_bleu(words: int, tokenizer: str) -> Objective:
    """Sentence BLEU+1, 0 to 100, with a brevity penalty as if the reference had some words more.

    A smoothed sentence BLEU prefers short hypotheses, and what is trained on its choices gets shorter than the
    references (Nakov, Guzman and Vogel, 2012, whose remedy this is). Of equal matches this takes the longer.
    """
    from sacrebleu.metrics import BLEU

    metric = BLEU(effective_order=True, tokenize=tokenizer)

    def score_counts(counts: List[int], totals: List[int], length: int, reference_length: int) -> float:
        lengths = length, reference_length + words
        return BLEU.compute_bleu(counts, totals, *lengths, smooth_method="add-k", smooth_value=1).score

    def score(hypothesis: str, reference: str) -> float:
        matches = metric.sentence_score(hypothesis, [reference])
        return score_counts(matches.counts, matches.totals, matches.sys_len, matches.ref_len)

    score("a", "a")
    signature = str(metric.get_signature()).replace("smooth:exp", f"smooth:add-k[1.00]|reflen:+{words}")
    return Objective(f"sbleu+{words}", score, signature, **_many_bleus(score_counts, tokenizer))


def _many_bleus(score: Callable[[List[int], List[int], int, int], float], tokenizer: str) -> Dict[str, Any]:
    """Sentence BLEU of many texts, from n-grams that are counted once: `score_pairs` and `score_list`.

    Args:
        score: of the matches and the numbers of n-grams of the orders 1 to 4, and the lengths of both sides.
    """
    tokenize = word_splitter(tokenizer)

    @lru_cache(maxsize=1 << 18)
    def remembered(counts: Tuple[int, ...], length: int, reference_length: int) -> float:
        totals = [max(0, length - n) for n in range(len(counts))]
        return score(list(counts), totals, length, reference_length)

    def pairs(texts: Sequence[str]) -> List[List[float]]:
        words = [tokenize(text.rstrip()) for text in texts]
        counts = common_ngrams(words, 4).reshape(-1, 4)
        lengths, which = np.unique([len(sentence) for sentence in words], return_inverse=True)
        own, others = np.repeat(which, len(texts)), np.tile(which, len(texts))
        sizes = *(int(lengths[-1]) + 1,) * 4, len(lengths), len(lengths)
        keys = np.ravel_multi_index((*counts.T, own, others), sizes)  # most pairs are like another
        _, first, kinds = np.unique(keys, return_index=True, return_inverse=True)
        scores = [remembered(tuple(counts[i].tolist()), int(lengths[own[i]]), int(lengths[others[i]])) for i in first]
        return np.array(scores)[kinds].reshape(len(texts), len(texts)).tolist()

    def against(texts: Sequence[str], reference: str) -> List[float]:
        expected = tokenize(reference.rstrip())
        matches = ngram_matches(expected, 4)
        found = (tokenize(text.rstrip()) for text in texts)
        return [remembered(matches(words), len(words), len(expected)) for words in found]

    return {"score_pairs": pairs, "score_list": against}


@OBJECTIVES.register("chrf")
def chrf(tokenizer: str) -> Objective:
    """Character n-gram F-score, 0 to 100: no words are counted."""
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    return replace(_sacrebleu("chrf", metric), score_pairs=_chrf_pairs(metric.char_order, metric.beta))


def _chrf_pairs(order: int, beta: int) -> Callable[..., List[List[float]]]:
    """chrF of all pairs of texts; sacrebleu's arithmetic, in its order, on arrays."""

    def pairs(texts: Sequence[str]) -> List[List[float]]:
        counts = common_ngrams(["".join(text.split()) for text in texts], order).astype(np.float64)
        totals = counts[range(len(texts)), range(len(texts))]  # N x order
        precision, recall, used = (np.zeros(counts.shape[:2]) for _ in range(3))
        for n in range(order):
            both = (totals[:, None, n] > 0) & (totals[None, :, n] > 0)
            precision += np.divide(counts[:, :, n], totals[:, None, n], where=both, out=np.zeros(both.shape))
            recall += np.divide(counts[:, :, n], totals[None, :, n], where=both, out=np.zeros(both.shape))
            used += both
        precision, recall = precision / np.maximum(used, 1), recall / np.maximum(used, 1)
        factor = beta**2
        scores, weighted = (1 + factor) * precision * recall, factor * precision + recall
        return (100 * np.divide(scores, weighted, where=weighted > 0, out=np.zeros(scores.shape))).tolist()

    return pairs


@OBJECTIVES.register("ter")
def negative_ter(tokenizer: str) -> Objective:
    """Translation edit rate, negated: lower is better."""
    from fairseq_tg.edit_rate import WordTER

    if tokenizer in OF_CHARACTERS:
        raise UserError(
            f"--objective ter: an edit rate of characters ({FLAG} {tokenizer}) takes a second for each translation: "
            "use sbleu or chrf, or a tokenizer that finds words"
        )
    return _sacrebleu("ter", WordTER(tokenizer), sign=-1.0)


def _sacrebleu(name: str, metric: Any, sign: float = 1.0) -> Objective:
    def score(hypothesis: str, reference: str) -> float:
        return sign * metric.sentence_score(hypothesis, [reference]).score

    score("a", "a")  # sacrebleu knows the number of references, which is in its signature, from the first call on
    return Objective(name, score, str(metric.get_signature()))


@OBJECTIVES.register("meteor")
def meteor(tokenizer: str) -> Objective:
    """METEOR, 0 to 1, with exact and stem matches, and with synonyms where WordNet's data is installed."""
    nltk = _nltk("meteor")
    from nltk.corpus import wordnet
    from nltk.translate.meteor_score import single_meteor_score

    try:
        wordnet.ensure_loaded()
        synonyms, matches = wordnet, "exact+stem+synonym"
    except LookupError:
        synonyms, matches = _NoSynonyms(), "exact+stem"
    tokenize = word_splitter(tokenizer)

    def score(hypothesis: str, reference: str) -> float:
        return float(single_meteor_score(tokenize(reference), tokenize(hypothesis), wordnet=synonyms))

    signature = f"METEOR|match:{matches}|case:lc|tok:{tokenizer}|version:nltk-{nltk.__version__}"
    return Objective("meteor", score, signature)


@OBJECTIVES.register("nist")
def nist(tokenizer: str) -> Objective:
    """NIST, 0 or more: n-grams count by the information that the reference's own n-grams give them."""
    nltk = _nltk("nist")
    from nltk.translate.nist_score import sentence_nist

    tokenize = word_splitter(tokenizer)

    def score(hypothesis: str, reference: str) -> float:
        words, expected = tokenize(hypothesis), tokenize(reference)
        order = min(5, len(words), len(expected))  # nltk divides by the number of n-grams, which may be none
        return float(sentence_nist([expected], words, n=order)) if order else 0.0

    return Objective("nist", score, f"NIST|order:5|case:mixed|tok:{tokenizer}|version:nltk-{nltk.__version__}")


class _NoSynonyms:
    """Stands for WordNet where its data is not installed."""

    def synsets(self, word: str) -> List[Any]:
        return []


def _nltk(name: str) -> Any:
    try:
        return importlib.import_module("nltk")
    except ImportError:
        raise UserError(f"--objective {name} needs nltk: pip install 'fairseq_tg[metrics]'") from None


def get_objective(name: str, tokenizer: str = USUAL) -> Objective:
    """An objective by the name that the user typed: one of the registry, or `pkg.module:function`.

    tokenizer: what words are counted by; a function of the user's is given the text as it is.
    """
    load_tokenizer(tokenizer)  # one that cannot be had is refused in one line
    if ":" not in name:
        return OBJECTIVES[name](tokenizer)
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"--objective {name}: {error}; give an importable pkg.module:function") from None
    if not callable(function):
        raise UserError(f"--objective {name}: {function_name} is no function of (hypothesis, reference)")
    return Objective(name, function, f"{name}|user-defined{_source_of(function)}")


def _source_of(function: Any) -> str:
    """What tells a user's function from what was under its name before: a hash of the file that it is in."""
    try:
        return f"|{hashlib.sha256(Path(inspect.getfile(function)).read_bytes()).hexdigest()[:16]}"
    except (TypeError, OSError):  # it is written in C, or its file has gone
        return ""


def score_pairs(objective: Objective, texts: Sequence[str], sentence_id: int) -> List[List[float]]:
    """The scores of every text (rows) against every other (columns); what a text has with itself is not said."""
    if objective.score_pairs is not None:
        return objective.score_pairs(texts)
    return [
        [0.0 if i == j else score_hypothesis(objective, text, other, sentence_id) for j, other in enumerate(texts)]
        for i, text in enumerate(texts)
    ]


def score_list(objective: Objective, texts: Sequence[str], reference: str, sentence_id: int) -> List[float]:
    """The scores of every text against a reference."""
    if objective.score_list is not None:
        return objective.score_list(texts, reference)
    return [score_hypothesis(objective, text, reference, sentence_id) for text in texts]


def score_hypothesis(objective: Objective, hypothesis: str, reference: str, sentence_id: int) -> float:
    """Score one hypothesis; an objective that raises, or gives no number, ends the run with the sentence shown."""
    try:
        value = float(objective.score(hypothesis, reference))
    except Exception as error:
        problem = f"raised {type(error).__name__}: {error}"
    else:
        if math.isfinite(value):
            return value
        problem = f"gave {value}"
    raise UserError(
        f"objective {objective.name} {problem} for sentence {sentence_id}, hypothesis {hypothesis!r}, "
        f"reference {reference!r}: mend the objective, or give another --objective"
    )
