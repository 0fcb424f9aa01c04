"""tg_bart: BART and mBART, Transformers with learned positions, norms of their embeddings and a symbol for masks."""

from __future__ import annotations

from typing import Any, Mapping

from fairseq.models import BaseFairseqModel
from fairseq.models.bart import BARTModel
from torch import Tensor

from fairseq_tg.models.base import ActorModel, register_family
from fairseq_tg.models.transformer import TGTransformerModel


@register_family("bart")
class TGBARTModel(TGTransformerModel, BARTModel):
    """A trained BART with actors."""

    base_class = BARTModel

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """fairseq's hub interface, as that of other families: BART's own is made for GPT-2's subwords."""
        return ActorModel.from_pretrained.__func__(_PlainHub, *args, **kwargs)

    def _check_dictionaries(self, base: Mapping[str, Tensor]) -> None:
        # As fairseq loads it: a pretrained model has a symbol for masks at the end, of which translation has no need
        name = "encoder.embed_tokens.weight"
        masked = len(base[name]) == len(self.encoder.dictionary) + 1 and "<mask>" not in self.encoder.dictionary
        if not masked:
            super()._check_dictionaries(base)


class _PlainHub(ActorModel, BaseFairseqModel):
    pass
