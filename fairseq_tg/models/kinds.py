"""Checkpoints that are not one model in one piece, refused by name."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Mapping

from fairseq_tg.errors import UserError


def refuse_kinds(model_options: Any, path: str = "the checkpoint") -> None:
    """Refuse what is pipeline-parallel or a mixture of experts.

    Args:
        model_options: of the checkpoint's model, a part of its record or (fairseq's way) all of it.
    """
    options: Mapping[str, Any] = vars(model_options) if isinstance(model_options, Namespace) else model_options
    name = str(options.get("_name") or options.get("arch") or "")
    command: Mapping[str, Any] = options
    if not isinstance(model_options, (Namespace, dict)):
        command = model_options._get_root().get("distributed_training") or {}
    if "pipeline_parallel" in name or _positive(command.get("pipeline_model_parallel")):
        raise UserError(f"{path} is a pipeline-parallel model, in parts for several devices: give a model in one piece")
    if _positive(options.get("moe_freq")) or _positive(options.get("base_layers")) or "_moe" in name:
        raise UserError(f"{path} is a mixture of experts, which cannot be given actors: give a dense model")


def _positive(value: Any) -> bool:
    return isinstance(value, (bool, int)) and value > 0
