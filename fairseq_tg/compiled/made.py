"""Tensors that are made when they are asked for: of a large model, all that a compiled one has are never in memory."""

from __future__ import annotations

from typing import Callable, Iterator, Mapping

import numpy as np

Tensors = Mapping[str, np.ndarray]
Maker = Callable[[], np.ndarray]


class Made(Tensors):
    """Tensors by their names, each made anew whenever it is looked up, and kept by whoever asked for it alone."""

    def __init__(self, makers: Mapping[str, Maker]) -> None:
        self.makers = dict(makers)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.makers[name]()

    def __contains__(self, name: object) -> bool:  # without making it
        return name in self.makers

    def __iter__(self) -> Iterator[str]:
        return iter(self.makers)

    def __len__(self) -> int:
        return len(self.makers)
