"""Sentences that are too long for a model or a batch, and batches that are too large for the memory."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import Any, Iterator, List

import numpy as np
from fairseq.data import BaseWrapperDataset

from fairseq_tg.compiled.library import EngineError
from fairseq_tg.errors import UserError
from fairseq_tg.loading.changes import LEFT_OUT


@contextmanager
def naming_sizes() -> Iterator[None]:
    """What fairseq has no place for in a batch, in one line."""
    try:
        yield
    except Exception as error:
        if "is invalid (=" in str(error):  # with the option to be given
            raise UserError(f"a sentence is too long for the model: {error}") from None
        if "max_tokens" in str(error):
            raise UserError(f"{error}: give more --max-tokens, or --batch-size alone") from None
        raise


@contextmanager
def naming_memory(sentences: int) -> Iterator[None]:
    """What there is no memory for, in one line, whichever search it is.

    (Of a GPU's, whose exception is another, fairseq's trainer knows what to do.)
    """
    try:
        yield
    except EngineError as error:
        raise UserError(str(error)) from None
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):  # torch's words
            raise
        raise UserError(
            f"not enough memory for a batch of {sentences} sentences: make it (--batch-size, --max-tokens), or the "
            "beam, smaller"
        ) from None


class Some(BaseWrapperDataset):
    """A data set of which only some sentences are translated, under their own numbers."""

    def __init__(self, dataset: Any, kept: List[bool]) -> None:
        super().__init__(dataset)
        self._kept = np.array(kept, dtype=bool)

    def ordered_indices(self) -> Any:
        indices = self.dataset.ordered_indices()
        return indices[self._kept[indices]]


def leave_out_too_long(dataset: Any, first: int, max_positions: Any, max_tokens: Any) -> Any:
    """Lines that someone types or pipes, without those that are too long: the others are translated.

    first: the number that fairseq-interactive gives the first of them.
    """
    limits = [max_positions[0] if isinstance(max_positions, (tuple, list)) else max_positions, max_tokens]
    limit = min((limit for limit in limits if limit is not None), default=sys.maxsize)
    sizes = [int(np.ravel(dataset.size(i))[0]) for i in range(len(dataset))]
    for number, size in enumerate(sizes, first):
        if size > limit:
            print(f"fairseq_tg: sentence {number} is left out: it has {size} tokens, {limit} allowed", file=sys.stderr)
            LEFT_OUT.append(number)
    return dataset if max(sizes, default=0) <= limit else Some(dataset, [size <= limit for size in sizes])
