"""From fairseq's ConvS2S, with or without actors, to the layout and tensors of a compiled model."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional, Tuple

import torch
from fairseq.models.fconv import AttentionLayer, FConvDecoder, FConvEncoder
from torch import Tensor

from fairseq_tg.compiled.actor_extract import actor_fields, put_actor, put_further_actors, unknown_actor
from fairseq_tg.compiled.fconv_layout import HALF, FConvLayout
from fairseq_tg.compiled.piece_extract import Pieces
from fairseq_tg.compiled.vocabulary_extract import vocabulary_fields
from fairseq_tg.models.fconv import ActedAttention, ActedFConvDecoder
from fairseq_tg.models.maps import ActedMaps, own_weight


def unsupported(model: Any) -> Optional[str]:
    """The first thing about a ConvS2S that the engine does not know, or None."""
    encoder, decoder = model.encoder, model.decoder
    if type(encoder) is not FConvEncoder or type(decoder) not in (FConvDecoder, ActedFConvDecoder):
        return f"an encoder and decoder of its own ({type(encoder).__name__}, {type(decoder).__name__})"
    if decoder.adaptive_softmax is not None:
        return "--adaptive-softmax-cutoff"
    if decoder.embed_positions is None:
        return "a decoder without positions"
    for attention in decoder.attention:
        if attention is not None and type(attention) not in (AttentionLayer, ActedAttention):
            return "an attention of its own"
        if unknown_actor(attention):
            return unknown_actor(attention)
    return None


def extract(model: Any) -> Tuple[FConvLayout, Pieces]:
    """The layout and the tensors of a ConvS2S that is not unsupported."""
    encoder, decoder = model.encoder, model.decoder
    tensors: Pieces = {}

    def put(name: str, module: Any, scale: float = 1.0) -> None:
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = partial(_weight, module, scale), module.bias * scale

    for side, stack in (("encoder", encoder), ("decoder", decoder)):
        put(f"{side}.in", stack.fc1)
        for index, (convolution, projection, back) in enumerate(
            zip(stack.convolutions, stack.projections, stack.residuals)
        ):
            put(f"{side}.{index}.conv", convolution)
            if projection is not None and back:
                put(f"{side}.{index}.residual", projection)
        tensors[f"{side}.positions"] = stack.embed_positions.weight[stack.embed_positions.padding_idx + 1 :]
    # A query is (W x + b + embedding) sqrt(1/2), and the source's sum with its embedding is scaled likewise: scaled
    # once, what the encoder gives serves both
    put("encoder.out", encoder.fc2, HALF)
    put("decoder.out", decoder.fc2)
    put("output", decoder.fc3)
    actors = {}
    attentions = {index: attention for index, attention in enumerate(decoder.attention) if attention is not None}
    for index, attention in attentions.items():
        tensors[f"decoder.{index}.attention.keys.weight"] = partial(_keys, attention.in_projection)
        put(f"decoder.{index}.attention.values", attention.out_projection, HALF)  # of (W e + b + x) sqrt(1/2)
        if hasattr(attention, "actor"):
            actors[index] = attention.actor.net
            put_actor(tensors, f"decoder.{index}.actor", attention.actor.net)
    further = {
        index: {f"decoder.{index}.conv.actor": convolution.actor}
        for index, convolution in enumerate(decoder.convolutions)
        if hasattr(convolution, "actor") and not isinstance(convolution, ActedMaps)
    }
    output = _weight(decoder.fc3)
    layout = FConvLayout(
        **vocabulary_fields(tensors, output, encoder, decoder),
        embedding=decoder.embed_tokens.embedding_dim,
        encoder_channels=_channels(encoder),
        encoder_widths=_widths(encoder),
        encoder_residuals=tuple(encoder.residuals),
        decoder_channels=_channels(decoder),
        decoder_widths=_widths(decoder),
        decoder_residuals=tuple(decoder.residuals),
        attention_layers=tuple(attentions),
        out_embedding=output.size(1),
        **actor_fields(actors.values()),
        **put_further_actors(tensors, further),
        actor_layers=tuple(actors),
    )
    return layout, tensors


def _weight(module: Any, scale: float = 1.0) -> Tensor:
    weight = own_weight(module)
    if weight.dim() == 3:  # K x I x O -> O x (K I), as the inputs of a window lie one after another
        weight = weight.permute(2, 0, 1).reshape(weight.size(2), -1)
    return weight if scale == 1.0 else weight * scale


def _keys(projection: Any) -> Tensor:
    """Of the source, to be met by queries: (W x + b) e = x (W^T e) + b e."""
    return torch.cat([own_weight(projection).t(), projection.bias.unsqueeze(0)])


def _channels(stack: Any) -> Tuple[int, ...]:
    return tuple(convolution.out_channels // 2 for convolution in stack.convolutions)


def _widths(stack: Any) -> Tuple[int, ...]:
    return tuple(convolution.kernel_size[0] for convolution in stack.convolutions)
