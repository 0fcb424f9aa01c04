"""The sizes of a Transformer with actors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Tuple

from fairseq_tg.compiled.layout import ACTIVATIONS, POSITIONS, Layout, Part, Positions


@dataclass(frozen=True, kw_only=True)
class TransformerLayout(Layout):
    family = "transformer"

    dim: int
    encoder_dim: int
    encoder_ffn: int
    decoder_ffn: int
    encoder_layers: int
    decoder_layers: int
    encoder_heads: int
    decoder_heads: int
    encoder_pre_norm: bool
    decoder_pre_norm: bool
    activation: str  # one of ACTIVATIONS
    encoder_scale: float  # of embeddings
    decoder_scale: float
    encoder_position_kind: str  # one of POSITIONS
    decoder_position_kind: str
    encoder_embedding_norm: bool = False
    decoder_embedding_norm: bool = False
    encoder_top_norm: bool = False
    decoder_top_norm: bool = False

    def check(self) -> None:
        for side, dim, heads in (
            ("encoder", self.encoder_dim, self.encoder_heads),
            ("decoder", self.dim, self.decoder_heads),
        ):
            if heads < 1 or dim < 1 or dim % heads:
                raise ValueError(f"{side}: {heads} heads for {dim} dimensions")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation is {self.activation!r}")
        for kind in (self.encoder_position_kind, self.decoder_position_kind):
            if kind not in POSITIONS:
                raise ValueError(f"positions are {kind!r}")
        for layers in (self.actor_layers, self.site_layers):
            if any(not 0 <= layer < self.decoder_layers for layer in layers):
                raise ValueError(f"actors in layers {layers} of {self.decoder_layers}")

    def numbers(self) -> Dict[str, float]:
        return {**super().numbers(), "activation": ACTIVATIONS.index(self.activation)}

    def base_matrices(self) -> Dict[str, Tuple[int, int, bool]]:
        result = {"output": (self.vocabulary, self.dim, self.output_bias)}
        for side, layers, dim, ffn in (
            ("encoder", self.encoder_layers, self.encoder_dim, self.encoder_ffn),
            ("decoder", self.decoder_layers, self.dim, self.decoder_ffn),
        ):
            for index in range(layers):
                at = f"{side}.{index}"
                result[f"{at}.self.qkv"] = (3 * dim, dim, True)
                result[f"{at}.self.out"] = (dim, dim, True)
                result[f"{at}.fc1"] = (ffn, dim, True)
                result[f"{at}.fc2"] = (dim, ffn, True)
                if side == "decoder":
                    result[f"{at}.cross.q"] = (dim, dim, True)
                    result[f"{at}.cross.kv"] = (2 * dim, self.encoder_dim, True)
                    result[f"{at}.cross.out"] = (dim, dim, True)
        return result

    def parts(self) -> Dict[str, List[Part]]:
        result = {}
        for matrix, (rows, columns, _) in self.base_matrices().items():
            if matrix == "output":
                continue
            side, layer, rest = matrix.split(".", 2)
            sublayer, _, kind = rest.partition(".")
            attention = {"self": "self_attn", "cross": "encoder_attn"}.get(sublayer)
            letters = [kind] if kind == "out" else list(kind)  # qkv, q, kv
            names = [f"{attention}.{letter}_proj" for letter in letters] if attention else [rest]
            size = rows // len(names)
            heads = self.encoder_heads if side == "encoder" else self.decoder_heads
            result[matrix] = [
                Part(
                    f"{side}.layers.{layer}.{name}.actor",
                    (size, columns),
                    rows=slice(index * size, (index + 1) * size),
                    # softmax(q K^T / sqrt(d)): the division is done to the weights, once
                    scale=(size // heads) ** -0.5 if name.endswith(".q_proj") else 1.0,
                )
                for index, name in enumerate(names)
            ]
        return result

    def once_a_sentence(self) -> Tuple[str, ...]:
        return (".cross.kv",)

    def cached_per_step(self) -> int:
        return 2 * self.dim * self.decoder_layers  # keys and values

    def actor_sites(self) -> Dict[str, Tuple[int, int]]:
        return {f"decoder.{layer}.actor": (self.dim, self.dim) for layer in self.actor_layers}

    def attending(self) -> Tuple[int, ...]:
        return tuple(range(self.decoder_layers))

    def further_sites(self) -> Dict[str, Tuple[int, int]]:
        at = ("self.actor", "ffn.actor")
        return {f"decoder.{layer}.{name}": (self.dim, self.dim) for layer in self.site_layers for name in at}

    def norms(self) -> Dict[str, int]:
        result = {}
        for side, layers, dim in (
            ("encoder", self.encoder_layers, self.encoder_dim),
            ("decoder", self.decoder_layers, self.dim),
        ):
            if getattr(self, f"{side}_embedding_norm"):
                result[f"{side}.embedding.norm"] = dim
            if getattr(self, f"{side}_top_norm"):
                result[f"{side}.norm"] = dim
            for index in range(layers):
                result[f"{side}.{index}.self.norm"] = dim
                result[f"{side}.{index}.norm"] = dim
                if side == "decoder":
                    result[f"{side}.{index}.cross.norm"] = dim
        return result

    def embedding_shapes(self) -> Dict[str, Tuple[int, int]]:
        return {"encoder": (self.source_vocabulary, self.encoder_dim), "decoder": (self.vocabulary, self.dim)}

    def positions(self) -> Dict[str, Positions]:
        return {
            "encoder.positions": Positions(self.encoder_position_kind, self.source_positions, self.encoder_dim),
            "decoder.positions": Positions(self.decoder_position_kind, self.target_positions, self.dim),
        }
