"""One copy of a large model in memory: checkpoints are mapped, and their tensors become a model's own.

fairseq reads a checkpoint, builds a model with random weights and copies the checkpoint's over them: three times the
model's size. Here a file is mapped, random weights that will be replaced are not drawn, and nothing is copied.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Dict, Iterator, Mapping

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fairseq_tg.actor_format import is_of_actor

#: Elements of a tensor that is large enough to matter. (Smaller ones are drawn: a seed gives what it always gave.)
LARGE = 1 << 20
#: What draws or copies weights in place
_FILLS = {
    *(Tensor.normal_, Tensor.uniform_, Tensor.zero_, Tensor.fill_, Tensor.copy_),
    *(torch.nn.init.normal_, torch.nn.init.uniform_, torch.nn.init.constant_, torch.nn.init.zeros_),
    *(torch.nn.init.xavier_uniform_, torch.nn.init.xavier_normal_),
    *(torch.nn.init.kaiming_uniform_, torch.nn.init.kaiming_normal_),
}


_taken: ContextVar[bool] = ContextVar("taken", default=False)


@contextmanager
def taking_tensors() -> Iterator[None]:
    """While models are loaded to translate with. (One that is trained has its parameters in an optimizer's hands.)"""
    token = _taken.set(True)
    try:
        yield
    finally:
        _taken.reset(token)


def tensors_are_taken() -> bool:
    return _taken.get()


class WithoutWeights(TorchFunctionMode):
    """A context in which large tensors are made, but not filled: their weights come later."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FILLS:
            target = args[0] if args else (kwargs or {}).get("tensor")
            if isinstance(target, Tensor) and target.numel() >= LARGE:
                return target
        return func(*args, **(kwargs or {}))


class _Assigned:
    """torch's `_metadata` of a state: of every module but actors, that its tensors are taken and not copied."""

    def get(self, prefix: str, default: Any = None) -> Dict[str, Any]:
        return {} if is_of_actor(prefix) else {"assign_to_params_buffers": True}


class OneCopy(OrderedDict):
    """The tensors of a model, for `load_state_dict` to take as they are."""

    _metadata = _Assigned()


def one_copy(tensors: Mapping[str, Tensor], model_dtype: torch.dtype = torch.float32) -> Mapping[str, Tensor]:
    """The tensors as `OneCopy`, if a model on a CPU that computes in `model_dtype` can take them as they are."""
    plain = all(
        tensor.device.type == "cpu" and (tensor.dtype == model_dtype or not tensor.is_floating_point())
        for tensor in tensors.values()
    )
    return OneCopy(tensors) if plain else tensors
