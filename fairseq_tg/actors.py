"""The paper's actors: small networks that see a decoder state and a source context and give an action.

Every actor maps h (T x B x H) and e (T x B x E) to an action a (T x B x H) that is added to the state.
Its output map starts at zero, so that a fresh actor's action is exactly zero. Nothing here knows of fairseq.
Below, [h, e] is the concatenation, sigma the logistic function and * the elementwise product.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import List, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor, nn

from fairseq_tg.errors import UserError
from fairseq_tg.registry import Registry

ACTORS: Registry[Type[Actor]] = Registry("actor", flag="--actor")


class Maps(nn.Module):
    """Several linear maps of one input, taken in a single product.

    Args:
        in_dim: size of the input.
        out_dims: size of each map's output.
        bias: whether each map has a bias (the paper's ff and ff2 have, its rnn and gate have not).
        rank: 0 for full matrices; R > 0 to factor each map through R dimensions of its own.
    """

    def __init__(self, in_dim: int, out_dims: Sequence[int], bias: bool, rank: int) -> None:
        super().__init__()
        self.out_dims = list(out_dims)
        if rank:
            self.down = nn.Linear(in_dim, rank * len(self.out_dims), bias=False)
            self.up = nn.ModuleList(nn.Linear(rank, out_dim, bias=bias) for out_dim in self.out_dims)
        else:
            self.full = nn.Linear(in_dim, sum(self.out_dims), bias=bias)
        self.rank = rank

    def forward(self, x: Tensor) -> List[Tensor]:
        """x: ... x in_dim -> for each map, ... x out_dim."""
        if not self.rank:
            return list(self.full(x).split(self.out_dims, dim=-1))
        return [up(part) for up, part in zip(self.up, self.down(x).split(self.rank, dim=-1))]

    @torch.no_grad()
    def zero_last(self) -> None:
        """Make the last map zero, so that it starts by giving zeros."""
        last = self.up[-1] if self.rank else self.full
        assert isinstance(last, nn.Linear)
        last.weight[-self.out_dims[-1] :].zero_()
        if last.bias is not None:
            last.bias[-self.out_dims[-1] :].zero_()


class Actor(nn.Module, ABC):
    """What all actors have in common: subclasses make their maps in `build` and use them in `forward`.

    Args:
        state_dim: H, the size of the decoder state h and of the action.
        context_dim: E, the size of the source context e.
        hidden_dim: size of the hidden layers (of the recurrent state, for `rnn`); not used by `gate` and `linear`.
        rank: 0 for the paper's full maps; R factors each of them through R dimensions.
    """

    def __init__(self, state_dim: int, context_dim: int, hidden_dim: int, rank: int = 0) -> None:
        super().__init__()
        self.state_dim = state_dim
        self.input_dim = state_dim + context_dim
        self.hidden_dim = hidden_dim
        self.rank = rank
        self.build()

    def maps(self, in_dim: int, *out_dims: int, bias: bool) -> Maps:
        return Maps(in_dim, out_dims, bias, self.rank)

    @abstractmethod
    def build(self) -> None:
        """Make the maps, the one that gives the action at zero."""

    @abstractmethod
    def forward(self, h: Tensor, e: Tensor, memory: Optional[Tensor] = None) -> Tuple[Tensor, Optional[Tensor]]:
        """Act on T consecutive steps.

        Args:
            h: decoder states, T x B x H.
            e: source contexts, T x B x E.
            memory: what the last call returned, None at the start of a sentence.

        Returns:
            The actions, T x B x H, and the memory for the next steps (None for actors without).
        """


class MemorylessActor(Actor):
    """An actor whose action depends on its own step only."""

    @abstractmethod
    def action(self, x: Tensor) -> Tensor:
        """x = [h, e]: T x B x (H+E) -> T x B x H."""

    def forward(self, h: Tensor, e: Tensor, memory: Optional[Tensor] = None) -> Tuple[Tensor, Optional[Tensor]]:
        return self.action(torch.cat([h, e], dim=-1)), None


@ACTORS.register("gate")
class Gate(MemorylessActor):
    """z = sigma([h, e] U^z);  a = z * tanh([h, e] U)."""

    def build(self) -> None:
        self.gate_and_action = self.maps(self.input_dim, self.state_dim, self.state_dim, bias=False)
        self.gate_and_action.zero_last()

    def action(self, x: Tensor) -> Tensor:
        gate, action = self.gate_and_action(x)
        return torch.sigmoid(gate) * torch.tanh(action)


@ACTORS.register("ff")
class FeedForward(MemorylessActor):
    """z = sigma([h, e] W^i + b^i);  a = tanh(z W^o + b^o)."""

    def build(self) -> None:
        self.input = self.maps(self.input_dim, self.hidden_dim, bias=True)
        self.output = self.maps(self.hidden_dim, self.state_dim, bias=True)
        self.output.zero_last()

    def action(self, x: Tensor) -> Tensor:
        (hidden,) = self.input(x)
        (action,) = self.output(torch.sigmoid(hidden))
        return torch.tanh(action)


@ACTORS.register("ff2")
class FeedForward2(MemorylessActor):
    """z1 = sigma([h, e] W^i + b^i);  z2 = sigma(z1 W^z + b^z);  a = tanh(z2 W^o + b^o)."""

    def build(self) -> None:
        self.input = self.maps(self.input_dim, self.hidden_dim, bias=True)
        self.middle = self.maps(self.hidden_dim, self.hidden_dim, bias=True)
        self.output = self.maps(self.hidden_dim, self.state_dim, bias=True)
        self.output.zero_last()

    def action(self, x: Tensor) -> Tensor:
        (first,) = self.input(x)
        (second,) = self.middle(torch.sigmoid(first))
        (action,) = self.output(torch.sigmoid(second))
        return torch.tanh(action)


@ACTORS.register("rnn")
class Recurrent(Actor):
    """A GRU as the paper writes it: no biases, and the reset gate before the matrix product.

    z_t  = sigma([h_t, e_t] U^z + s_{t-1} W^z)
    r_t  = sigma([h_t, e_t] U^r + s_{t-1} W^r)
    s~_t = tanh([h_t, e_t] U^h + (s_{t-1} * r_t) W^h)
    s_t  = (1 - z_t) * s~_t + z_t * s_{t-1}
    a_t  = s_t U

    (torch's GRU resets after the product, which is another function.) The memory is s_t, B x hidden_dim.
    """

    def build(self) -> None:
        self.input = self.maps(self.input_dim, self.hidden_dim, self.hidden_dim, self.hidden_dim, bias=False)
        self.gates = self.maps(self.hidden_dim, self.hidden_dim, self.hidden_dim, bias=False)
        self.candidate = self.maps(self.hidden_dim, self.hidden_dim, bias=False)
        self.output = self.maps(self.hidden_dim, self.state_dim, bias=False)
        self.output.zero_last()

    def forward(self, h: Tensor, e: Tensor, memory: Optional[Tensor] = None) -> Tuple[Tensor, Optional[Tensor]]:
        s = h.new_zeros(h.size(1), self.hidden_dim) if memory is None else memory
        states = []
        # The input's products need no state: they are taken for all steps at once.
        for x_z, x_r, x_h in zip(*self.input(torch.cat([h, e], dim=-1))):
            s_z, s_r = self.gates(s)
            z = torch.sigmoid(x_z + s_z)
            r = torch.sigmoid(x_r + s_r)
            (s_h,) = self.candidate(s * r)
            s = (1 - z) * torch.tanh(x_h + s_h) + z * s
            states.append(s)
        (action,) = self.output(torch.stack(states))
        return action, s


@ACTORS.register("linear")
class Linear(MemorylessActor):
    """The paper's "w.o.", no hidden layer:  a = tanh([h, e] W + b)."""

    def build(self) -> None:
        self.output = self.maps(self.input_dim, self.state_dim, bias=True)
        self.output.zero_last()

    def action(self, x: Tensor) -> Tensor:
        (action,) = self.output(x)
        return torch.tanh(action)


class MapActor(nn.Module):
    """An actor beside a linear map, y = x W + b, of a trained model: a = x U, and y~ = y + a.

    What it does is as if W were W + U, which is how it is computed. Nothing of it is left at a fresh actor: U = 0.

    Args:
        in_dim, out_dim: sizes of x and y.
        rank: 0 for a full U; R factors it through R dimensions.
    """

    def __init__(self, in_dim: int, out_dim: int, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.action = Maps(in_dim, [out_dim], bias=False, rank=rank)
        self.action.zero_last()

    def change(self) -> Tensor:
        """out_dim x in_dim: what is added to the map's weights, as torch has them."""
        if not self.rank:
            return self.action.full.weight
        (up,) = self.action.up
        assert isinstance(up, nn.Linear)
        return up.weight @ self.action.down.weight


def build_actor(name: str, state_dim: int, context_dim: int, hidden_dim: int = 0, rank: int = 0) -> Actor:
    """Build an actor by its name; ``hidden_dim`` 0 stands for the state's own size."""
    if hidden_dim < 0:
        raise UserError(f"--actor-hidden {hidden_dim}: give a size, or 0 for the size of the decoder state")
    if rank < 0:
        raise UserError(f"--actor-rank {rank}: give a rank, or 0 for full maps")
    return ACTORS[name](state_dim, context_dim, hidden_dim or state_dim, rank)


def actor_name(actor: Actor) -> str:
    """By what name an actor was built."""
    return next((name for name in ACTORS.names() if type(actor) is ACTORS[name]), type(actor).__name__)
