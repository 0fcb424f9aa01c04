"""From fairseq's LSTM, with or without an actor, to the layout and tensors of a compiled model."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional, Sequence, Tuple

import torch
from fairseq.models.lstm import AttentionLayer, LSTMDecoder, LSTMEncoder
from torch import Tensor, nn

from fairseq_tg.compiled.actor_extract import actor_fields, put_actor, put_further_actors, unknown_actor
from fairseq_tg.compiled.lstm_layout import ATTENTION, LSTMLayout
from fairseq_tg.compiled.piece_extract import Pieces
from fairseq_tg.compiled.vocabulary_extract import vocabulary_fields
from fairseq_tg.models.lstm import ActedAttention, ActedLSTMDecoder
from fairseq_tg.models.maps import own_weight


def unsupported(model: Any) -> Optional[str]:
    """The first thing about an LSTM that the engine does not know, or None."""
    encoder, decoder = model.encoder, model.decoder
    if type(encoder) is not LSTMEncoder or type(decoder) not in (LSTMDecoder, ActedLSTMDecoder):
        return f"an encoder and decoder of its own ({type(encoder).__name__}, {type(decoder).__name__})"
    attention = decoder.attention
    for option, present in (
        ("--adaptive-softmax-cutoff", decoder.adaptive_softmax is not None),
        ("no layers", not encoder.num_layers or encoder.num_layers != len(decoder.layers)),
        ("a projected LSTM", encoder.lstm.proj_size or not encoder.lstm.bias),
        ("an embedding of its own", not isinstance(decoder.embed_tokens, nn.Embedding)),
        (
            "an attention of its own",
            attention is not None
            and (type(attention) not in (AttentionLayer, ActedAttention) or attention.input_proj.bias is not None),
        ),
    ):
        if present:
            return option
    return unknown_actor(attention)


def extract(model: Any) -> Tuple[LSTMLayout, Pieces]:
    """The layout and the tensors of an LSTM that is not unsupported."""
    encoder, decoder, lstm, attention = model.encoder, model.decoder, model.encoder.lstm, model.decoder.attention
    tensors: Pieces = {}

    def put(name: str, module: Any) -> None:
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = own_weight(module), module.bias

    directions = {"forward": "", "backward": "_reverse"} if lstm.bidirectional else {"forward": ""}
    for index, cell in enumerate(decoder.layers):
        at = f"encoder.{index}"
        ends = [f"l{index}{suffix}" for suffix in directions.values()]
        tensors[f"{at}.input.weight"] = partial(_joined, lstm, [f"weight_ih_{end}" for end in ends], dim=0)
        tensors[f"{at}.input.bias"] = torch.cat(
            [getattr(lstm, f"bias_ih_{end}") + getattr(lstm, f"bias_hh_{end}") for end in ends]
        )
        for direction, end in zip(directions, ends):
            tensors[f"{at}.{direction}.weight"] = own_weight(lstm, f"weight_hh_{end}")
        tensors[f"decoder.{index}.cell.weight"] = partial(_joined, cell, ["weight_ih", "weight_hh"], dim=1)
        tensors[f"decoder.{index}.cell.bias"] = cell.bias_ih + cell.bias_hh
    if decoder.encoder_hidden_proj is not None:
        put("decoder.start.hidden", decoder.encoder_hidden_proj)
        put("decoder.start.cell", decoder.encoder_cell_proj)
    if attention is not None:
        to_context, to_state = own_weight(attention.output_proj).split(
            [encoder.output_units, decoder.hidden_size], dim=1
        )
        # The projected state meets the source, (W h) e: so does the state the projected source, h (W^T e)
        tensors[f"{ATTENTION}.source.weight"] = torch.cat([own_weight(attention.input_proj).t(), to_context])
        tensors[f"{ATTENTION}.state.weight"] = to_state
    actors = [attention.actor.net] if hasattr(attention, "actor") else []
    for actor in actors:
        put_actor(tensors, f"{ATTENTION}.actor", actor)
    further = {
        index: {f"decoder.{index}.actor": cell.actor}
        for index, cell in enumerate(decoder.layers)
        if hasattr(cell, "actor")
    }
    if hasattr(decoder, "additional_fc"):
        put("decoder.out", decoder.additional_fc)
    output = decoder.embed_tokens if decoder.share_input_output_embed else decoder.fc_out
    tensors["output.weight"] = output.weight
    if not decoder.share_input_output_embed:
        tensors["output.bias"] = output.bias
    layout = LSTMLayout(
        **vocabulary_fields(tensors, output.weight, encoder, decoder),
        layers=encoder.num_layers,
        encoder_embedding=encoder.embed_tokens.embedding_dim,
        encoder_hidden=encoder.hidden_size,
        bidirectional=bool(lstm.bidirectional),
        embedding=decoder.embed_tokens.embedding_dim,
        hidden=decoder.hidden_size,
        out_embedding=output.weight.size(1),
        attention=attention is not None,
        residuals=bool(decoder.residuals),
        **actor_fields(actors),
        **put_further_actors(tensors, further),
    )
    return layout, tensors


def _joined(module: Any, names: Sequence[str], dim: int) -> Tensor:
    return torch.cat([own_weight(module, name) for name in names], dim=dim)
