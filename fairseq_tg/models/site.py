"""Where an actor meets a fairseq decoder: its memory in fairseq's incremental state, and the norms it records."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Type, TypeVar, Union

from fairseq import utils
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from torch import Tensor, nn

from fairseq_tg.actors import Actor, MapActor

#: fairseq's store of what a decoder remembers between steps: a buffer of named tensors for every module.
IncrementalState = Dict[str, Dict[str, Optional[Tensor]]]

M = TypeVar("M", bound=nn.Module)


class Norms(NamedTuple):
    """L2 norms over the last dimension of what an actor saw and gave, each T x B."""

    action: Tensor
    state: Tensor
    context: Tensor


class Seam(NamedTuple):
    """A place for an actor: the module that gets it as its child, and the sizes of h and e there."""

    name: str
    state_dim: int
    context_dim: int
    layer: int  # of the decoder, or of the encoder
    child: str = "actor"  # or something that ends in _actor: see `split_tensors`


class ActorSite(FairseqIncrementalState, nn.Module):
    """An actor at its place in a model. Its parameters, and no others, are the ones to train."""

    def __init__(self, actor: Union[Actor, MapActor]) -> None:
        super().__init__()
        self.net = actor
        self.recorded: Optional[List[Norms]] = None  # a list while norms are being recorded

    def forward(self, h: Tensor, e: Tensor, incremental_state: Optional[IncrementalState]) -> Tensor:
        """h: T x B x H, e: T x B x E -> the action, T x B x H.

        With an incremental state, the steps continue those of the last call with the same one.
        """
        buffer = utils.get_incremental_state(self, incremental_state, "actor")
        action, memory = self.net(h, e, None if buffer is None else buffer["memory"])
        if memory is not None:
            utils.set_incremental_state(self, incremental_state, "actor", {"memory": memory})
        if self.recorded is not None:
            self.recorded.append(Norms(*(x.detach().float().norm(dim=-1) for x in (action, h, e))))
        return action

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Follow the beams: fairseq's decoders call this on every module that has it."""
        buffer = utils.get_incremental_state(self, incremental_state, "actor")
        if buffer is not None:
            memory = buffer["memory"].index_select(0, new_order)
            utils.set_incremental_state(self, incremental_state, "actor", {"memory": memory})


class InputTap:
    """Keeps what a submodule was last given, where the layer around it does not give it away."""

    def __init__(self, module: nn.Module) -> None:
        self.value: Optional[Tensor] = None
        module.register_forward_pre_hook(self)

    def __call__(self, module: nn.Module, args: tuple) -> None:
        self.value = args[0]

    def take(self) -> Tensor:
        value, self.value = self.value, None
        if value is None:
            raise RuntimeError("the tapped module has not run since its input was last taken")
        return value


def adopt(module: nn.Module, subclass: Type[M]) -> M:
    """Make a module that fairseq built an instance of a subclass of its class.

    fairseq's models name the classes of their decoders and attentions in the code that builds them. Changing the
    class of what they built leaves every parameter, its name and its object as they were.
    """
    if type(module) not in subclass.__mro__:
        raise TypeError(f"cannot make a {subclass.__name__} of a {type(module).__name__}")
    module.__class__ = subclass
    assert isinstance(module, subclass)
    return module
