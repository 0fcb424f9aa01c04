"""Splits of data directories, in whatever format fairseq-preprocess wrote them."""

from __future__ import annotations

from typing import Any

from fairseq.data import data_utils


def load_side(path: str) -> Any:
    """One side of a split, by its path without an ending; None if there is none, as of text without references."""
    dataset = data_utils.load_indexed_dataset(path)
    return None if dataset is None else indexable(dataset)


def indexable(dataset: Any) -> Any:
    """The same, whose sentences can be asked for: those of older formats (lazy, cached) have to be read before."""
    if getattr(dataset, "supports_prefetch", False):
        dataset.prefetch(range(len(dataset)))
    return dataset
