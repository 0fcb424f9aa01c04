"""What fairseq 0.12.2 has that its successors have not, taken away: then both generations have the same models.

Its Transformer encoder layers keep copies of their weights for a fast path of torch 1.12, which fails on padding with
torch 2: as parameters, so that they are in its checkpoints and in its models' state. Its positions keep a tensor that
is never filled, and differs from one load to the next. With this imported, checkpoints and fingerprints have neither.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Mapping

from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import nn

_COPIES = tuple(f"{part}_{kind}" for part in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias"))
_EXTRA = re.compile(rf"encoder\.layers\.\d+\.({'|'.join(_COPIES)})|(en|de)coder\.embed_positions\._float_tensor")


def without_extras(tensors: Mapping[str, Any]) -> Dict[str, Any]:
    """A model's tensors without those that only fairseq 0.12.2 has."""
    return {name: tensor for name, tensor in tensors.items() if not _EXTRA.fullmatch(name)}


def _remove_fast_path() -> None:
    layer_class: Any = TransformerEncoderLayerBase
    build = layer_class.__init__

    def build_without(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        for name in _COPIES:
            delattr(self, name)
        self.can_use_fastpath = False

    layer_class.__init__ = build_without
    layer_class._load_from_state_dict = nn.Module._load_from_state_dict


if "_load_from_state_dict" in vars(TransformerEncoderLayerBase):
    _remove_fast_path()
