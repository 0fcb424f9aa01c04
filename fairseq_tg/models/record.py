"""What is recorded of a base: enough to build it again without its checkpoint, and to tell it from any other."""

from __future__ import annotations

import json
import os
import re
from argparse import Namespace
from dataclasses import asdict, dataclass
from typing import Any, Dict, Tuple, Union

from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_REGISTRY
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from fairseq_tg.errors import UserError
from fairseq_tg.files import parse_json
from fairseq_tg.loading.checkpoints import (
    REPLACED,
    fingerprint,
    load_checkpoint,
    refuse_code,
    refuse_lookups,
    split_tensors,
)
from fairseq_tg.models.kinds import refuse_kinds

FAMILY_PREFIX = "tg_"
#: Models that translate as another does, with the same parameters: this one is only trained otherwise
SAME_MODELS = {"transformer_align": "transformer"}
#: What fairseq's own average_checkpoints.py does to the base, rounding it anew
AVERAGING = " (and if this is an average of checkpoints, make it with fairseq-tg actor average)"


@dataclass(frozen=True)
class Base:
    """What rebuilds a base without its checkpoint, and tells its weights from any others."""

    options: Dict[str, Any]
    namespace: bool  # whether fairseq built it from an argparse namespace (else from a config)
    fingerprint: str
    symbols: str = ""  # the digest of its dictionaries; records of before have none

    @property
    def family(self) -> str:
        """The name of the fairseq model: transformer, lstm, fconv or another."""
        arch = self.options.get("_name") or self.options.get("arch") or "unknown"
        name = ARCH_MODEL_NAME_REGISTRY.get(arch, arch)
        return SAME_MODELS.get(name, name)

    def build_options(self) -> Union[Namespace, DictConfig]:
        """The options, as fairseq's `build_model` takes them."""
        # The weights come from the base: files that embeddings once came from need not be there any more.
        fixed: Dict[str, Any] = {
            name: None if name.endswith("path") else False
            for name in ("encoder_embed_path", "decoder_embed_path", "encoder_freeze_embed", "decoder_freeze_embed")
            if name in self.options
        }
        # With frozen weights there is nothing to compute again for a gradient
        fixed.update({n: False for n in ("checkpoint_activations", "offload_activations") if n in self.options})
        options = {**self.options, **fixed}
        refuse_lookups(options, "the recorded base")
        made = Namespace(**options) if self.namespace else OmegaConf.create(options)
        refuse_code(made, "the recorded base")
        return made

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Base:
        try:
            return cls(**parse_json(text))
        except (ValueError, TypeError) as error:
            raise UserError(f"the record of the base is damaged ({error}): make the file again from its base") from None

    @classmethod
    def of_config(cls, config: Union[Namespace, DictConfig], fingerprint: str, path: str) -> Base:
        """Record the model options of a checkpoint and the fingerprint of its weights."""
        namespace = isinstance(config, Namespace)
        refuse_kinds(config, f"'{path}'")
        if recorded_base(config):
            raise UserError(f"{path} has actors already: give the checkpoint of a model without")
        options = vars(config) if isinstance(config, Namespace) else OmegaConf.to_container(config, resolve=True)
        assert isinstance(options, dict)
        options = {name: value for name, value in options.items() if name != REPLACED}
        if options.get("quant_noise_scalar") or (options.get("quant_noise") or {}).get("scalar"):
            raise UserError(
                f"'{path}' was trained with --quant-noise-scalar, so that fairseq rounds its weights where it "
                "translates: actors would meet others; give a base without"
            )
        try:
            options = json.loads(json.dumps(options))
        except TypeError as error:
            raise UserError(f"'{path}' has a model option that cannot be recorded: {error}") from None
        return cls(options, namespace, fingerprint)


def other_base(expected: str, found: str) -> str:
    """What to tell a user whose actors meet weights that they were not trained on."""
    return (
        f"these actors belong to another base: its fingerprint is {expected[:16]}..., that of the weights given "
        f"{found[:16]}...; give the base that they were trained on{AVERAGING}"
    )


def read_base(path: str, task: Any = None) -> Tuple[Base, Dict[str, Tensor]]:
    """Read a base checkpoint, or the base inside a tg checkpoint: its record and its tensors.

    task: refuses a base that was trained otherwise than it goes on.
    """
    if not path:
        raise UserError("no base: give --base-checkpoint the fairseq checkpoint to put actors on")
    state = load_checkpoint(path)
    config = state["cfg"]["model"]
    if task is not None:
        recorded = state["cfg"]["task"] or {}
        task.check_trained_with(vars(recorded) if isinstance(recorded, Namespace) else recorded)
    record = recorded_base(config)
    if record:
        return Base.from_json(record), split_tensors(state["model"])[0]
    return Base.of_config(config, fingerprint(state["model"]), path), state["model"]


def check_not_saved_over(config: Any) -> None:
    """Refuse a base under a name that the training will save its own checkpoints by.

    config: the model's, as a part of all options of a training.
    """
    root: Any = config._get_root() if isinstance(config, DictConfig) else {}
    saving = root.get("checkpoint") or {}
    path, save_dir = config.base_checkpoint, saving.get("save_dir")
    if not path or not save_dir:
        return
    directory, name = os.path.split(os.path.realpath(path))
    if directory == os.path.realpath(save_dir) and re.fullmatch(r"checkpoint.*\.pt", name):
        raise UserError(f"'{path}' is where this training saves its checkpoints: give another --save-dir")


def recorded_base(config: Union[Namespace, DictConfig]) -> str:
    """What the model options of a tg checkpoint record of its base; of any other checkpoint, nothing."""
    # Not `get`: a config of fixed keys raises for others, with omegaconf 2.0 whatever the default.
    return config.base_record if "base_record" in config else ""


def check_family(base: Base, arch: str, path: str) -> None:
    """Refuse a base of another family than `arch` wraps."""
    own = FAMILY_PREFIX + base.family
    if own != arch:
        known = sorted(name.removeprefix(FAMILY_PREFIX) for name in MODEL_REGISTRY if name.startswith(FAMILY_PREFIX))
        remedy = f"use --arch {own}" if own in MODEL_REGISTRY else f"a base is one of {', '.join(known)}"
        raise UserError(f"'{path}' is a {base.family} model, which --arch {arch} cannot wrap: {remedy}")
