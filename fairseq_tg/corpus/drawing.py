"""Which hypotheses of a k-best list are trained on at a time, and what is to follow each of their tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import List, NamedTuple

import numpy as np

from fairseq_tg.corpus.lists import KBestList

UNCOUNTED = -1  # a target that is none


class Row(NamedTuple):
    """A hypothesis, by its rank, and what is to be said after each of its prefixes, from the empty one on."""

    rank: int
    targets: np.ndarray


class Draw(ABC):
    """Makes rows of a list; the first is the best hypothesis by the objective."""

    most: int  # rows of a list in a batch

    @abstractmethod
    def __call__(self, kbest: KBestList, random: np.random.Generator) -> List[Row]: ...


def draw_ranks(kbest: KBestList, count: int, random: np.random.Generator) -> List[int]:
    """The best by the objective, the first of the beam, and others at random: as many as there are, up to `count`."""
    best = kbest.best
    ranks = [best, 0][: 1 if best == 0 else count]
    others = np.delete(np.arange(len(kbest.scores)), ranks)
    missing = min(count - len(ranks), len(others))
    return ranks + random.choice(others, missing, replace=False).tolist() if missing > 0 else ranks


@dataclass(frozen=True)
class Candidates(Draw):
    """Hypotheses as they are: after each token, the next."""

    most: int

    def __call__(self, kbest: KBestList, random: np.random.Generator) -> List[Row]:
        return [Row(rank, kbest.hypotheses[rank]) for rank in draw_ranks(kbest, self.most, random)]


@dataclass(frozen=True)
class Best(Draw):
    """The best alone, with room in the batch for one row that the criterion adds."""

    most: int = 2

    def __call__(self, kbest: KBestList, random: np.random.Generator) -> List[Row]:
        return [Row(kbest.best, kbest.hypotheses[kbest.best])]


@dataclass(frozen=True)
class TriePaths(Draw):
    """Hypotheses as paths in the trie of all: after each prefix, the token to the best that is still reachable.

    Args:
        most: paths.
        repeats: whether a prefix of several paths counts once for each, or once.
    """

    most: int
    repeats: bool = False

    def __call__(self, kbest: KBestList, random: np.random.Generator) -> List[Row]:
        ranks = draw_ranks(kbest, self.most, random)
        hypotheses = as_matrix(kbest.hypotheses)
        by_score = hypotheses[np.argsort(-kbest.scores, kind="stable")]  # of equal ones, the lower rank
        rows = []
        for number, rank in enumerate(ranks):
            path = hypotheses[rank]
            length = len(kbest.hypotheses[rank])
            # A hypothesis is reachable from a prefix of the path if at least so much is common to both
            reach = np.maximum.accumulate(common_prefixes(by_score, path))
            best = np.searchsorted(reach, np.arange(length))  # the first that reaches so far
            targets = by_score[best, np.arange(length)]
            if number and not self.repeats:
                shared = common_prefixes(hypotheses[ranks[:number]], path).max()
                targets[: shared + 1] = UNCOUNTED  # prefixes of 0 to `shared` tokens are those of other paths too
            rows.append(Row(rank, targets))
        return rows


def as_matrix(hypotheses: List[np.ndarray]) -> np.ndarray:
    """K x T, filled up with what is no token."""
    lengths = np.array([len(hypothesis) for hypothesis in hypotheses])
    matrix = np.full((len(hypotheses), lengths.max()), UNCOUNTED, dtype=np.int64)
    matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = np.concatenate(hypotheses)
    return matrix


def common_prefixes(hypotheses: np.ndarray, path: np.ndarray) -> np.ndarray:
    """K x T and T -> K: how many first tokens each has in common with the path."""
    return np.logical_and.accumulate(hypotheses == path, axis=1).sum(axis=1)
