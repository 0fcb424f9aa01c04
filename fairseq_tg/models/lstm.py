"""tg_lstm: an actor at the decoder's one attention, whose output also feeds the next step's input."""

from __future__ import annotations

from typing import Any, Iterator, Optional, Tuple

from fairseq.models.lstm import AttentionLayer, LSTMDecoder, LSTMModel
from torch import Tensor

from fairseq_tg.models.base import ActorModel, Seam, register_family
from fairseq_tg.models.site import ActorSite, IncrementalState, InputTap, adopt


class ActedAttention(AttentionLayer):
    """Luong's attention, its attention vector moved by the action: h~ = tanh(W [e, h]) + a."""

    actor: ActorSite
    projected: InputTap
    incremental_state: IncrementalState  # of the decoder's pass under way

    def attach(self, site: ActorSite) -> None:
        self.actor = site
        self.projected = InputTap(self.output_proj)
        self.incremental_state = {}

    def forward(self, input: Tensor, source_hids: Tensor, encoder_padding_mask: Tensor) -> Tuple[Tensor, Tensor]:
        """input: B x H, source_hids: S x B x E -> the attention vector, B x H, and its weights, S x B."""
        attended, weights = super().forward(input, source_hids, encoder_padding_mask)
        context = self.projected.take()[:, : source_hids.size(2)]  # [e, h] -> e
        # B x C -> 1 x B x C and back: the decoder calls its attention a step at a time
        action = self.actor(input.unsqueeze(0), context.unsqueeze(0), self.incremental_state).squeeze(0)
        return attended + action, weights


class ActedLSTMDecoder(LSTMDecoder):
    def extract_features(
        self, prev_output_tokens: Tensor, encoder_out: Any = None, incremental_state: Optional[IncrementalState] = None
    ) -> Tuple[Tensor, Optional[Tensor]]:
        # The attention is not given the state. Under teacher forcing an actor's memory still has to pass from one
        # step of fairseq's loop to the next: it gets a store for this pass alone.
        self.attention.incremental_state = {} if incremental_state is None else incremental_state
        return super().extract_features(prev_output_tokens, encoder_out, incremental_state)

    def output_layer(self, x: Tensor) -> Tensor:
        return super().output_layer(x.contiguous())  # with shared embeddings not a module: see `_contiguous`


@register_family("lstm")
class TGLSTMModel(ActorModel, LSTMModel):
    """A trained LSTM with an actor."""

    base_class = LSTMModel
    default_layers = "last"

    def seams(self) -> Iterator[Seam]:
        if self.decoder.attention is not None:
            yield Seam("decoder.attention", self.decoder.hidden_size, self.decoder.encoder_output_units)

    def attach(self, seam: Seam, site: ActorSite) -> None:
        adopt(self.decoder, ActedLSTMDecoder)
        adopt(self.decoder.attention, ActedAttention).attach(site)
