"""Actor files (fairseq-tg actor export) on a compiled base, without fairseq and without torch."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import replace
from typing import Any, Dict, List, Tuple

import numpy as np
from safetensors import SafetensorError, safe_open

from fairseq_tg.compiled.layout import ACTORS, Layout
from fairseq_tg.compiled.model_file import CompiledModel
from fairseq_tg.compiled.quantize import Tensors, quantize_matrices
from fairseq_tg.files import parse_json

METADATA_KEY, FORMAT = "fairseq_tg", 1  # of models/actor_files.py
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


class ActorFileError(ValueError):
    """An actor file that is none, or not one of this base."""


def put_on(path: str, base: CompiledModel) -> Tuple[Layout, Tensors]:
    """The layout of a base with the actors of a file, and the actors' tensors; ActorFileError in one sentence."""
    if base.layout.actor:
        raise ActorFileError(f"'{path}' cannot be put on a model that has actors: compile the base alone")
    metadata, tensors = _read(path)
    family = str(metadata.get("arch")).removeprefix("tg_")
    if family != base.layout.family:
        raise ActorFileError(f"the actors of '{path}' are for a {family} model, the base is a {base.layout.family}")
    if metadata.get("base_fingerprint") != base.base_fingerprint:
        raise ActorFileError(
            f"the actors of '{path}' were trained on another base (fingerprint "
            f"{str(metadata.get('base_fingerprint'))[:12]}, this is {base.base_fingerprint[:12]}): compile that one"
        )
    try:
        return _fitted(path, metadata, tensors, base)
    except (ValueError, TypeError, KeyError) as error:
        raise ActorFileError(
            f"the actors of '{path}' are not those that it says it has ({error}): export it again"
        ) from None


def _read(path: str) -> Tuple[Dict[str, Any], Tensors]:
    if not os.path.isfile(path):
        raise ActorFileError(f"no actor file at '{path}': make one with fairseq-tg actor export TG.pt {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(METADATA_KEY)
            if text is None:
                raise ActorFileError(f"'{path}' is no actor file: give one that fairseq-tg actor export made")
            metadata = parse_json(text)
            if metadata.get("format") != FORMAT:
                raise ActorFileError(
                    f"'{path}' has actor file format {metadata.get('format')}, this version reads {FORMAT}: "
                    "export it again"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except ActorFileError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise ActorFileError(f"'{path}' is no actor file, or a damaged one ({error}): export it again") from None
    if _fingerprint(tensors) != metadata.get("fingerprint"):
        raise ActorFileError(
            f"'{path}' is damaged: its weights have not the fingerprint they were written with; export it again"
        )
    return metadata, tensors


def _fitted(path: str, metadata: Dict[str, Any], tensors: Tensors, base: CompiledModel) -> Tuple[Layout, Tensors]:
    paper, further = NAMES[base.layout.family]
    found: Tensors = {}
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
    )
    names = layout.matrices().keys() - base.layout.matrices().keys()
    whole = {name: want for name, want in layout.tensors(False).items() if name.rpartition(".")[0] in names}
    for name in sorted({*found, *whole}):
        got = (str(found[name].dtype), found[name].shape) if name in found else None
        if got != whole.get(name):
            raise ValueError(f"'{name}' is {got} and not {whole.get(name)}")
    return layout, quantize_matrices(found, names) if base.int8 else found


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
