"""What a compiled LSTM or ConvS2S takes from dictionaries and embeddings."""

from __future__ import annotations

from typing import Any, Dict

import torch
from torch import Tensor

from fairseq_tg.compiled.piece_extract import Pieces


def vocabulary_fields(tensors: Pieces, output: Tensor, encoder: Any, decoder: Any) -> Dict[str, Any]:
    """What a layout says of them; embeddings that are not `output`, the output projection's weights, are put in."""
    shared = []
    for side, stack in (("encoder", encoder), ("decoder", decoder)):
        if torch.equal(stack.embed_tokens.weight, output):
            shared.append(side)
        else:
            tensors[f"{side}.embedding.weight"] = stack.embed_tokens.weight
    return {
        "vocabulary": len(decoder.embed_tokens.weight),
        "source_vocabulary": len(encoder.embed_tokens.weight),
        "source_positions": int(encoder.max_positions()),
        "target_positions": int(decoder.max_positions()),
        "pad": decoder.dictionary.pad(),
        "eos": decoder.dictionary.eos(),
        "unk": decoder.dictionary.unk(),
        "output_bias": "output.bias" in tensors,
        "shared_embeddings": tuple(shared),
    }
