"""Actor files (fairseq-tg actor export) on a compiled base, without fairseq and without torch."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from functools import partial, reduce
from itertools import chain
from typing import Any, Dict, Iterable, List, Sequence, Tuple

import numpy as np

from fairseq_tg.actor_format import ActorFileError, read_tensors
from fairseq_tg.compiled.beside import acted_names, acted_parts, matrices_with_actors
from fairseq_tg.compiled.layout import ACTORS, Layout, Part
from fairseq_tg.compiled.made import Made, Tensors
from fairseq_tg.compiled.model_file import CompiledModel
from fairseq_tg.compiled.quantize import quantize_matrices
from fairseq_tg.errors import UserError

#: What tensors are called in a checkpoint, and in a compiled file: actors of the paper's places, and further ones
NAMES: Dict[str, Tuple[List[Tuple[str, str]], List[Tuple[str, str]]]] = {
    "transformer": (
        [(r"decoder\.layers\.(\d+)\.actor\.net\.", r"decoder.\1.actor.")],
        [(r"decoder\.layers\.(\d+)\.(self|ffn)_actor\.net\.", r"decoder.\1.\2.actor.")],
    ),
    "lstm": (
        [(r"decoder\.attention()\.actor\.net\.", r"decoder.attention.actor.")],
        [(r"decoder\.layers\.(\d+)\.actor\.net\.", r"decoder.\1.actor.")],
    ),
    "fconv": (
        [(r"decoder\.attention\.(\d+)\.actor\.net\.", r"decoder.\1.actor.")],
        [(r"decoder\.convolutions\.(\d+)\.actor\.net\.", r"decoder.\1.conv.actor.")],
    ),
}


#: Families that are compiled as another
COMPILED_AS = {"bart": "transformer"}
#: In the names of actors beside maps
ACTION = ".net.action."


def named_files(given: Sequence[str]) -> Dict[str, str]:
    """Of options NAME=FILE; UserError if one is none, or a name comes twice."""
    for item in given:
        if not all(item.partition("=")):
            raise UserError(f"--actor {item}: give a name and a file, as in --actor news=news.safetensors")
    files = dict(item.split("=", 1) for item in given)
    if len(files) < len(given):
        raise UserError(f"--actor {' --actor '.join(given)}: give every actor a name of its own")
    return files


def is_for(path: str, base: CompiledModel) -> bool:
    """Whether a file's actors were trained on this base; ActorFileError if it is none."""
    return read_tensors(path, "numpy")[0].get("base_fingerprint") == base.base_fingerprint


def put_on(path: str, base: CompiledModel) -> Tuple[Layout, Tensors]:
    """The layout of a base with the actors of a file, and the actors' tensors; ActorFileError in one sentence."""
    if base.layout.actor:
        raise ActorFileError(f"'{path}' cannot be put on a model that has actors: compile the base alone")
    metadata, tensors = read_tensors(path, "numpy")
    if _fingerprint(tensors) != metadata.get("fingerprint"):
        raise ActorFileError(
            f"'{path}' is damaged: its weights have not the fingerprint they were written with; export it again"
        )
    family = str(metadata.get("arch")).removeprefix("tg_")
    if COMPILED_AS.get(family, family) != base.layout.family:
        raise ActorFileError(f"the actors of '{path}' are for a {family} model, the base is a {base.layout.family}")
    if metadata.get("base_fingerprint") != base.base_fingerprint:
        raise ActorFileError(
            f"the actors of '{path}' were trained on another base (fingerprint "
            f"{str(metadata.get('base_fingerprint'))[:12]}, this is {base.base_fingerprint[:12]}): compile that one"
        )
    try:
        return _fitted(metadata, tensors, base)
    except (ValueError, TypeError, KeyError) as error:
        raise ActorFileError(
            f"the actors of '{path}' are not those that it says it has ({error}): export it again"
        ) from None


def _fitted(metadata: Dict[str, Any], tensors: Tensors, base: CompiledModel) -> Tuple[Layout, Tensors]:
    paper, further = NAMES[base.layout.family]
    changes = {name: tensors[name] for name in tensors if ACTION in name}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in changes}
    beside = _beside(changes, base)
    found: Dict[str, np.ndarray] = {}
    layers: Tuple[List[int], List[int]] = ([], [])
    for name, tensor in tensors.items():
        for place, (pattern, new) in enumerate((*paper, *further)):
            match = re.match(pattern, name)
            if match:
                found[match.expand(new) + name[match.end() :]] = np.ascontiguousarray(tensor)
                if match[1] and int(match[1]) not in layers[place]:
                    layers[place].append(int(match[1]))
                break
        else:
            raise ValueError(f"'{name}' is no actor's")
    _check_whole(metadata, layers, beside, base.layout)
    if metadata["actor"] not in ACTORS[1:]:
        raise ValueError(f"an actor {metadata['actor']!r}")
    layout = replace(
        base.layout,
        actor=metadata["actor"],
        actor_hidden=_hidden(metadata, base.layout),
        actor_rank=metadata["actor_rank"],
        actor_layers=tuple(sorted(layers[0])),
        site_layers=tuple(sorted(layers[1])),
        site_rank=metadata.get("actor_site_rank", 0) if layers[1] else 0,
        acted=acted_names(beside),
    )
    names = layout.matrices().keys() - base.layout.matrices().keys()
    whole = {name: want for name, want in layout.tensors(False).items() if name.rpartition(".")[0] in names}
    for name in sorted({*found, *whole} - beside.keys()):  # (those have the shapes of the base's)
        got = (str(found[name].dtype), found[name].shape) if name in found else None
        if got != whole.get(name):
            raise ValueError(f"'{name}' is {got} and not {whole.get(name)}")
    both = Made({**{name: partial(found.__getitem__, name) for name in found}, **beside.makers})
    return layout, quantize_matrices(both, names) if base.int8 else both


def _check_whole(metadata: Dict[str, Any], layers: Tuple[List[int], ...], beside: Iterable[str], base: Layout) -> None:
    """Raise ValueError if a layer, or a matrix, that is to have actors has none."""
    last, sites = metadata.get("actor_layers") == "last", metadata.get("actor_sites")
    attending = base.attending()[-1:] if last else base.attending()
    if base.family != "lstm" and sorted(layers[0]) != sorted(attending):
        raise ValueError(f"actors at the layers {sorted(layers[0])}, and attention at {sorted(attending)}")
    missing = base.parts().keys() - acted_names(beside) if sites == "maps" and not last else ()
    if missing:
        raise ValueError(f"no actor beside '{min(missing)}'")
    if sites == "all" and not layers[1]:
        raise ValueError("no actors but at the attention")


def _beside(changes: Tensors, base: CompiledModel) -> Made:
    """The base's matrices with the actors that were beside its maps: see MapActor of fairseq_tg/actors.py."""
    actors = {name.rpartition(ACTION)[0] for name in changes}

    def factors(part: Part) -> List[np.ndarray]:
        at = f"{part.actor}{ACTION}"
        full = changes.get(f"{at}full.weight")
        if full is not None and full.shape == part.shape:
            return [full]
        up, down = (changes[f"{at}{name}.weight"] for name in ("up.0", "down"))
        if up.ndim != 2 or down.ndim != 2 or (len(up), down.shape[1]) != part.shape or up.shape[1] != len(down):
            raise ValueError(f"actions of {up.shape} and {down.shape} beside a map of {part.shape}")
        return [up, down]

    def change(part: Part) -> np.ndarray:
        return reduce(np.matmul, (np.asarray(factor, dtype=np.float32) for factor in factors(part)))

    for part in chain(*acted_parts(base.layout, actors).values()):  # before anything of that size is made
        factors(part)
    found = matrices_with_actors(base.layout, base.tensors, actors, change)
    wanted = 2 if any(".down." in name for name in changes) else 1
    if len(changes) != wanted * len(actors):
        raise ValueError(f"{len(changes)} tensors of {len(actors)} actors beside maps")
    return found


def _hidden(metadata: Dict[str, Any], layout: Layout) -> int:
    """0 stands for the state's own size, which a Transformer's layout has always written out."""
    hidden = metadata["actor_hidden"]
    return hidden or (getattr(layout, "dim") if layout.family == "transformer" else 0)  # noqa: B009 (of a subclass)


def _fingerprint(tensors: Tensors) -> str:
    """That of loading/checkpoints.py, which torch is needed for."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name])
        digest.update(f"{name}\0torch.{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
