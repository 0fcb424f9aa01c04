"""tg_lstm: an actor at the decoder's one attention, whose output also feeds the next step's input; on request, one
behind every layer of the decoder."""

from __future__ import annotations

from typing import Any, Iterator, Optional, Tuple

from fairseq.models.lstm import AttentionLayer, LSTMDecoder, LSTMModel
from torch import Tensor, nn

from fairseq_tg.models.base import ActorModel, register_family
from fairseq_tg.models.maps import seams_beside
from fairseq_tg.models.site import ActorSite, IncrementalState, InputTap, Seam, adopt


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


class ActedCell(nn.LSTMCell):
    """A layer of the decoder, its output moved by the action: h~_t = h_t + a, on h_t and the layer's input e_t.

    What is above it (the next layer, or the attention) and its own next step see h~_t; the cell's state stays.
    """

    actor: ActorSite

    def forward(self, input: Tensor, hx: Optional[Tuple[Tensor, Tensor]] = None) -> Tuple[Tensor, Tensor]:
        """input: B x E -> the layer's output, B x H, and its cell's state, B x H."""
        hidden, cell = super().forward(input, hx)
        # B x C -> 1 x B x C and back
        return hidden + self.actor(hidden.unsqueeze(0), input.unsqueeze(0), None).squeeze(0), cell


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

    def seams(self) -> Iterator[Seam]:
        if self.decoder.attention is not None:
            last = len(self.decoder.layers) - 1
            yield Seam("decoder.attention", self.decoder.hidden_size, self.decoder.encoder_output_units, last)

    def further_seams(self) -> Iterator[Seam]:
        for index, cell in enumerate(self.decoder.layers):
            yield Seam(f"decoder.layers.{index}", cell.hidden_size, cell.input_size, index)

    def map_seams(self) -> Iterator[Seam]:
        last = len(self.decoder.layers) - 1
        for seam in seams_beside(self.encoder.lstm, "encoder.lstm", 0):
            yield seam._replace(layer=int("".join(filter(str.isdecimal, seam.child))))
        for index, cell in enumerate(self.decoder.layers):
            yield from seams_beside(cell, f"decoder.layers.{index}", index)
        for name in ("encoder_hidden_proj", "encoder_cell_proj", "attention", "additional_fc"):
            module = getattr(self.decoder, name, None)
            is_used = name != "additional_fc" or self.decoder.adaptive_softmax is None
            if module is not None and is_used:
                yield from seams_beside(module, f"decoder.{name}", last)

    def attach(self, seam: Seam, site: ActorSite) -> None:
        module = self.get_submodule(seam.name)
        if isinstance(module, nn.LSTMCell):
            adopt(module, ActedCell).actor = site
        else:
            adopt(self.decoder, ActedLSTMDecoder)
            adopt(module, ActedAttention).attach(site)
