"""tg_transformer: an actor at the encoder attention of every decoder layer."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Optional, Tuple

from fairseq.models.transformer import TransformerModel
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn

from fairseq_tg.models.base import ActorModel, Seam, register_family
from fairseq_tg.models.site import ActorSite, adopt


class ActedDecoderLayer(TransformerDecoderLayerBase):
    """A decoder layer whose encoder attention sublayer f gives h~ = f(h, e) + a.

    h is what the attention is asked with (in a pre-norm base the normalised state), e what it answers. In a post-norm
    base f ends with a layer norm, in a pre-norm base with the residual sum: the action comes after it.
    The layer's forward is fairseq's own, so the action waits between the two places where that can be reached.
    """

    actor: ActorSite
    waiting: Optional[Tensor]  # the action, T x B x H, from the attention to the end of the sublayer

    def attach(self, site: ActorSite) -> None:
        self.actor = site
        self.waiting = None
        self.encoder_attn.register_forward_hook(self.observe, with_kwargs=True)
        if not self.normalize_before:
            self.encoder_attn_layer_norm.register_forward_hook(self.act)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.waiting = None  # that of a pass which an exception ended
        return super().forward(*args, **kwargs)

    def observe(self, attention: nn.Module, args: Tuple, kwargs: Dict[str, Any], output: Tuple) -> None:
        self.waiting = self.actor(kwargs["query"], output[0], kwargs["incremental_state"])

    def act(self, module: nn.Module, args: Tuple, state: Tensor) -> Tensor:
        if self.waiting is None:
            return state
        action, self.waiting = self.waiting, None
        return state + action

    def residual_connection(self, x: Tensor, residual: Tensor) -> Tensor:
        state = super().residual_connection(x, residual)
        return self.act(self, (), state) if self.normalize_before else state


@register_family("transformer")
class TGTransformerModel(ActorModel, TransformerModel):
    """A trained Transformer with actors."""

    base_class = TransformerModel

    def seams(self) -> Iterator[Seam]:
        # Not by iterating over the list: with --decoder-layerdrop that leaves out some layers, at random
        for index, layer in self.decoder.layers.named_children():
            if layer.encoder_attn is not None:
                yield Seam(f"decoder.layers.{index}", layer.embed_dim, layer.embed_dim)

    def attach(self, seam: Seam, site: ActorSite) -> None:
        adopt(self.get_submodule(seam.name), ActedDecoderLayer).attach(site)
