"""Linear maps of a base with actors beside them (--actor-sites maps), as parts of fairseq's modules."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Tuple, Type
from weakref import ReferenceType, ref

import torch
from fairseq.modules import LinearizedConvolution
from fairseq.modules.conv_tbc import ConvTBC
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.utils.weight_norm import WeightNorm

from fairseq_tg.actors import MapActor
from fairseq_tg.loading.one_copy import LARGE
from fairseq_tg.memory import MappedFiles, give_back
from fairseq_tg.models.site import ActorSite, Seam, adopt


def own_weight(module: nn.Module, name: str = "weight") -> Tensor:
    """The base's own weights; a layer with weight norm, g v / |v|, has them only at the moment it is called."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm) and hook.name == name:
            return hook.compute_weight(module)
    weight = module._parameters[name]
    assert weight is not None
    return weight


def joined_weight(module: nn.Module, name: str = "weight") -> Tensor:
    """The weights of a map and of the actor beside it, if it has one."""
    return module.joined_weight(name) if isinstance(module, ActedMaps) else own_weight(module, name)


class ActedMaps(nn.Module):
    """A module of a base with actors beside its linear maps: each has a child, named after its weights.

    Whoever reads its weights (fairseq's attention does) finds those of both, W + U; the base's own are its parameters.
    """

    joined: Dict[str, Tuple[Tuple[int, ...], Tensor]]  # of what, and the weights of both
    of_pass: Optional[Joins] = None  # of the pass with gradients that is under way: see `joined_once`

    def attach(self, child: str, site: ActorSite) -> None:
        setattr(self, child, site)
        self.joined = {}

    def register_parameter(self, name: str, param: Optional[nn.Parameter]) -> None:
        """Torch's, without its look at what is there: to look at weights is to join them."""
        if name in self._parameters:
            self._parameters[name] = param
        else:
            super().register_parameter(name, param)

    def joined_weight(self, name: str) -> Tensor:
        """The weights of the map and of its actor, if it has one."""
        site = self._modules.get(child_of(name))
        if site is None:
            return own_weight(self, name)
        if torch.is_grad_enabled():
            self.joined = {}
            return self.join(name) if self.of_pass is None else self.of_pass.weight(self, name)
        versions = tuple(n for tensor in self.parameters() for n in (tensor.data_ptr(), tensor._version))
        if name not in self.joined or self.joined[name][0] != versions:
            self.joined[name] = versions, self.join(name)
            files = MappedFiles()
            for part in (own_weight(self, name), *site.parameters()):  # read again when the actors are others
                files.page_out(part.data_ptr(), part.nbytes)
            if self.joined[name][1].numel() >= LARGE:
                give_back()  # what it took to join them lies between what stays
        return self.joined[name][1]

    def join(self, name: str) -> Tensor:
        own, net = own_weight(self, name), self.get_submodule(child_of(name)).net
        assert isinstance(net, MapActor)
        change = net.change()
        if own.dim() == 3:  # O x (K I) -> K x I x O, as a convolution has them
            change = change.view(own.size(2), *own.shape[:2]).permute(1, 2, 0)
        return own + change


class _OneMap(ActedMaps):
    """A module whose one map is called `weight`."""

    @property
    def weight(self) -> Tensor:
        return self.joined_weight("weight")

    # What weight norm works out before every call, and takes away where it is removed: `own_weight` does that, too

    @weight.setter
    def weight(self, value: Tensor) -> None: ...

    @weight.deleter
    def weight(self) -> None: ...


class ActedLinear(_OneMap, nn.Linear): ...


class ActedConvTBC(_OneMap, ConvTBC): ...


class ActedLinearizedConvolution(_OneMap, LinearizedConvolution): ...


class ActedLSTMCell(ActedMaps, nn.LSTMCell):
    @property
    def weight_ih(self) -> Tensor:  # type: ignore[override]
        return self.joined_weight("weight_ih")

    @property
    def weight_hh(self) -> Tensor:  # type: ignore[override]
        return self.joined_weight("weight_hh")


class ActedLSTM(ActedMaps, nn.LSTM):
    def forward(self, input: Any, hx: Optional[Tuple[Tensor, Tensor]] = None) -> Any:
        self._update_flat_weights()  # as torch's forward does where parameters are others than before
        own = self._flat_weights  # which that takes, and not the parameters
        self._flat_weights = [
            self.joined_weight(name) if name.startswith("weight") else getattr(self, name)
            for name in self._flat_weights_names
        ]
        try:
            return super().forward(input, hx)
        finally:
            self._flat_weights = own


class Joins:
    """The joined weights of a pass with gradients.

    An LSTM needs its weights at every step: they are joined once. Others are needed once, and not kept: a product needs
    them again for its gradient, and there they are joined anew. (Of a large base with actors of a rank, all of them
    together would be the base once more.)
    """

    def __init__(self) -> None:
        self._kept: Dict[Tuple[nn.Module, str], Tensor] = {}
        self._made: Dict[int, Tuple[ReferenceType[Tensor], ActedMaps, str]] = {}  # by the address of their storage

    def weight(self, module: ActedMaps, name: str) -> Tensor:
        weight = self._kept.get((module, name))
        if weight is not None:
            return weight
        weight = module.join(name)
        if isinstance(module, (nn.LSTM, nn.LSTMCell)):
            self._kept[module, name] = weight
        else:
            self._made[weight.untyped_storage().data_ptr()] = ref(weight), module, name
        return weight

    def pack(self, tensor: Tensor) -> Any:
        """What autograd keeps of a tensor: of a joined weight, or its transpose, how to make it."""
        found, module, name = self._made.get(tensor.untyped_storage().data_ptr(), (None, None, ""))
        if found is None or found() is None:  # (where one was, another tensor may be now)
            return tensor
        return module, name, tensor.size(), tensor.stride(), tensor.storage_offset()

    @staticmethod
    def unpack(packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        module, name, *view = packed
        with torch.no_grad():
            return module.join(name).as_strided(*view)


@contextmanager
def joined_once(model: nn.Module) -> Iterator[None]:
    """A pass with gradients, in which weights are joined no more often, and kept no longer, than they have to be."""
    acted = [module for module in model.modules() if isinstance(module, ActedMaps)]
    if not acted:
        yield
        return
    joins = Joins()
    for module in acted:
        module.of_pass = joins
    try:
        with saved_tensors_hooks(joins.pack, joins.unpack):
            yield
    finally:
        for module in acted:
            module.of_pass = None


_ACTED: Dict[Type[nn.Module], Type[ActedMaps]] = {
    nn.Linear: ActedLinear,
    ConvTBC: ActedConvTBC,
    LinearizedConvolution: ActedLinearizedConvolution,
    nn.LSTMCell: ActedLSTMCell,
    nn.LSTM: ActedLSTM,
}


def child_of(weight: str) -> str:
    """How the actor beside a map is called in the map's module."""
    return "actor" if weight == "weight" else f"{weight}_actor"


def seams_beside(module: nn.Module, name: str, layer: int) -> Iterator[Seam]:
    """The places beside the maps of a module and of those below it."""
    actors = {below for site in module.modules() if isinstance(site, ActorSite) for below in site.modules()}
    parts: List[Tuple[str, nn.Module]] = list(module.named_modules(prefix=name))
    for below, part in parts:
        if part in actors or not isinstance(part, tuple(_ACTED)):
            continue
        for weight in _weights(part):
            outputs, *inputs = own_weight(part, weight).shape
            if len(inputs) > 1:  # K x I x O -> O x (K I)
                *inputs, outputs = outputs, *inputs
            yield Seam(below, outputs, math.prod(inputs), layer, child_of(weight))


def _weights(module: nn.Module) -> List[str]:
    if isinstance(module, (nn.LSTM, nn.LSTMCell)):
        return [name for name in module._parameters if name.startswith("weight")]
    return ["weight"]


def attach_beside(module: nn.Module, child: str, site: ActorSite) -> None:
    """Let an actor act beside a map of a module."""
    acted = type(module) if isinstance(module, ActedMaps) else _ACTED[type(module)]
    adopt(module, acted).attach(child, site)
