"""What fairseq's own search found, with all that the engine needs to search for it: to be searched for again elsewhere.

Neither torch nor fairseq can be had under a sanitizer or an emulator; `tests/fairseq_cases.py` makes these where both
are, and writes them down.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from fairseq_tg.compiled.engine import Engine, Found, SearchSettings
from fairseq_tg.compiled.layout import Layout

TOLERANCE = 1e-4  # of scores


class Case(NamedTuple):
    """A model, a batch, a search, and fairseq's hypotheses."""

    layout: Layout
    tensors: Dict[str, np.ndarray]
    sources: List[List[int]]
    limits: List[int]
    settings: SearchSettings
    prefixes: np.ndarray
    expected: List[List[Found]]


def write(path: Path, cases: List[Case]) -> None:
    path.write_bytes(pickle.dumps(cases))


def read(path: Path) -> List[Case]:
    return pickle.loads(path.read_bytes())


def greedy(
    engine: Engine,
    sources: List[List[int]],
    limits: List[int],
    threads: int = 1,
    scores: bool = False,
    prefixes: Optional[np.ndarray] = None,
    **settings: Any,
) -> Tuple[List[List[int]], Optional[List[List[float]]]]:
    """The greedy translations of a batch, and the scores of their tokens if they are asked for."""
    best = [found[0] for found in engine.search(sources, limits, SearchSettings(**settings), threads, prefixes, scores)]
    return [found.tokens for found in best], [found.positional for found in best] if scores else None


def assert_as_fairseq(case: Case, engine: Engine, threads: int = 1) -> None:
    """Hypotheses, their order, scores and positional scores; and each sentence by itself as in its batch."""
    ours = engine.search(case.sources, case.limits, case.settings, threads, prefixes=case.prefixes)
    for theirs, found in zip(case.expected, ours):
        assert len(theirs) == len(found)
        for their, our in zip(theirs, found):
            assert abs(their.score - our.score) < TOLERANCE * (1 + abs(our.score))
            if their.tokens == our.tokens:  # else another of the same probability, but for rounding
                np.testing.assert_allclose(our.positional, their.positional, atol=TOLERANCE, rtol=TOLERANCE)
    if not case.prefixes.shape[1]:  # while any sentence has one, no least length is asked for
        alone = zip(case.sources, case.limits)
        assert [engine.search([source], [limit], case.settings)[0] for source, limit in alone] == ours
