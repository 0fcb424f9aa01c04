"""How many n-grams sentences have in common: any two of several, or many with one, from shared counts."""

from __future__ import annotations

from collections import Counter
from typing import Callable, Dict, Sequence, Tuple

import numpy as np


def common_ngrams(sentences: Sequence[Sequence[str]], order: int) -> np.ndarray:
    """N x N x order: for each order the n-grams that two sentences share, each as often as it is in both.

    A sentence's numbers with itself are its totals.

    Args:
        sentences: of words, or strings of characters.
    """
    numbers: Dict[str, int] = {}
    lengths = np.array([len(sentence) for sentence in sentences])
    tokens = np.array([numbers.setdefault(token, len(numbers)) for s in sentences for token in s], dtype=np.int64)
    rows = np.repeat(np.arange(len(sentences)), lengths)
    left = np.concatenate([np.arange(length, 0, -1) for length in lengths])  # tokens from here to the sentence's end
    found = np.zeros((len(sentences), len(sentences), order), dtype=np.int64)
    ngrams, kinds = tokens, len(numbers)  # of the order n at every place; that it is whole is seen from `left`
    for n in range(1, order + 1):
        whole = left >= n
        if not whole.any():
            break
        counts = np.bincount(rows[whole] * kinds + ngrams[whole], minlength=len(sentences) * kinds)
        found[:, :, n - 1] = _in_common(counts.reshape(len(sentences), kinds))
        longer = ngrams[:-1] * len(numbers) + tokens[n:]
        distinct, ngrams = np.unique(longer, return_inverse=True)
        kinds, rows, left = max(len(distinct), 1), rows[:-1], left[:-1]
    return found


def _in_common(counts: np.ndarray) -> np.ndarray:
    """N x N from N x kinds: the sums of the lesser counts, as products of matrices of ones and zeros."""
    found = np.zeros((len(counts), len(counts)), dtype=np.float32)  # exact up to 2^24
    for least in range(1, int(counts.max(initial=0)) + 1):
        has = (counts[:, (counts >= least).any(axis=0)] >= least).astype(np.float32)
        found += has @ has.T
    return found.astype(np.int64)


def ngram_matches(reference: Sequence[str], order: int) -> Callable[[Sequence[str]], Tuple[int, ...]]:
    """A function of a sentence: for each order the n-grams that it shares with the reference."""
    expected = [Counter(zip(*(reference[i:] for i in range(n)))) for n in range(1, order + 1)]

    def matches(sentence: Sequence[str]) -> Tuple[int, ...]:
        found = []
        for n, counts in enumerate(expected, start=1):
            grams = [gram for gram in zip(*(sentence[i:] for i in range(n))) if gram in counts]
            if len(set(grams)) < len(grams):
                found.append(sum(min(count, counts[gram]) for gram, count in Counter(grams).items()))
            else:
                found.append(len(grams))
        return tuple(found)

    return matches
