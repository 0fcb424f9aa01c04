"""Greedy steps of a Transformer, with or without actors."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import torch
import torch.nn.functional as F
from fairseq.models.bart import BARTModel
from fairseq.models.transformer import TransformerModel, TransformerModelBase
from torch import Tensor

from fairseq_tg.compiled.transformer_extract import unsupported
from fairseq_tg.decoding.sessions import Acting, Session, padding_mask, session_for
from fairseq_tg.models.bart import TGBARTModel
from fairseq_tg.models.transformer import TGTransformerModel


class _Layer:
    """A decoder layer with its caches."""

    def __init__(self, layer: Any, encoded: Tensor, mask: Optional[Tensor], steps: int) -> None:
        self.layer = layer
        own, source = layer.self_attn, layer.encoder_attn
        projections = (own.q_proj, own.k_proj, own.v_proj)
        self.weight = torch.cat([projection.weight for projection in projections])
        self.bias = torch.cat([projection.bias for projection in projections])
        self.heads, self.head_dim = own.num_heads, own.head_dim
        self.source_heads, self.source_head_dim = source.num_heads, source.head_dim
        batch, self.dim = encoded.size(0), own.embed_dim
        self.cache = encoded.new_empty(batch, steps, 2, self.heads, self.head_dim)  # keys and values
        self.filled = 0
        # B x S x C -> B x H x S x D
        shape = (batch, encoded.size(1), self.source_heads, self.source_head_dim)
        self.keys = source.k_proj(encoded).view(shape).transpose(1, 2).contiguous()
        self.values = source.v_proj(encoded).view(shape).transpose(1, 2).contiguous()
        self.mask = mask  # B x 1 x 1 x S, true where there is something to attend to
        self.act, self.act_self, self.act_ffn = (Acting(layer, f"{at}actor") for at in ("", "self_", "ffn_"))

    def step(self, x: Tensor) -> Tensor:
        """x: B x C -> B x C."""
        layer, pre_norm, batch = self.layer, self.layer.normalize_before, x.size(0)

        state = layer.self_attn_layer_norm(x) if pre_norm else x
        qkv = F.linear(state, self.weight, self.bias).view(batch, 3, self.heads, self.head_dim)
        self.cache[:, self.filled] = qkv[:, 1:]
        self.filled += 1
        keys, values = self.cache[:, : self.filled].permute(2, 0, 3, 1, 4)  # each B x H x T x D
        answer = F.scaled_dot_product_attention(qkv[:, 0].unsqueeze(2), keys, values)
        given = layer.self_attn.out_proj(answer.reshape(batch, self.dim))
        x = x + given
        if not pre_norm:
            x = layer.self_attn_layer_norm(x)
        x = self.act_self(x, state, given)

        h = layer.encoder_attn_layer_norm(x) if pre_norm else x
        query = layer.encoder_attn.q_proj(h).view(batch, self.source_heads, 1, self.source_head_dim)
        answer = F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=self.mask)
        e = layer.encoder_attn.out_proj(answer.reshape(batch, self.dim))
        x = x + e
        if not pre_norm:
            x = layer.encoder_attn_layer_norm(x)
        x = self.act(x, h, e)

        state = layer.final_layer_norm(x) if pre_norm else x
        # Not by calling the modules: an actor of fairseq's own way through the layer looks at them
        hidden = layer.activation_fn(F.linear(state, layer.fc1.weight, layer.fc1.bias))
        given = F.linear(hidden, layer.fc2.weight, layer.fc2.bias)
        x = x + given
        return self.act_ffn(x if pre_norm else layer.final_layer_norm(x), state, given)

    def keep(self, rows: Tensor) -> None:
        kept = self.cache.new_empty(len(rows), *self.cache.shape[1:])
        kept[:, : self.filled] = self.cache[rows, : self.filled]
        self.cache = kept
        self.keys, self.values = self.keys[rows], self.values[rows]
        if self.mask is not None:
            self.mask = self.mask[rows]
        self.act.keep(rows)


@session_for(TransformerModel, TransformerModelBase, BARTModel, TGTransformerModel, TGBARTModel)
class TransformerSession(Session):
    def __init__(self, model: Any, net_input: Dict[str, Tensor], steps: int) -> None:
        self.decoder = model.decoder
        encoded = model.encoder.forward_torchscript(net_input)["encoder_out"][0].transpose(0, 1)  # B x S x C
        padding = padding_mask(net_input["src_tokens"], model.encoder.padding_idx)
        mask = None if padding is None else ~padding[:, None, None, :]
        self.layers: List[_Layer] = [_Layer(layer, encoded, mask, steps) for layer in self.decoder.layers]
        self.positions: Optional[Tensor] = None
        if self.decoder.embed_positions is not None:
            some = net_input["src_tokens"].new_full((1, steps), self.decoder.padding_idx + 1)  # any but padding
            self.positions = self.decoder.embed_positions(some)[0]
        self.done = 0

    @classmethod
    def supports(cls, model: Any) -> bool:
        return unsupported(model, by_engine=False) is None

    def step(self, tokens: Tensor) -> Tensor:
        decoder = self.decoder
        x = decoder.embed_tokens(tokens) * decoder.embed_scale
        if self.positions is not None:
            x = x + self.positions[self.done]
        if decoder.layernorm_embedding is not None:
            x = decoder.layernorm_embedding(x)
        x = self.disturbed(x)
        for layer in self.layers:
            x = layer.step(x)
        self.done += 1
        if decoder.layer_norm is not None:
            x = decoder.layer_norm(x)
        return decoder.output_projection(x)

    def keep(self, rows: Tensor) -> None:
        for layer in self.layers:
            layer.keep(rows)
