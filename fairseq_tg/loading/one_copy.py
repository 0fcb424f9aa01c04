"""One copy of a large model in memory: checkpoints are mapped, and their tensors become a model's own.

fairseq reads a checkpoint, builds a model with random weights and copies the checkpoint's over them: three times the
model's size. Here a file is mapped, random weights that will be replaced are not drawn, and nothing is copied. Weights
of half precision stay as they are in the file, until torch computes with them: the native engine makes its own of them.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Callable, Dict, Iterator, Mapping

import torch
from fairseq.models.transformer import TransformerModelBase
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fairseq_tg.actor_format import is_of_actor
from fairseq_tg.memory import MappedFiles, give_back

#: Elements of a tensor that is large enough to matter. (Smaller ones are drawn: a seed gives what it always gave.)
LARGE = 1 << 20
#: What is exact in float32, which models compute in
HALF = (torch.float16, torch.bfloat16)
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
        give_back()  # tensors that were made, and replaced


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
    """torch's `_metadata` of a state: of every module, that its tensors are taken and not copied; of actors if told."""

    def __init__(self, actors: bool) -> None:
        self._actors = actors

    def get(self, prefix: str, default: Any = None) -> Dict[str, Any]:
        return {"assign_to_params_buffers": True} if self._actors or not is_of_actor(prefix) else {}


class OneCopy(OrderedDict):
    """The tensors of a model, for `load_state_dict` to take as they are.

    Those of actors stay its own while they may be trained, and to be of the type that it computes in.
    """

    def __init__(self, tensors: Mapping[str, Tensor], model_dtype: torch.dtype) -> None:
        super().__init__(tensors)
        same = all(tensor.dtype == model_dtype for name, tensor in tensors.items() if is_of_actor(name))
        self._metadata = _Assigned(actors=tensors_are_taken() and same)


def one_copy(tensors: Mapping[str, Tensor], model_dtype: torch.dtype = torch.float32) -> Mapping[str, Tensor]:
    """The tensors as `OneCopy`, if a model on a CPU that computes in `model_dtype` can take them as they are.

    While models are loaded to translate with, those of half precision, too: see `make_float_when_run`.
    """
    known = (model_dtype, *(HALF if tensors_are_taken() else ()))
    plain = all(
        tensor.device.type == "cpu" and (tensor.dtype in known or not tensor.is_floating_point())
        for tensor in tensors.values()
    )
    return OneCopy(tensors, model_dtype) if plain else tensors


def make_float_when_run(model: Any) -> None:
    """Have a model that was taken in half precision compute in float32, as if its tensors had been copied.

    A Transformer becomes float32 when torch first runs a part of it: whoever has the native engine search needs no
    copy. (Other families work weights out from their tensors before, where half precision would round them.)
    """
    if not any(parameter.dtype in HALF for parameter in model.parameters()):
        return
    if not isinstance(model, TransformerModelBase):
        _make_float(model)
        return

    def first(change: Callable[[], Any], run: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(run)
        def run_first(*args: Any, **kwargs: Any) -> Any:
            for module, name in replaced:
                delattr(module, name)  # which its class has, too
            model.becomes_float = False
            change()
            return run(*args, **kwargs)

        return run_first

    # fairseq's searches call the parts' `forward`, and no hooks
    replaced = [(model.encoder, "forward"), (model.decoder, "forward"), (model, "half")]
    for module, name in replaced[:2]:
        setattr(module, name, first(lambda: _make_float(model), getattr(module, name)))
    model.half = first(lambda: None, model.half)  # --fp16: computed with as it is
    model.becomes_float = True


def _make_float(model: Any) -> None:
    made: Dict[Any, Any] = {}  # with what it was made from: its address stays its own
    files = MappedFiles()

    def changed(tensor: Tensor) -> Tensor:
        if tensor.dtype not in HALF:
            return tensor
        key = tensor.data_ptr(), tensor.shape, tensor.stride()  # embeddings are the output's weights, too
        if key not in made:
            made[key] = tensor.float(), tensor
            files.page_out(tensor.data_ptr(), tensor.nbytes)
        return made[key][0]

    model._apply(changed)


def is_float_on_cpu(model: Any) -> bool:
    """Whether a model computes on a CPU in float32, if torch runs it."""
    known = (torch.float32, *(HALF if getattr(model, "becomes_float", False) else ()))
    return all(parameter.device.type == "cpu" and parameter.dtype in known for parameter in model.parameters())
