"""From fairseq's Transformer, with or without actors, to the layout and tensors of a compiled model."""

from __future__ import annotations

from functools import partial
from typing import Any, List, Optional, Tuple, Type

import torch
from fairseq import utils
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
from torch import Tensor, nn

from fairseq_tg.actors import actor_name
from fairseq_tg.compiled.actor_extract import put_further_actors
from fairseq_tg.compiled.layout import ACTIVATIONS
from fairseq_tg.compiled.layout import ACTORS as COMPILED_ACTORS
from fairseq_tg.compiled.piece_extract import Pieces
from fairseq_tg.compiled.transformer_layout import TransformerLayout
from fairseq_tg.memory import MappedFiles
from fairseq_tg.models.maps import own_weight


def unsupported(model: Any, by_engine: bool = True) -> Optional[str]:
    """The first thing about a model that is not the plain Transformer's, or None.

    by_engine: whether its activation function and its actors have to be the engine's, too.
    """
    encoder, decoder = model.encoder, model.decoder
    if not _is_plain(encoder, TransformerEncoderBase) or not _is_plain(decoder, TransformerDecoderBase):
        return f"an encoder and decoder of its own ({type(encoder).__name__}, {type(decoder).__name__})"
    for option, present in (
        ("--adaptive-softmax-cutoff", decoder.adaptive_softmax is not None),
        ("--decoder-input-dim", decoder.project_in_dim is not None),
        ("--decoder-output-dim", decoder.project_out_dim is not None),
        ("--cross-self-attention", decoder.cross_self_attention),
        ("--quant-noise-pq", encoder.quant_noise is not None or decoder.quant_noise is not None),
        ("--no-cross-attention", any(getattr(layer, "encoder_attn", None) is None for layer in decoder.layers)),
        ("no layers", not len(encoder.layers) or not len(decoder.layers)),
        ("--decoder-embed-dim of an adaptive input", not isinstance(decoder.embed_tokens, nn.Embedding)),
    ):
        if present:
            return option
    for layer in [*encoder.layers, *decoder.layers]:
        for option, attribute in (
            ("--scale-attn", "attn_ln"),
            ("--scale-fc", "ffn_layernorm"),
            ("--scale-heads", "c_attn"),
            ("--scale-resids", "w_resid"),
        ):
            if getattr(layer, attribute, None) is not None:
                return option
        if own_weight(layer.fc1).dim() != 2 or layer.self_attn.bias_k is not None or layer.self_attn.add_zero_attn:
            return "an attention or feed-forward layer of its own"
        if by_engine and _activation(layer) is None:
            return f"--activation-fn {getattr(layer.activation_fn, '__name__', layer.activation_fn)}"
        if by_engine and hasattr(layer, "actor") and actor_name(layer.actor.net) not in COMPILED_ACTORS:
            return f"--actor {actor_name(layer.actor.net)}"
    return None


def _is_plain(stack: Any, known: Type[nn.Module]) -> bool:
    """Whether it computes what fairseq's Transformer does: that of a model that is not autoregressive does not."""
    return isinstance(stack, known) and type(stack).__module__.startswith("fairseq.models.transformer")


def _activation(layer: Any) -> Optional[str]:
    for name in ACTIVATIONS:
        known: Any = utils.get_activation_fn(name)
        # some are functions of fairseq's own, some made anew at every call
        if layer.activation_fn is known or layer.activation_fn.__qualname__ == known.__qualname__ != "<lambda>":
            return name
    return None


def extract(model: Any) -> Tuple[TransformerLayout, Pieces]:
    """The layout and the tensors of a Transformer that is supported."""
    encoder, decoder = model.encoder, model.decoder
    tensors: Pieces = {}
    files = MappedFiles()

    def put(name: str, *parts: Tuple[Any, float]) -> None:
        """A matrix of one map, or of several of one input, each times a number."""
        modules = [module for module, _ in parts]
        scales = [scale for _, scale in parts]
        one = scales == [1.0]
        tensors[f"{name}.weight"] = own_weight(modules[0]) if one else partial(joined_weights, modules, scales)
        if getattr(modules[0], "bias", None) is not None:
            tensors[f"{name}.bias"] = _joined([module.bias for module in modules], scales)

    def joined_weights(modules: List[Any], scales: List[float]) -> Tensor:
        own = [own_weight(module) for module in modules]
        whole = _joined(own, scales)
        for weight in own:
            files.page_out(weight.data_ptr(), weight.nbytes)
        return whole

    def put_attention(name: str, attention: Any, query: Optional[str], rest: str) -> None:
        # softmax(q K^T / sqrt(d)): the division is done to the weights, once
        projections: List[Tuple[Any, float]] = [(attention.k_proj, 1.0), (attention.v_proj, 1.0)]
        scaled = (attention.q_proj, attention.head_dim**-0.5)
        if query is None:
            projections.insert(0, scaled)
        else:
            put(f"{name}.{query}", scaled)
        put(f"{name}.{rest}", *projections)
        put(f"{name}.out", (attention.out_proj, 1.0))

    actors = {}
    for side, stack in (("encoder", encoder), ("decoder", decoder)):
        for index, layer in enumerate(stack.layers):
            at = f"{side}.{index}"
            put_attention(f"{at}.self", layer.self_attn, None, "qkv")
            put(f"{at}.self.norm", (layer.self_attn_layer_norm, 1.0))
            put(f"{at}.fc1", (layer.fc1, 1.0))
            put(f"{at}.fc2", (layer.fc2, 1.0))
            put(f"{at}.norm", (layer.final_layer_norm, 1.0))
            if side == "decoder":
                put_attention(f"{at}.cross", layer.encoder_attn, "q", "kv")
                put(f"{at}.cross.norm", (layer.encoder_attn_layer_norm, 1.0))
                if hasattr(layer, "actor"):
                    actors[index] = layer.actor.net
                    for name, tensor in layer.actor.net.state_dict().items():
                        tensors[f"{at}.actor.{name}"] = tensor
        for name, norm in (("embedding.norm", stack.layernorm_embedding), ("norm", stack.layer_norm)):
            if norm is not None:
                put(f"{side}.{name}", (norm, 1.0))
        if isinstance(stack.embed_positions, LearnedPositionalEmbedding):
            tensors[f"{side}.positions"] = stack.embed_positions.weight[stack.padding_idx + 1 :]
    output = decoder.output_projection
    put("output", (output, 1.0))
    shared = []
    for side, stack in (("encoder", encoder), ("decoder", decoder)):
        if torch.equal(stack.embed_tokens.weight, output.weight):
            shared.append(side)
        else:
            tensors[f"{side}.embedding.weight"] = stack.embed_tokens.weight

    actor = next(iter(actors.values()), None)
    further = put_further_actors(
        tensors,
        {
            index: {
                f"decoder.{index}.{at}.actor": getattr(layer, f"{at}_actor")
                for at in ("self", "ffn")
                if hasattr(layer, f"{at}_actor")
            }
            for index, layer in enumerate(decoder.layers)
        },
    )
    first, last = encoder.layers[0], decoder.layers[-1]
    layout = TransformerLayout(
        vocabulary=len(decoder.embed_tokens.weight),
        source_vocabulary=len(encoder.embed_tokens.weight),
        dim=decoder.embed_dim,
        encoder_dim=encoder.embed_tokens.embedding_dim,
        encoder_ffn=len(own_weight(first.fc1)),
        decoder_ffn=len(own_weight(last.fc1)),
        encoder_layers=len(encoder.layers),
        decoder_layers=len(decoder.layers),
        encoder_heads=first.self_attn.num_heads,
        decoder_heads=last.self_attn.num_heads,
        encoder_pre_norm=bool(first.normalize_before),
        decoder_pre_norm=bool(last.normalize_before),
        activation=_activation(first) or "",
        encoder_scale=float(encoder.embed_scale),
        decoder_scale=float(decoder.embed_scale),
        source_positions=int(encoder.max_positions()),
        target_positions=int(decoder.max_positions()),
        pad=decoder.dictionary.pad(),
        eos=decoder.dictionary.eos(),
        unk=decoder.dictionary.unk(),
        encoder_position_kind=_position_kind(encoder),
        decoder_position_kind=_position_kind(decoder),
        encoder_embedding_norm=encoder.layernorm_embedding is not None,
        decoder_embedding_norm=decoder.layernorm_embedding is not None,
        encoder_top_norm=encoder.layer_norm is not None,
        decoder_top_norm=decoder.layer_norm is not None,
        output_bias=output.bias is not None,
        shared_embeddings=tuple(shared),
        actor=actor_name(actor) if actor else "",
        actor_hidden=actor.hidden_dim if actor else 0,
        actor_rank=actor.rank if actor else 0,
        actor_layers=tuple(actors),
        **further,
    )
    return layout, tensors


def _joined(tensors: List[Tensor], scales: List[float]) -> Tensor:
    """Each times its number, one below another; one alone that is not scaled is not copied."""
    if len(tensors) == 1:
        return tensors[0] if scales[0] == 1.0 else tensors[0].float() * scales[0]  # half precision would round it
    whole = torch.empty(sum(map(len, tensors)), *tensors[0].shape[1:])
    for part, tensor, scale in zip(whole.split([len(tensor) for tensor in tensors]), tensors, scales):
        torch.mul(tensor.detach().float(), scale, out=part)
    return whole


def _position_kind(stack: Any) -> str:
    if stack.embed_positions is None:
        return "none"
    return "sinusoidal" if isinstance(stack.embed_positions, SinusoidalPositionalEmbedding) else "learned"
