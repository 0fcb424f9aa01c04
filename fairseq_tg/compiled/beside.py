"""Actors beside a base's maps (--actor-sites maps): a compiled model has them in its matrices."""

from __future__ import annotations

from typing import Callable, Set, Tuple

import numpy as np

from fairseq_tg.compiled.layout import ACTED, Layout, Part
from fairseq_tg.compiled.quantize import Tensors


def matrices_with_actors(
    layout: Layout, tensors: Tensors, actors: Set[str], change: Callable[[Part], np.ndarray]
) -> Tensors:
    """What is in the place of a base's matrices where actors act, in float32; ValueError if they do not fit.

    Args:
        tensors: the base's, with its matrices in float32 or int8.
        actors: what those that there are, are called in the model.
        change: what the actor beside a map adds to its weights, in their shape.
    """
    found: Tensors = {}
    unknown = set(actors)
    for name, parts in layout.parts().items():
        given = [part for part in parts if part.actor in actors]
        if not given:
            continue
        if len(given) < len(parts):
            raise ValueError(f"actors beside {len(given)} of {len(parts)} maps of '{name}'")
        weight, scale = tensors[f"{name}.weight"], tensors.get(f"{name}.scale")
        both = np.array(weight, dtype=np.float32) if scale is None else weight * scale[:, None]
        for part in given:
            added = change(part)[:, part.inputs] * np.float32(part.scale)
            both[part.rows, part.columns] += added.T if part.transposed else added
            unknown.discard(part.actor)
        found[f"{name}{ACTED}.weight"] = both
        if f"{name}.bias" in tensors:
            found[f"{name}{ACTED}.bias"] = tensors[f"{name}.bias"]
    if unknown:
        raise ValueError(f"'{min(unknown)}' is beside no map")
    return found


def acted_names(tensors: Tensors) -> Tuple[str, ...]:
    """Which of a base's matrices there are others of."""
    return tuple(sorted({name.rpartition(ACTED)[0] for name in tensors if ACTED in name}))
