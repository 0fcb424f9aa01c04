"""tg_fconv: an actor at every attention of a convolutional decoder; on request, one behind every convolution."""

from __future__ import annotations

from typing import Any, Iterator, Optional, Tuple

from fairseq.models.fconv import AttentionLayer, FConvDecoder, FConvModel
from fairseq.modules import LinearizedConvolution
from torch import Tensor

from fairseq_tg.models.base import ActorModel, register_family
from fairseq_tg.models.maps import seams_beside
from fairseq_tg.models.site import ActorSite, IncrementalState, InputTap, Seam, adopt


class ActedAttention(AttentionLayer):
    """One step of multi-step attention, h~ = (W e + h) sqrt(1/2) + a; h has conv channels, e embedding size."""

    actor: ActorSite
    projected: InputTap
    incremental_state: Optional[IncrementalState]  # of the decoder's pass under way

    def attach(self, site: ActorSite) -> None:
        self.actor = site
        self.projected = InputTap(self.out_projection)
        self.incremental_state = None

    def forward(
        self, x: Tensor, target_embedding: Tensor, encoder_out: Any, encoder_padding_mask: Optional[Tensor]
    ) -> Tuple[Tensor, Tensor]:
        """x: B x T x H -> the state, B x T x H, and the attention's weights, B x T x S."""
        attended, weights = super().forward(x, target_embedding, encoder_out, encoder_padding_mask)
        context = self.projected.take()
        # B x T x C -> T x B x C -> B x T x C
        action = self.actor(x.transpose(0, 1), context.transpose(0, 1), self.incremental_state).transpose(0, 1)
        return attended + action, weights


class ActedConvolution(LinearizedConvolution):
    """A convolution, what it gives moved by the action ahead of its gated linear unit: c~ = c + a, x' = GLU(c~).

    The actor sees what the convolution gives, c (values and gates: twice the channels), and its input at that step, x.
    Attention and residual sum come after the unit.
    """

    actor: ActorSite

    def forward(self, input: Tensor, incremental_state: Optional[IncrementalState] = None) -> Tensor:
        """input: T x B x C or, with a state, B x 1 x C -> the same with 2 C' for C."""
        output = super().forward(input, incremental_state)
        return output + self.actor(output, input, None)


class ActedFConvDecoder(FConvDecoder):
    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any = None,
        incremental_state: Optional[IncrementalState] = None,
        **unused: Any,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        for attention in self.attention:  # which fairseq does not give the state
            if isinstance(attention, ActedAttention):
                attention.incremental_state = incremental_state
        return super().forward(prev_output_tokens, encoder_out, incremental_state, **unused)


@register_family("fconv")
class TGFConvModel(ActorModel, FConvModel):
    """A trained ConvS2S with actors."""

    base_class = FConvModel

    def seams(self) -> Iterator[Seam]:
        for index, attention in enumerate(self.decoder.attention):
            if attention is not None:
                embed_dim, channels = attention.out_projection.in_features, attention.out_projection.out_features
                yield Seam(f"decoder.attention.{index}", channels, embed_dim, index)

    def further_seams(self) -> Iterator[Seam]:
        for index, convolution in enumerate(self.decoder.convolutions):
            yield Seam(f"decoder.convolutions.{index}", convolution.out_channels, convolution.in_channels, index)

    def map_seams(self) -> Iterator[Seam]:
        for side, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            last = len(stack.convolutions) - 1
            yield from seams_beside(stack.fc1, f"{side}.fc1", 0)
            for name in ("projections", "convolutions", "attention"):
                for index, part in enumerate(getattr(stack, name, ())):
                    if part is not None:
                        yield from seams_beside(part, f"{side}.{name}.{index}", index)
            yield from seams_beside(stack.fc2, f"{side}.fc2", last)

    def attach(self, seam: Seam, site: ActorSite) -> None:
        module = self.get_submodule(seam.name)
        if isinstance(module, LinearizedConvolution):
            adopt(module, ActedConvolution).actor = site
        else:
            adopt(self.decoder, ActedFConvDecoder)
            adopt(module, ActedAttention).attach(site)
