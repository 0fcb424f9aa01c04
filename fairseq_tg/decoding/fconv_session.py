"""Greedy steps of a convolutional model, with or without actors."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F
from fairseq.models.fconv import FConvModel
from torch import Tensor

from fairseq_tg.compiled.fconv_layout import HALF
from fairseq_tg.decoding.sessions import Acting, Session, padding_mask, session_for
from fairseq_tg.models.fconv import TGFConvModel
from fairseq_tg.models.maps import joined_weight


def folded(module: Any) -> Tuple[Tensor, Tensor]:
    """Weight, with weight norm and what an actor beside it adds, and bias of a layer."""
    return joined_weight(module), module.bias


class _Attention:
    """One attention over the source, its scales folded into weights that are made once a batch."""

    def __init__(self, attention: Any, source: Tensor, sums: Tensor, scale: Tensor) -> None:
        """source: B x E x S (keys), sums: B x S x E (values), scale: B x 1 x 1, of the attention's answer."""
        self.attention = attention
        self.keys = source * HALF
        self.values = sums * scale
        self.weight_in, self.bias_in = folded(attention.in_projection)
        self.weight_out, self.bias_out = folded(attention.out_projection)
        self.act = Acting(attention)

    def step(self, x: Tensor, embedding: Tensor, mask: Optional[Tensor]) -> Tensor:
        """x: B x H, embedding: B x E -> B x H."""
        query = F.linear(x, self.weight_in, self.bias_in) + embedding
        scores = torch.bmm(query.unsqueeze(1), self.keys)  # B x 1 x S
        if mask is not None:
            scores = scores.masked_fill(mask, float("-inf"))
        context = torch.bmm(F.softmax(scores, dim=2), self.values).squeeze(1)
        answer = (F.linear(context, self.weight_out, self.bias_out) + x) * HALF
        return self.act(answer, x, context)

    def keep(self, rows: Tensor) -> None:
        self.keys, self.values = self.keys[rows], self.values[rows]
        self.act.keep(rows)


class _Convolution:
    """A causal convolution over the last inputs. They are written twice as far as they are looked back on, and moved
    to the front when there is no more room: most steps move nothing."""

    def __init__(self, convolution: Any, batch: int, steps: int) -> None:
        self.width = convolution.kernel_size[0]
        self.act = Acting(convolution)  # which has no memory
        weight, self.bias = folded(convolution)
        # K x I x O -> O x (K I), as the inputs lie one after another
        self.weight = weight.permute(2, 0, 1).reshape(convolution.out_channels, -1)
        room = min(steps, 64) + self.width
        self.inputs = self.bias.new_zeros(batch, room, convolution.in_channels)
        self.end = self.width - 1

    def step(self, x: Tensor) -> Tensor:
        """x: B x I -> B x O / 2."""
        inputs = x
        if self.width > 1:
            if self.end == self.inputs.size(1):
                self.inputs[:, : self.width - 1] = self.inputs[:, self.end - self.width + 1 : self.end].clone()
                self.end = self.width - 1
            self.inputs[:, self.end] = x
            self.end += 1
            inputs = self.inputs[:, self.end - self.width : self.end].reshape(x.size(0), -1)
        output = F.linear(inputs, self.weight, self.bias)
        return F.glu(self.act(output, output, x), dim=1)

    def keep(self, rows: Tensor) -> None:
        self.inputs = self.inputs[rows]


@session_for(FConvModel, TGFConvModel)
class FConvSession(Session):
    def __init__(self, model: Any, net_input: Dict[str, Tensor], steps: int) -> None:
        self.decoder = decoder = model.decoder
        tokens = net_input["src_tokens"]
        encoded = model.encoder.forward_torchscript(net_input)
        keys, values = encoded["encoder_out"]  # each B x S x E
        padding = padding_mask(tokens, model.encoder.padding_idx)
        self.mask = None if padding is None else padding.unsqueeze(1)  # B x 1 x S
        lengths = tokens.ne(model.encoder.padding_idx).sum(dim=1).to(values)
        keys, scale = keys.transpose(1, 2).contiguous(), lengths.sqrt().view(-1, 1, 1)
        self.attentions: List[Optional[_Attention]] = [
            None if attention is None else _Attention(attention, keys, values, scale) for attention in decoder.attention
        ]
        self.convolutions = [_Convolution(conv, tokens.size(0), steps) for conv in decoder.convolutions]
        self.positions: Optional[Tensor] = None
        if decoder.embed_positions is not None:
            some = tokens.new_full((1, steps), model.encoder.padding_idx + 1)  # any but padding
            self.positions = decoder.embed_positions(some)[0]
        self.done = 0
        self.first, self.second, self.third = (folded(m) for m in (decoder.fc1, decoder.fc2, decoder.fc3))
        self.projections = [None if module is None else folded(module) for module in decoder.projections]

    @classmethod
    def supports(cls, model: Any) -> bool:
        return model.decoder.adaptive_softmax is None

    def step(self, tokens: Tensor) -> Tensor:
        decoder = self.decoder
        embedding = decoder.embed_tokens(tokens)
        if self.positions is not None:
            embedding = embedding + self.positions[self.done]
        self.done += 1
        x = self.disturbed(F.linear(embedding, *self.first))
        states = [x]
        for projection, convolution, attention, back in zip(
            self.projections, self.convolutions, self.attentions, decoder.residuals
        ):
            x = convolution.step(x)
            if attention is not None:
                x = attention.step(x, embedding, self.mask)
            if back > 0:
                residual = states[-back] if projection is None else F.linear(states[-back], *projection)
                x = (x + residual) * HALF
            states.append(x)
        return F.linear(F.linear(x, *self.second), *self.third)

    def keep(self, rows: Tensor) -> None:
        for convolution in self.convolutions:
            convolution.keep(rows)
        for attention in self.attentions:
            if attention is not None:
                attention.keep(rows)
        if self.mask is not None:
            self.mask = self.mask[rows]
