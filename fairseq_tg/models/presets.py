"""The paper's base models, as architectures of fairseq's own `transformer` and `lstm` models.

Its ConvS2S bases are fairseq's `fconv_iwslt_de_en` and `fconv_wmt_en_de` as they are.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from fairseq.models import register_model_architecture
from fairseq.models.lstm import base_architecture as lstm_defaults
from fairseq.models.transformer.transformer_legacy import base_architecture as transformer_defaults


def _default(args: Namespace, **values: Any) -> None:
    """Set what the user has not set (which omegaconf 2.0, in Hydra with fairseq 0.12.2, gives as None)."""
    for name, value in values.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)


def _transformer(args: Namespace, model_dim: int, hidden_dim: int, layers: int, heads: int, dropout: float) -> None:
    for side in ("encoder", "decoder"):
        _default(
            args,
            **{
                f"{side}_embed_dim": model_dim,
                f"{side}_ffn_embed_dim": hidden_dim,
                f"{side}_layers": layers,
                f"{side}_attention_heads": heads,
            },
        )
    _default(args, dropout=dropout, base_layers=0)  # the last because fairseq 0.12.2's trainer compares it with 0
    transformer_defaults(args)


def _lstm(args: Namespace, rnn_size: int, word_vec_size: int) -> None:
    """OpenNMT's model: two layers, a bidirectional encoder of rnn_size in both directions together, and a decoder
    with Luong's general attention and input feeding (fairseq's LSTM decoder has both)."""
    _default(
        args,
        encoder_embed_dim=word_vec_size,
        encoder_hidden_size=rnn_size // 2,
        encoder_layers=2,
        encoder_bidirectional=True,
        decoder_embed_dim=word_vec_size,
        decoder_hidden_size=rnn_size,
        decoder_layers=2,
        decoder_out_embed_dim=rnn_size,
        decoder_attention="1",
        dropout=0.3,
    )
    lstm_defaults(args)


@register_model_architecture("transformer", "transformer_chen2018_iwslt16")
def transformer_iwslt16(args: Namespace) -> None:
    _transformer(args, model_dim=278, hidden_dim=507, layers=5, heads=2, dropout=0.079)


@register_model_architecture("transformer", "transformer_chen2018_wmt")
def transformer_wmt(args: Namespace) -> None:
    _transformer(args, model_dim=512, hidden_dim=512, layers=6, heads=8, dropout=0.1)


@register_model_architecture("lstm", "lstm_chen2018_iwslt16")
def lstm_iwslt16(args: Namespace) -> None:
    _lstm(args, rnn_size=500, word_vec_size=300)


@register_model_architecture("lstm", "lstm_chen2018_wmt")
def lstm_wmt(args: Namespace) -> None:
    _lstm(args, rnn_size=600, word_vec_size=500)
