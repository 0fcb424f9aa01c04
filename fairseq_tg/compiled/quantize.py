"""Weights of 8 bits."""

from __future__ import annotations

from typing import Dict, Iterable

import numpy as np

from fairseq_tg.compiled.layout import Layout

Tensors = Dict[str, np.ndarray]


def quantize(tensors: Tensors, layout: Layout) -> Tensors:
    """The tensors with all weights as int8 and a scale for each row: w = scale * q, |q| <= 127."""
    return quantize_matrices(tensors, [*layout.matrices(), *layout.embeddings()])


def quantize_matrices(tensors: Tensors, names: Iterable[str]) -> Tensors:
    """The same of some of them."""
    result = dict(tensors)
    for name in names:
        weight = tensors[f"{name}.weight"]
        scale = np.abs(weight).max(axis=1) / 127
        scale[scale == 0] = 1.0
        result[f"{name}.weight"] = np.rint(weight / scale[:, None]).astype(np.int8)
        result[f"{name}.scale"] = scale.astype(np.float32)
    return result
