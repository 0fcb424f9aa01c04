"""tg_bart: BART and mBART, Transformers with learned positions, norms of their embeddings and a symbol for masks."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from fairseq.models.bart import BARTModel
from torch import Tensor

from fairseq_tg.models.base import register_family
from fairseq_tg.models.transformer import TGTransformerModel


def set_beam(models: Sequence[Any], generator: Any) -> None:
    """Before a search: BART is made for the beam of the last generator that was built for it, whichever searches."""
    for model in models:
        if hasattr(model, "set_beam_size"):
            model.set_beam_size(generator.beam_size)


@register_family("bart")
class TGBARTModel(TGTransformerModel, BARTModel):
    """A trained BART with actors."""

    base_class = BARTModel

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """fairseq's, with every source: else attention would leave out those that a beam search has repeated."""
        attentions = [layer.encoder_attn for layer in self.decoder.layers if layer.encoder_attn is not None]
        beams = [attention.beam_size for attention in attentions]
        reorder = self.encoder.__dict__.pop("reorder_encoder_out", None)
        for attention in attentions:
            attention.set_beam_size(1)
        try:
            return super().forward(*args, **kwargs)
        finally:
            for attention, beam in zip(attentions, beams):
                attention.set_beam_size(beam)
            if reorder is not None:
                self.encoder.__dict__["reorder_encoder_out"] = reorder

    def _check_dictionaries(self, base: Mapping[str, Tensor]) -> None:
        # A pretrained model has a symbol for masks at the end; fairseq leaves it out where a dictionary has it not
        size, dictionary = len(base["encoder.embed_tokens.weight"]), self.encoder.dictionary
        if size != len(dictionary) + 1 or "<mask>" in dictionary:
            super()._check_dictionaries(base)
