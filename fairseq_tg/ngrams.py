"""How many n-grams any two of several sentences have in common: of all pairs at once, from shared counts."""

from __future__ import annotations

from typing import Dict, Sequence

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
