"""tg_bart: BART and mBART, Transformers with learned positions, norms of their embeddings and a symbol for masks."""

from __future__ import annotations

from typing import Mapping

from fairseq.models.bart import BARTModel
from torch import Tensor

from fairseq_tg.models.base import register_family
from fairseq_tg.models.transformer import TGTransformerModel


@register_family("bart")
class TGBARTModel(TGTransformerModel, BARTModel):
    """A trained BART with actors."""

    base_class = BARTModel

    def _check_dictionaries(self, base: Mapping[str, Tensor]) -> None:
        # A pretrained model has a symbol for masks at the end; fairseq leaves it out where a dictionary has it not
        size, dictionary = len(base["encoder.embed_tokens.weight"]), self.encoder.dictionary
        if size != len(dictionary) + 1 or "<mask>" in dictionary:
            super()._check_dictionaries(base)
