"""What families' extractions give: tensors of a model as they are, and how to make those that it does not have."""

from __future__ import annotations

from typing import Callable, Dict, Union

from torch import Tensor

Piece = Union[Tensor, Callable[[], Tensor]]
Pieces = Dict[str, Piece]
