"""Sentences in batches of like length: the one loop over a test set."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Sequence, TypeVar

from fairseq_tg.evaluation.systems import Tokens, Translate

Result = TypeVar("Result")
Say = Callable[[str], None]
#: Of a batch, if nothing speaks for another size
SENTENCES = 32


def by_length(sizes: Sequence[Any], batch_size: int) -> List[List[int]]:
    """Indices in batches of like size, the smallest first."""
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def in_batches(
    function: Callable[[List[int]], Iterable[Result]], batches: Sequence[List[int]], say: Say, doing: str
) -> List[Result]:
    """What a function finds for every sentence of a batch, in the order of the sentences."""
    results: Dict[int, Result] = {}
    total = sum(map(len, batches))
    for batch in batches:
        say(f"{doing}: {len(results)} of {total} sentences")
        results.update(zip(batch, function(batch)))
    return [results[i] for i in sorted(results)]


def translate_all(
    translate: Translate, sources: Sequence[Tokens], say: Say, doing: str, batch_size: int = SENTENCES
) -> List[Tokens]:
    batches = by_length([len(source) for source in sources], batch_size)
    return in_batches(lambda batch: translate([sources[i] for i in batch]), batches, say, doing)
