"""Actor files: the actors of a tg model alone, as safetensors with JSON metadata. One base, many small files."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Tuple, get_args, get_type_hints

import torch
from fairseq import checkpoint_utils, models
from omegaconf import OmegaConf
from safetensors.torch import save
from torch import Tensor

from fairseq_tg.actor_format import FORMAT, METADATA_KEY, ActorFileError, read_tensors
from fairseq_tg.errors import UserError
from fairseq_tg.files import check_no_input, replacing
from fairseq_tg.loading.checkpoints import fingerprint, load_checkpoint, refuse_lookups, split_tensors
from fairseq_tg.memory import MappedFiles, give_back
from fairseq_tg.models.base import ActorModel
from fairseq_tg.models.config import ActorConfig
from fairseq_tg.models.record import AVERAGING, FAMILY_PREFIX, Base, other_base, recorded_base

SUFFIX = ".safetensors"
#: Options of the model that say what its actors are
ACTOR_FIELDS = ("actor", "actor_hidden", "actor_rank", "actor_layers", "actor_sites", "actor_site_rank")


@dataclass(frozen=True)
class ActorMetadata:
    """What an actor file says of itself."""

    arch: str  # tg_ and the family
    actor: str
    actor_hidden: int
    actor_rank: int
    actor_layers: Optional[str]
    base_fingerprint: str  # of the base that the actors were trained on
    fingerprint: str  # of the actors' own tensors
    format: int = FORMAT
    # Files and checkpoints of before have not got these
    actor_sites: str = ActorConfig.actor_sites
    actor_site_rank: int = ActorConfig.actor_site_rank

    def check_fits(self, base: Base, path: str) -> None:
        """Refuse a base that these actors were not trained on."""
        if FAMILY_PREFIX + base.family != self.arch:
            raise UserError(f"the actors of '{path}' are for {self.arch}, and the base is a {base.family} model")
        if base.fingerprint != self.base_fingerprint:
            raise UserError(other_base(self.base_fingerprint, base.fingerprint))

    def model_config(self, base: Base) -> Dict[str, Any]:
        """The config that builds the tg model of these actors on `base`."""
        config = {name: getattr(self, name) for name in ACTOR_FIELDS}
        return {"_name": self.arch, "base_record": base.to_json(), **config}


def write_actor_file(path: str, metadata: ActorMetadata, tensors: Dict[str, Tensor]) -> None:
    text = json.dumps(asdict(metadata), sort_keys=True)
    with replacing(path) as temporary:
        Path(temporary).write_bytes(save(tensors, {METADATA_KEY: text}))


def read_actor_file(path: str) -> Tuple[ActorMetadata, Dict[str, Tensor]]:
    try:
        raw, tensors = read_tensors(path, "pt")
        refuse_lookups(raw, path)
        metadata = ActorMetadata(**raw)
        _check_types(metadata)
    except ActorFileError as error:
        raise UserError(str(error)) from None
    except TypeError as error:
        raise UserError(f"'{path}' is no actor file, or a damaged one ({error}): export it again") from None
    if split_tensors(tensors)[0]:
        raise UserError(f"'{path}' is refused: it has other tensors than actors'; export it again")
    largest = max((size for tensor in tensors.values() for size in tensor.shape), default=0)
    sizes = [metadata.actor_hidden, metadata.actor_rank]
    if metadata.actor_sites != "attention":
        sizes.append(metadata.actor_site_rank)
    if not all(isinstance(n, int) and 0 <= n <= largest for n in sizes):
        # before anything of that size is made
        raise UserError(f"the actors of '{path}' are not those that it says it has: export it again")
    if fingerprint(tensors) != metadata.fingerprint:
        raise UserError(
            f"'{path}' is damaged: its weights have not the fingerprint they were written with; export it again"
        )
    return metadata, tensors


def _check_types(metadata: ActorMetadata) -> None:
    """Raise TypeError for a value that is not what a field says."""
    for name, kind in get_type_hints(ActorMetadata).items():
        value = getattr(metadata, name)
        if type(value) not in (get_args(kind) or (kind,)):  # exactly: True is no number here
            raise TypeError(f"its {name} is {value!r:.20}")


def read_actors(path: str) -> Tuple[ActorMetadata, Dict[str, Tensor], Optional[Dict[str, Any]]]:
    """The actors of a tg checkpoint or of an actor file, and the checkpoint's state if it is one."""
    if path.endswith(SUFFIX):
        return (*read_actor_file(path), None)
    state = load_checkpoint(path)
    config = state["cfg"]["model"]
    record = recorded_base(config)
    if not record:
        raise UserError(f"'{path}' has no actors: give a checkpoint trained with --arch tg_*")
    base_tensors, tensors = split_tensors(state["model"])
    base = Base.from_json(record)
    if fingerprint(base_tensors) != base.fingerprint:
        raise UserError(f"'{path}' is damaged: its base has not the fingerprint that was recorded with it{AVERAGING}")
    metadata = ActorMetadata(
        arch=config["_name"],
        base_fingerprint=base.fingerprint,
        fingerprint=fingerprint(tensors),
        **{name: config[name] for name in ACTOR_FIELDS if name in config},
    )
    return metadata, tensors, state


def export_actor(tg_path: str, actor_path: str) -> ActorMetadata:
    """Write the actors of a tg checkpoint to an actor file."""
    check_no_input(actor_path, tg_path)
    metadata, tensors, _ = read_actors(tg_path)
    write_actor_file(actor_path, metadata, tensors)
    return metadata


def average_actors(paths: Sequence[str], out: str) -> ActorMetadata:
    """Write the mean of several trainings' actors, or of several checkpoints of one; their base stays bit by bit.

    Args:
        paths: tg checkpoints or actor files, of one base and one shape.
        out: an actor file (.safetensors), or a checkpoint: then the first checkpoint of `paths` gives all else.
    """
    if len(paths) < 2:
        raise UserError(f"a mean is of at least two: give what to write after them, as in {paths[0]} {out} mean.pt")
    if os.path.lexists(out):  # the last of the trainings, if the place to write to was left out
        raise UserError(f"'{out}' is there already: give a new name behind the actors that the mean is of")
    first, own, whole = read_actors(paths[0])
    given = [own]
    for path in paths[1:]:
        metadata, tensors, state = read_actors(path)
        if replace(metadata, fingerprint=first.fingerprint) != first or _shapes(tensors) != _shapes(own):
            raise UserError(f"the actors of '{path}' are of another shape or base than those of '{paths[0]}'")
        given.append(tensors)
        whole = whole or state
    files = MappedFiles()
    mean = {name: _mean([tensors[name] for tensors in given], files) for name in own}
    give_back()  # what was computed in double precision
    metadata = replace(first, fingerprint=fingerprint(mean))
    if out.endswith(SUFFIX):
        write_actor_file(out, metadata, mean)
    elif whole is None:
        raise UserError(f"'{out}' would be a checkpoint, and all you gave are actor files: give it the end {SUFFIX}")
    else:
        _write_checkpoint(out, whole, {**split_tensors(whole["model"])[0], **mean})
    return metadata


def _mean(tensors: Sequence[Tensor], files: MappedFiles) -> Tensor:
    """The mean in double precision, as the type of the first."""
    total = tensors[0].double()
    for tensor in tensors[1:]:
        total += tensor.double()
    for tensor in tensors:
        files.page_out(tensor.data_ptr(), tensor.nbytes)
    return (total / len(tensors)).to(tensors[0].dtype)


def _shapes(tensors: Dict[str, Tensor]) -> Dict[str, Any]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def _write_checkpoint(path: str, state: Dict[str, Any], tensors: Dict[str, Tensor]) -> None:
    """A checkpoint to translate with, or to begin another training from: without the state of an optimizer."""
    state.update(args=None, model=tensors, last_optimizer_state=None)
    if OmegaConf.is_config(state["cfg"]):
        state["cfg"] = OmegaConf.to_container(state["cfg"], resolve=True)
    checkpoint_utils.torch_persistent_save(state, path)


def import_actor(base_path: str, actor_path: str, tg_path: str) -> ActorMetadata:
    """Put an actor file on its base and save the tg checkpoint that gives."""
    check_no_input(tg_path, base_path, actor_path)
    metadata, tensors = read_actor_file(actor_path)
    state = load_checkpoint(base_path)
    base = Base.of_config(state["cfg"]["model"], fingerprint(state["model"]), base_path)
    metadata.check_fits(base, actor_path)
    config: Any = OmegaConf.to_container(state["cfg"], resolve=True)
    state["cfg"] = {**config, "model": metadata.model_config(base)}
    _write_checkpoint(tg_path, state, {**state["model"], **tensors})
    return metadata


def build_from_actor_file(path: str, base_config: Any, task: Any) -> ActorModel:
    """The tg model of an actor file on a base whose config is given and whose weights fairseq will load next."""
    metadata, tensors = read_actor_file(path)
    # The base's weights, and so its fingerprint, are compared when they are loaded
    base = Base.of_config(base_config, metadata.base_fingerprint, "the base")
    metadata.check_fits(base, path)
    model = models.build_model(OmegaConf.create(metadata.model_config(base)), task, from_checkpoint=True)
    if {n: t.shape for n, t in tensors.items()} != {n: t.shape for n, t in model.actor_tensors().items()}:
        raise UserError(f"the actors of '{path}' are not those that it says it has: export it again")
    torch.nn.Module.load_state_dict(model, tensors, strict=False)  # the base's are still to come
    model.awaiting_base = True
    return model
