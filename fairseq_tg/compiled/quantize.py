"""Weights of 8 bits."""

from __future__ import annotations

from functools import partial
from typing import Dict, Iterable, NamedTuple

import numpy as np

from fairseq_tg.compiled.layout import Layout
from fairseq_tg.compiled.made import Made, Maker, Tensors
from fairseq_tg.memory import MappedFiles

#: Of a matrix, rounded together
ROWS = 2048


class Rounded(NamedTuple):
    """A matrix as int8 and a scale for each row: w = scale * q, |q| <= 127."""

    weight: np.ndarray
    scale: np.ndarray


def quantize(tensors: Tensors, layout: Layout) -> Made:
    """The tensors with all weights as int8 and a scale for each row, rounded when they are asked for."""
    return quantize_matrices(tensors, [*layout.matrices(), *layout.embeddings()])


def quantize_matrices(tensors: Tensors, names: Iterable[str]) -> Made:
    """The same of some of them."""
    makers: Dict[str, Maker] = {name: partial(tensors.__getitem__, name) for name in tensors}
    files = MappedFiles()
    last: Dict[str, Rounded] = {}  # of which there is one: whoever asks for its weights asks for its scales next

    def rounded(name: str, part: str) -> np.ndarray:
        if name not in last:
            last.clear()
            weight = tensors[f"{name}.weight"]
            last[name] = _round(weight)
            files.page_out(weight.ctypes.data, weight.nbytes)
        return getattr(last[name], part)

    for name in names:
        for part in Rounded._fields:
            makers[f"{name}.{part}"] = partial(rounded, name, part)
    return Made(makers)


def _round(weight: np.ndarray) -> Rounded:
    result = Rounded(np.empty(weight.shape, np.int8), np.empty(len(weight), np.float32))
    for start in range(0, len(weight), ROWS):  # a few at a time: what is made on the way is large
        rows = weight[start : start + ROWS]
        scale = np.abs(rows).max(axis=1) / 127
        scale[scale == 0] = 1.0
        result.weight[start : start + ROWS] = np.rint(rows / scale[:, None])
        result.scale[start : start + ROWS] = scale
    return result
