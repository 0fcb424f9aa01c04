"""Actors beside a base's maps (--actor-sites maps): a compiled model has them in its matrices."""

from __future__ import annotations

from functools import partial
from typing import Callable, Dict, Iterable, List, Sequence, Set, Tuple

import numpy as np

from fairseq_tg.compiled.layout import ACTED, Layout, Part
from fairseq_tg.compiled.made import Made, Maker, Tensors
from fairseq_tg.memory import MappedFiles


def matrices_with_actors(
    layout: Layout, tensors: Tensors, actors: Set[str], change: Callable[[Part], np.ndarray]
) -> Made:
    """What is in the place of a base's matrices where actors act, in float32; ValueError if they do not fit.

    Each is made when it is asked for.

    Args:
        tensors: the base's, with its matrices in float32 or int8.
        actors: what those that there are, are called in the model.
        change: what the actor beside a map adds to its weights, in their shape.
    """
    found: Dict[str, Maker] = {}
    files = MappedFiles()

    def joined(name: str, parts: Sequence[Part]) -> np.ndarray:
        weight, scale = tensors[f"{name}.weight"], tensors.get(f"{name}.scale")
        both = with_changes(weight if scale is None else weight * scale[:, None], parts, change)
        files.page_out(weight.ctypes.data, weight.nbytes)
        return both

    for name, parts in acted_parts(layout, actors).items():
        found[f"{name}{ACTED}.weight"] = partial(joined, name, parts)
        if f"{name}.bias" in tensors:
            found[f"{name}{ACTED}.bias"] = partial(tensors.__getitem__, f"{name}.bias")
    return Made(found)


def acted_parts(layout: Layout, actors: Set[str]) -> Dict[str, List[Part]]:
    """The base's matrices that actors act beside the maps of, and these maps; ValueError if they do not fit."""
    found = {name: parts for name, parts in layout.parts().items() if any(part.actor in actors for part in parts)}
    for name, parts in found.items():
        given = sum(part.actor in actors for part in parts)
        if given < len(parts):
            raise ValueError(f"actors beside {given} of {len(parts)} maps of '{name}'")
    unknown = actors - {part.actor for parts in found.values() for part in parts}
    if unknown:
        raise ValueError(f"'{min(unknown)}' is beside no map")
    return found


def with_changes(weight: np.ndarray, parts: Sequence[Part], change: Callable[[Part], np.ndarray]) -> np.ndarray:
    """A copy of a matrix in float32 with what the actors beside its maps add."""
    both = np.array(weight, dtype=np.float32)
    for part in parts:
        added = change(part)[:, part.inputs]
        if part.scale != 1.0:
            added = added * np.float32(part.scale)
        both[part.rows, part.columns] += added.T if part.transposed else added
    return both


def acted_names(names: Iterable[str]) -> Tuple[str, ...]:
    """Which of a base's matrices there are others of, by the names of all tensors."""
    return tuple(sorted({name.rpartition(ACTED)[0] for name in names if ACTED in name}))
