"""What a compiled model consists of: its sizes, and from them the name and shape of every tensor.

A file is checked against this before the engine, which trusts its sizes, sees any of it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Dict, List, Tuple

Shape = Tuple[int, ...]

MOST, MOST_LAYERS, MOST_POSITIONS = 2**24, 1000, 2**17  # beyond any model, and within what memory bears
ACTIVATIONS = ("relu", "gelu", "tanh", "linear")  # in the engine's order
ACTORS = ("", "gate", "ff", "ff2", "rnn", "linear")  # likewise


@dataclass(frozen=True)
class Layout:
    """The sizes and options of a Transformer with actors."""

    vocabulary: int
    source_vocabulary: int
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
    activation: str
    encoder_scale: float  # of embeddings
    decoder_scale: float
    source_positions: int  # the longest source sentence, its eos counted
    target_positions: int
    pad: int
    eos: int
    unk: int
    encoder_position_kind: str  # sinusoidal, learned or none
    decoder_position_kind: str
    encoder_embedding_norm: bool = False
    decoder_embedding_norm: bool = False
    encoder_top_norm: bool = False
    decoder_top_norm: bool = False
    output_bias: bool = False
    shared_embeddings: Tuple[str, ...] = ()  # which of encoder and decoder embed with the output projection's weights
    actor: str = ""
    actor_hidden: int = 0
    actor_rank: int = 0
    actor_layers: Tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # Tuples are lists in JSON
        object.__setattr__(self, "shared_embeddings", tuple(self.shared_embeddings))
        object.__setattr__(self, "actor_layers", tuple(self.actor_layers))
        for field in fields(self):
            value = getattr(self, field.name)
            known = {"int": int, "bool": bool, "float": float, "str": str}.get(str(field.type))
            small = field.type != "int" or 0 <= value < (MOST_LAYERS if field.name.endswith("_layers") else MOST)
            if known is not None and (type(value) is not known or not small or value != value):
                raise ValueError(f"{field.name} is {value!r}")
        for name, item_type in (("shared_embeddings", str), ("actor_layers", int)):
            if any(type(item) is not item_type for item in getattr(self, name)):
                raise ValueError(f"{name} is {getattr(self, name)!r}")
        if max(self.source_positions, self.target_positions) > MOST_POSITIONS:
            raise ValueError(f"{self.source_positions} and {self.target_positions} positions")
        for side, dim, heads in (
            ("encoder", self.encoder_dim, self.encoder_heads),
            ("decoder", self.dim, self.decoder_heads),
        ):
            if heads < 1 or dim < 1 or dim % heads:
                raise ValueError(f"{side}: {heads} heads for {dim} dimensions")
        for name, choices in (("activation", ACTIVATIONS), ("actor", ACTORS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}")
        for kind in (self.encoder_position_kind, self.decoder_position_kind):
            if kind not in ("sinusoidal", "learned", "none"):
                raise ValueError(f"positions are {kind!r}")
        if not max(self.pad, self.eos, self.unk) < min(self.vocabulary, self.source_vocabulary):
            raise ValueError("a special symbol is not in the dictionary")
        if min(self.source_positions, self.target_positions) < 2:
            raise ValueError("there are no positions")
        if any(not 0 <= layer < self.decoder_layers for layer in self.actor_layers):
            raise ValueError(f"actors in layers {self.actor_layers} of {self.decoder_layers}")

    def actor_maps(self) -> List[Tuple[str, int, Tuple[int, ...], bool]]:
        """The maps of an actor (fairseq_tg/actors.py): name, input size, output sizes, whether they have biases."""
        both, dim, hidden = 2 * self.dim, self.dim, self.actor_hidden
        maps: Dict[str, List[Tuple[str, int, Tuple[int, ...], bool]]] = {
            "": [],
            "gate": [("gate_and_action", both, (dim, dim), False)],
            "ff": [("input", both, (hidden,), True), ("output", hidden, (dim,), True)],
            "ff2": [
                ("input", both, (hidden,), True),
                ("middle", hidden, (hidden,), True),
                ("output", hidden, (dim,), True),
            ],
            "rnn": [
                ("input", both, (hidden, hidden, hidden), False),
                ("gates", hidden, (hidden, hidden), False),
                ("candidate", hidden, (hidden,), False),
                ("output", hidden, (dim,), False),
            ],
            "linear": [("output", both, (dim,), True)],
        }
        return maps[self.actor]

    def matrices(self) -> Dict[str, Tuple[int, int, bool]]:
        """Every linear map, as rows (outputs), columns (inputs) and whether it has a bias."""
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
        for layer in self.actor_layers:
            for name, inputs, outputs, bias in self.actor_maps():
                at = f"decoder.{layer}.actor.{name}"
                if not self.actor_rank:
                    result[f"{at}.full"] = (sum(outputs), inputs, bias)
                    continue
                result[f"{at}.down"] = (self.actor_rank * len(outputs), inputs, False)
                for index, size in enumerate(outputs):
                    result[f"{at}.up.{index}"] = (size, self.actor_rank, bias)
        return result

    def norms(self) -> Dict[str, int]:
        """Every layer norm and its size."""
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

    def embeddings(self) -> Dict[str, Tuple[int, int]]:
        """The embeddings that are not the output projection's weights."""
        shapes = {
            "encoder": (self.source_vocabulary, self.encoder_dim),
            "decoder": (self.vocabulary, self.dim),
        }
        for side in self.shared_embeddings:
            if shapes.get(side) != (self.vocabulary, self.dim):
                raise ValueError(f"the {side}'s embedding is not as large as the output projection")
        return {f"{side}.embedding": shape for side, shape in shapes.items() if side not in self.shared_embeddings}

    def tensors(self, int8: bool) -> Dict[str, Tuple[str, Shape]]:
        """The type and shape of every tensor in a file."""
        result: Dict[str, Tuple[str, Shape]] = {}

        def add_weights(name: str, rows: int, columns: int) -> None:
            result[f"{name}.weight"] = ("int8" if int8 else "float32", (rows, columns))
            if int8:
                result[f"{name}.scale"] = ("float32", (rows,))

        for name, (rows, columns, bias) in self.matrices().items():
            add_weights(name, rows, columns)
            if bias:
                result[f"{name}.bias"] = ("float32", (rows,))
        for name, (rows, columns) in self.embeddings().items():
            add_weights(name, rows, columns)
        for name, size in self.norms().items():
            result[f"{name}.weight"] = result[f"{name}.bias"] = ("float32", (size,))
        for side, kind, positions, dim in (
            ("encoder", self.encoder_position_kind, self.source_positions, self.encoder_dim),
            ("decoder", self.decoder_position_kind, self.target_positions, self.dim),
        ):
            if kind == "learned":
                result[f"{side}.positions"] = ("float32", (positions, dim))
        return result

    def weights_per_token(self) -> int:
        """How many weights a step of greedy decoding reads: those of the decoder, each once."""
        once = (".cross.kv",)  # for a sentence, not for a token
        return sum(
            rows * columns
            for name, (rows, columns, _) in self.matrices().items()
            if not name.startswith("encoder.") and not name.endswith(once)
        )
