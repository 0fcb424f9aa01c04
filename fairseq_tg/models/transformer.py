"""tg_transformer: an actor at the encoder attention of every decoder layer; on request, one behind every sublayer."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Optional, Tuple

from fairseq.models.transformer import TransformerModel
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn

from fairseq_tg.models.base import ActorModel, register_family
from fairseq_tg.models.maps import seams_beside
from fairseq_tg.models.site import ActorSite, InputTap, Seam, adopt


class ActedDecoderLayer(TransformerDecoderLayerBase):
    """A decoder layer whose encoder attention sublayer f gives h~ = f(h, e) + a.

    h is what the attention is asked with (in a pre-norm base the normalised state), e what it answers. In a post-norm
    base f ends with a layer norm, in a pre-norm base with the residual sum: the action comes after it.
    The other two sublayers are alike: `self_actor` is behind the self-attention, `ffn_actor` behind the feed-forward.
    The layer's forward is fairseq's own, so an action waits between the two places where that can be reached.
    """

    actor: ActorSite
    self_actor: ActorSite
    ffn_actor: ActorSite
    fed_forward: InputTap
    waiting: Optional[Tensor]  # the action, T x B x H, until the end of the sublayer

    def attach(self, child: str, site: ActorSite) -> None:
        setattr(self, child, site)
        self.waiting = None
        if child == "ffn_actor":
            self.fed_forward, norm = InputTap(self.fc1), self.final_layer_norm
            self.fc2.register_forward_hook(self.observe_feed_forward)
        else:
            at = "self_attn" if child == "self_actor" else "encoder_attn"
            norm = getattr(self, f"{at}_layer_norm")
            getattr(self, at).register_forward_hook(self.observe, with_kwargs=True)
        if not self.normalize_before:
            norm.register_forward_hook(self.act)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.waiting = None  # that of a pass which an exception ended
        return super().forward(*args, **kwargs)

    def observe(self, attention: nn.Module, args: Tuple, kwargs: Dict[str, Any], output: Tuple) -> None:
        site = self.self_actor if attention is self.self_attn else self.actor
        self.waiting = site(kwargs["query"], output[0], kwargs["incremental_state"])

    def observe_feed_forward(self, last: nn.Module, args: Tuple, output: Tensor) -> None:
        self.waiting = self.ffn_actor(self.fed_forward.take(), output, None)

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
                yield Seam(f"decoder.layers.{index}", layer.embed_dim, layer.embed_dim, int(index))

    def further_seams(self) -> Iterator[Seam]:
        for seam in self.seams():
            yield from (seam._replace(child=child) for child in ("self_actor", "ffn_actor"))

    def map_seams(self) -> Iterator[Seam]:
        for side, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            for index, layer in stack.layers.named_children():
                yield from seams_beside(layer, f"{side}.layers.{index}", int(index))

    def attach(self, seam: Seam, site: ActorSite) -> None:
        adopt(self.get_submodule(seam.name), ActedDecoderLayer).attach(seam.child, site)
