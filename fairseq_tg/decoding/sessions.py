"""What greedy decoding asks of a model: a session that translates one batch, a token at a time.

A session does what fairseq's decoder does in an incremental step, with its caches allocated once, what depends on the
source alone worked out once, and nothing reordered: there is one hypothesis a sentence. Every family has its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, Optional, Type

from fairseq.models import BaseFairseqModel
from torch import Tensor, nn

from fairseq_tg.actors import Actor
from fairseq_tg.models.site import ActorSite

_SESSIONS: Dict[Type[BaseFairseqModel], Type[Session]] = {}


class Session(ABC):
    """A batch on its way through a decoder.

    Args:
        model: in evaluation mode.
        net_input: fairseq's, with the source tokens, B x S.
        steps: the most steps there will be.
    """

    #: Noise to put on the decoder's state before a step: see `npad`
    noise: Optional[Callable[[Tensor], Tensor]] = None

    @abstractmethod
    def __init__(self, model: Any, net_input: Dict[str, Tensor], steps: int) -> None: ...

    def disturbed(self, state: Tensor) -> Tensor:
        """The state with noise, if there is to be any."""
        return state if self.noise is None else self.noise(state)

    @classmethod
    @abstractmethod
    def supports(cls, model: Any) -> bool:
        """Whether all of the model's options are known to the session."""

    @abstractmethod
    def step(self, tokens: Tensor) -> Tensor:
        """The last tokens, B -> the logits of the next, B x V."""

    @abstractmethod
    def keep(self, rows: Tensor) -> None:
        """Go on with these sentences only."""


def session_for(*models: Type[BaseFairseqModel]) -> Callable[[Type[Session]], Type[Session]]:
    """Register the session of these models; not of subclasses, which may compute something else."""

    def register(cls: Type[Session]) -> Type[Session]:
        _SESSIONS.update({model: cls for model in models})
        return cls

    return register


def find_session(model: Any) -> Optional[Type[Session]]:
    """The session class for a model, or None if it has to be decoded fairseq's way."""
    session = _SESSIONS.get(type(model))
    return session if session is not None and session.supports(model) else None


class Acting:
    """An actor and its memory during a session; does nothing where there is no actor."""

    def __init__(self, holder: nn.Module, child: str = "actor") -> None:
        site = getattr(holder, child, None)
        self.net = site.net if isinstance(site, ActorSite) and isinstance(site.net, Actor) else None
        self.memory: Optional[Tensor] = None

    def __call__(self, state: Tensor, h: Tensor, e: Tensor) -> Tensor:
        """state + a, with a the action on h (B x H) and e (B x E)."""
        if self.net is None:
            return state
        # B x C -> 1 x B x C and back: actors act on several steps
        action, self.memory = self.net(h.unsqueeze(0), e.unsqueeze(0), self.memory)
        return state + action.squeeze(0)

    def keep(self, rows: Tensor) -> None:
        if self.memory is not None:
            self.memory = self.memory.index_select(0, rows)


def padding_mask(tokens: Tensor, pad: int) -> Optional[Tensor]:
    """Where a batch has padding, B x S; None if it has not."""
    mask = tokens.eq(pad)
    return mask if mask.any() else None
