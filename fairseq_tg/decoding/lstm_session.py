"""Greedy steps of an LSTM with attention, with or without an actor."""

from __future__ import annotations

from typing import Any, Dict

import torch
import torch.nn.functional as F
from fairseq.models.lstm import LSTMModel
from torch import Tensor

from fairseq_tg.decoding.sessions import Acting, Session, session_for
from fairseq_tg.models.lstm import TGLSTMModel


@session_for(LSTMModel, TGLSTMModel)
class LSTMSession(Session):
    def __init__(self, model: Any, net_input: Dict[str, Tensor], steps: int) -> None:
        self.decoder = decoder = model.decoder
        # outputs: S x B x E, padding: S x B, which is not where the tokens have it: the encoder moves it to the end
        outputs, hiddens, cells, padding = model.encoder.forward_torchscript(net_input)
        if decoder.encoder_hidden_proj is not None:
            hiddens, cells = decoder.encoder_hidden_proj(hiddens), decoder.encoder_cell_proj(cells)
        self.hiddens, self.cells = list(hiddens[: decoder.num_layers]), list(cells[: decoder.num_layers])
        self.source = outputs.transpose(0, 1).contiguous()  # B x S x E
        # The query is projected to meet the source, q = W h: the source is projected to meet h, once
        self.keys = self.source.matmul(decoder.attention.input_proj.weight).transpose(1, 2).contiguous()  # B x H x S
        self.mask = padding.t().unsqueeze(1) if padding.any() else None  # B x 1 x S
        self.feed = self.source.new_zeros(self.source.size(0), decoder.hidden_size)
        self.act = Acting(decoder.attention)
        self.act_in_layers = [Acting(cell) for cell in decoder.layers]  # which have no memory
        self.embedding = decoder.embed_tokens.weight
        self.output = self.embedding if decoder.share_input_output_embed else decoder.fc_out.weight
        self.output_bias = None if decoder.share_input_output_embed else decoder.fc_out.bias

    @classmethod
    def supports(cls, model: Any) -> bool:
        decoder = model.decoder
        attention = decoder.attention
        return attention is not None and decoder.adaptive_softmax is None and attention.input_proj.bias is None

    def step(self, tokens: Tensor) -> Tensor:
        decoder = self.decoder
        x = torch.cat((F.embedding(tokens, self.embedding), self.feed), dim=1)
        for i, cell in enumerate(decoder.layers):
            hidden, self.cells[i] = torch.lstm_cell(
                x,
                (self.disturbed(self.hiddens[i]), self.cells[i]),
                cell.weight_ih,
                cell.weight_hh,
                cell.bias_ih,
                cell.bias_hh,
            )
            hidden = self.act_in_layers[i](hidden, hidden, x)
            x = hidden + self.hiddens[i] if decoder.residuals else hidden
            self.hiddens[i] = hidden
        scores = torch.bmm(hidden.unsqueeze(1), self.keys)  # B x 1 x S
        if self.mask is not None:
            scores = scores.masked_fill(self.mask, float("-inf"))
        context = torch.bmm(F.softmax(scores, dim=2), self.source).squeeze(1)
        attended = torch.tanh(F.linear(torch.cat((context, hidden), dim=1), decoder.attention.output_proj.weight))
        self.feed = x = self.act(attended, hidden, context)
        if hasattr(decoder, "additional_fc"):
            x = decoder.additional_fc(x)
        return F.linear(x, self.output, self.output_bias)

    def keep(self, rows: Tensor) -> None:
        self.hiddens = [hidden[rows] for hidden in self.hiddens]
        self.cells = [cell[rows] for cell in self.cells]
        self.source, self.keys, self.feed = self.source[rows], self.keys[rows], self.feed[rows]
        if self.mask is not None:
            self.mask = self.mask[rows]
        self.act.keep(rows)
