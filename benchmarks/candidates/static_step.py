"""A fairseq Transformer as plain torch modules for one sentence: an encoder, and a decoder step with a static cache.

No batch dimension anywhere. The attention of all heads is written as products and sums, which compilers can fuse.
S is the source length, T the cache's capacity, L the number of decoder layers, H the heads and D the state.
"""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor, nn

POSITIONS = 1024  # rows of the position tables: the longest source and target


def check(model: Any) -> None:
    """Refuse a model that these modules would not compute."""
    encoder, decoder = model.encoder, model.decoder
    layers = [*encoder.layers, *decoder.layers]
    odd = ("attn_ln", "c_attn", "ffn_layernorm", "w_resid")  # parts of NormFormer
    if any(layer.normalize_before for layer in layers) or encoder.layer_norm or decoder.layer_norm:
        raise ValueError("only post-norm layers are supported")
    probe = torch.tensor([-1.5, 0.0, 2.0])
    if any(not torch.equal(layer.activation_fn(probe), probe.relu()) for layer in layers):
        raise ValueError("only the relu activation is supported")
    if any(getattr(layer, name, None) is not None for layer in layers for name in odd):
        raise ValueError("scaled layers (NormFormer) are not supported")
    if any(layer.encoder_attn is None or layer.cross_self_attention for layer in decoder.layers):
        raise ValueError("only decoders with separate self and encoder attention are supported")
    for side in (encoder, decoder):
        if side.layernorm_embedding is not None or not isinstance(side.embed_positions, SinusoidalPositionalEmbedding):
            raise ValueError("only sinusoidal positions without a layer norm of the embeddings are supported")
    if decoder.adaptive_softmax or decoder.project_in_dim or decoder.project_out_dim:
        raise ValueError("adaptive softmax and projected embeddings are not supported")
    for name, module in model.named_modules():
        if getattr(module, "bias_k", None) is not None or getattr(module, "add_zero_attn", False):
            raise ValueError(f"{name}: bias_k and add_zero_attn are not supported")


def gate_weight(layer: Any) -> Optional[Tensor]:
    """The weight [Uz; U] of a full gate actor, None for a layer without an actor."""
    site = getattr(layer, "actor", None)
    if site is None:
        return None
    maps = getattr(site.net, "gate_and_action", None)
    if maps is None or maps.rank:
        raise ValueError("only full gate actors are supported")
    return maps.full.weight


def joined(parts: List[Any], scales: Optional[List[float]] = None) -> nn.Linear:
    """One linear map for several of one input, each scaled."""
    scales = scales or [1.0] * len(parts)
    weight = torch.cat([part.weight * scale for part, scale in zip(parts, scales)])
    made = nn.Linear(weight.size(1), weight.size(0))
    made.weight.data = weight.detach().float().clone()
    biases = [torch.zeros(len(part.weight)) if part.bias is None else part.bias for part in parts]
    made.bias.data = torch.cat([bias * scale for bias, scale in zip(biases, scales)]).detach().float().clone()
    return made


def positions(side: Any) -> Tensor:
    """The sinusoids of positions 0, 1, ..."""
    first = side.padding_idx + 1
    return SinusoidalPositionalEmbedding.get_embedding(first + POSITIONS, side.embed_positions.embedding_dim)[first:]


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Optional[Tensor] = None) -> Tensor:
    """One query H x d, keys and values H x T x d, mask T -> the answer, 1 x D."""
    scores = (q.unsqueeze(1) * keys).sum(-1)
    scores = scores if mask is None else scores + mask
    return (scores.softmax(-1).unsqueeze(-1) * values).sum(1).view(1, -1)


class EncoderLayer(nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        attn = layer.self_attn
        self.heads = attn.num_heads
        self.qkv = joined([attn.q_proj, attn.k_proj, attn.v_proj], [attn.scaling, 1.0, 1.0])
        self.out, self.norm = joined([attn.out_proj]), layer.self_attn_layer_norm
        self.fc1, self.fc2, self.final_norm = layer.fc1, layer.fc2, layer.final_layer_norm

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(x.size(0), 3, self.heads, -1).permute(1, 2, 0, 3)
        answer = torch.matmul(torch.matmul(q, k.transpose(1, 2)).softmax(-1), v)
        x = self.norm(x + self.out(answer.transpose(0, 1).reshape(x.size(0), -1)))
        return self.final_norm(x + self.fc2(self.fc1(x).relu()))


class Encoder(nn.Module):
    """Source ids, S -> the keys and values of every decoder layer's encoder attention, L x 2 x H x S x d."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.heads, self.scale = model.decoder.layers[0].encoder_attn.num_heads, float(model.encoder.embed_scale)
        self.embed = model.encoder.embed_tokens
        self.register_buffer("positions", positions(model.encoder))
        self.layers = nn.ModuleList(EncoderLayer(layer) for layer in model.encoder.layers)
        attentions = [layer.encoder_attn for layer in model.decoder.layers]
        self.memory = joined([part for attn in attentions for part in (attn.k_proj, attn.v_proj)])
        self.depth = len(attentions)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.scale * self.embed.weight[tokens] + self.positions[: tokens.size(0)]
        for layer in self.layers:
            x = layer(x)
        return self.memory(x).view(x.size(0), self.depth, 2, self.heads, -1).permute(1, 2, 3, 0, 4).contiguous()


class DecoderLayer(nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        own, cross, gate = layer.self_attn, layer.encoder_attn, gate_weight(layer)
        self.heads, self.cross_heads = own.num_heads, cross.num_heads
        self.qkv = joined([own.q_proj, own.k_proj, own.v_proj], [own.scaling, 1.0, 1.0])
        self.out, self.norm = joined([own.out_proj]), layer.self_attn_layer_norm
        self.cross_q, self.cross_out = joined([cross.q_proj], [cross.scaling]), joined([cross.out_proj])
        self.cross_norm = layer.encoder_attn_layer_norm
        self.gate = None if gate is None else nn.Parameter(gate.detach().float().clone())
        self.fc1, self.fc2, self.final_norm = layer.fc1, layer.fc2, layer.final_layer_norm

    def forward(self, x: Tensor, t: Tensor, mask: Tensor, cache: Tensor, memory: Tensor) -> Tensor:
        """x: 1 x D; cache: 2 x H x T x d, whose place t is written here; memory: 2 x H x S x d."""
        q, k, v = self.qkv(x).view(3, self.heads, -1)
        cache.index_copy_(2, t, torch.stack([k, v]).unsqueeze(2))
        h = self.norm(x + self.out(attend(q, cache[0], cache[1], mask)))
        q = self.cross_q(h).view(self.cross_heads, -1)
        e = self.cross_out(attend(q, memory[0], memory[1]))
        x = self.cross_norm(h + e)
        if self.gate is not None:
            gate, action = torch.nn.functional.linear(torch.cat([h, e], -1), self.gate).chunk(2, -1)
            x = x + gate.sigmoid() * action.tanh()
        return self.final_norm(x + self.fc2(self.fc1(x).relu()))


class Step(nn.Module):
    """One greedy step: the last id (1), its place t (1), the cache and the memory -> the next id (1)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        decoder = model.decoder
        self.scale, self.pad, self.eos = float(decoder.embed_scale), decoder.padding_idx, decoder.dictionary.eos()
        self.embed, self.output = decoder.embed_tokens, decoder.output_projection
        self.register_buffer("positions", positions(decoder))
        self.layers = nn.ModuleList(DecoderLayer(layer) for layer in decoder.layers)
        never = torch.zeros(2, len(self.output.weight))  # what the first step and the others may not give
        never[:, self.pad] = never[0, self.eos] = -torch.inf
        self.register_buffer("never", never)

    def forward(self, token: Tensor, t: Tensor, cache: Tensor, memory: Tensor) -> Tensor:
        """cache: L x 2 x H x T x d, written in place; memory: L x 2 x H x S x d."""
        x = self.scale * self.embed.weight[token] + self.positions[t]
        mask = torch.where(torch.arange(cache.size(3)) > t, -torch.inf, 0.0)
        for layer, own, others in zip(self.layers, cache, memory):
            x = layer(x, t, mask, own, others)
        return (self.output(x) + self.never[t.clamp(max=1)]).argmax(-1)

    def new_cache(self, capacity: int) -> Tensor:
        layer = self.layers[0]
        return torch.zeros(len(self.layers), 2, layer.heads, capacity, layer.out.weight.size(0) // layer.heads)


@torch.no_grad()
def convert(model: Any) -> Tuple[Encoder, Step]:
    check(model)
    return Encoder(model).eval().requires_grad_(False), Step(model).eval().requires_grad_(False)
