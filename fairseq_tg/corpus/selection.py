"""Which hypotheses of a k-best list are chosen. Pure functions; the best comes first, ties go to the lower rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, List, Optional, Sequence

from fairseq_tg.errors import UserError
from fairseq_tg.registry import Registry


@dataclass(frozen=True)
class Scored:
    """A k-best list, as a selection sees it; one entry for each beam rank."""

    scores: Sequence[float]  # the objective against the reference; empty where there is none
    greedy_score: Optional[float] = None  # that of the base's greedy output


@dataclass(frozen=True)
class Selection:
    """A rule for choosing, and what it needs to know."""

    name: str
    choose: Callable[[Scored], List[int]]  # ranks, best first
    adds_gold: bool = False  # the reference becomes one more target
    needs_reference: bool = True
    needs_greedy: bool = False


SELECTIONS: Registry[Callable[..., Selection]] = Registry("selection", flag="--selection")


def best_first(scores: Sequence[float]) -> List[int]:
    """Ranks by score; of equal ones, the lower rank first."""
    return sorted(range(len(scores)), key=lambda rank: (-scores[rank], rank))


@SELECTIONS.register("top1")
def top1() -> Selection:
    """The best hypothesis."""
    return Selection("top1", lambda scored: best_first(scored.scores)[:1])


@SELECTIONS.register("full")
def full() -> Selection:
    """All k hypotheses."""
    return Selection("full", lambda scored: best_first(scored.scores))


@SELECTIONS.register("thd")
def threshold() -> Selection:
    """All hypotheses that score higher than the base's greedy output; there may be none."""

    def choose(scored: Scored) -> List[int]:
        assert scored.greedy_score is not None
        return [rank for rank in best_first(scored.scores) if scored.scores[rank] > scored.greedy_score]

    return Selection("thd", choose, needs_greedy=True)


@SELECTIONS.register("comb")
def combined() -> Selection:
    """The best hypothesis, and the reference."""
    return Selection("comb", lambda scored: best_first(scored.scores)[:1], adds_gold=True)


@SELECTIONS.register("topn")
def top_n(count: str = "") -> Selection:
    """The N best hypotheses: topn:N."""
    if not count.isdigit() or int(count) < 1:
        raise UserError(f"--selection topn:{count}: give a number, as in topn:5")
    return Selection(f"topn:{int(count)}", lambda scored: best_first(scored.scores)[: int(count)])


@SELECTIONS.register("mbr")
def minimum_bayes_risk() -> Selection:
    """The hypothesis nearest to the others, weighted by the model's probability; needs no reference.

    Its scores are expected objectives: see `expected_scores`.
    """
    return Selection("mbr", lambda scored: best_first(scored.scores)[:1], needs_reference=False)


def expected_scores(log_probs: Sequence[float], pairs: Sequence[Sequence[float]]) -> List[float]:
    """For each hypothesis z, the mean of O(z, z') over the others z', weighted by P(z').

    Args:
        log_probs: of whole hypotheses, by the model.
        pairs: O(z, z'), with a row for each z.
    """
    top = max(log_probs)
    weights = [math.exp(log_prob - top) for log_prob in log_probs]
    expected = []
    for rank, scores in enumerate(pairs):
        others = [other for other in range(len(weights)) if other != rank]
        total = sum(weights[other] for other in others)
        value = sum(weights[other] * scores[other] for other in others)
        expected.append(value / total if total else 0.0)
    return expected


def get_selection(name: str) -> Selection:
    """A selection by the name that the user typed, with what follows a colon as its argument."""
    name, colon, argument = name.partition(":")
    make = SELECTIONS[name]
    if name == "topn":
        return make(argument)
    if colon:
        raise UserError(f"--selection {name}:{argument}: {name} takes no argument")
    return make()
