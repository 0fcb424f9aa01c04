"""Weights of 8 bits."""

from __future__ import annotations

from typing import Dict, Iterable

import numpy as np

from fairseq_tg.compiled.layout import Layout
from fairseq_tg.memory import MappedFiles

Tensors = Dict[str, np.ndarray]
#: Of a matrix, rounded together
ROWS = 2048


def quantize(tensors: Tensors, layout: Layout) -> Tensors:
    """The tensors with all weights as int8 and a scale for each row: w = scale * q, |q| <= 127."""
    return quantize_matrices(tensors, [*layout.matrices(), *layout.embeddings()])


def quantize_matrices(tensors: Tensors, names: Iterable[str]) -> Tensors:
    """The same of some of them."""
    result, files = dict(tensors), MappedFiles()
    for name in names:
        weight = tensors[f"{name}.weight"]
        rounded, scales = np.empty(weight.shape, np.int8), np.empty(len(weight), np.float32)
        for start in range(0, len(weight), ROWS):  # a few at a time: what is made on the way is large
            rows = weight[start : start + ROWS]
            scale = np.abs(rows).max(axis=1) / 127
            scale[scale == 0] = 1.0
            rounded[start : start + ROWS] = np.rint(rows / scale[:, None])
            scales[start : start + ROWS] = scale
        result[f"{name}.weight"], result[f"{name}.scale"] = rounded, scales
        files.page_out(weight.ctypes.data, weight.nbytes)
    return result
