"""What a compiled model consists of: its sizes, and from them the name and shape of every tensor.

A file is checked against this before the engine, which trusts its sizes, sees any of it. What all families have is
here; each has a subclass of its own (`layouts.py` lists them).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar, Dict, List, NamedTuple, Tuple

from fairseq_tg.actor_format import FURTHER_ACTOR

Shape = Tuple[int, ...]

MOST, MOST_LAYERS, MOST_POSITIONS = 2**24, 1000, 2**17  # beyond any model, and within what memory bears
MOST_TABLE = 2**27  # numbers of a table that is not in the file
ACTIVATIONS = ("relu", "gelu", "tanh", "linear")  # in the engine's order
ACTORS = ("", "gate", "ff", "ff2", "rnn", "linear")  # likewise
FAMILIES = ("transformer", "lstm", "fconv")  # likewise
ACTED = ".acted"  # ends the name of a matrix that is in the place of another where actors act
POSITIONS = ("sinusoidal", "learned", "none")


class Positions(NamedTuple):
    """A table of positions: a row for each, of which only a learned one is in the file."""

    kind: str  # one of POSITIONS
    rows: int
    dim: int


class Part(NamedTuple):
    """A linear map of fairseq's model, or some of its inputs, as it is in a compiled matrix."""

    actor: str  # what an actor beside it is called in the model
    shape: Tuple[int, int]  # of the map's weights, outputs x inputs
    inputs: slice = slice(None)  # of the map: which are in the matrix
    rows: slice = slice(None)  # of the matrix: where
    columns: slice = slice(None)
    scale: float = 1.0
    transposed: bool = False


@dataclass(frozen=True, kw_only=True)
class Layout(ABC):
    """The sizes and options of a model with actors."""

    family: ClassVar[str]  # one of FAMILIES
    averages: ClassVar[bool] = False  # an actor's context is a mean of rows, one for every source token

    vocabulary: int
    source_vocabulary: int
    source_positions: int  # the longest source sentence, its eos counted
    target_positions: int
    pad: int
    eos: int
    unk: int
    output_bias: bool = False
    shared_embeddings: Tuple[str, ...] = ()  # which of encoder and decoder embed with the output projection's weights
    actor: str = ""
    actor_hidden: int = 0  # 0: as large as the state that the actor sees
    actor_rank: int = 0
    actor_layers: Tuple[int, ...] = ()
    # Of --actor-sites all: the decoder's layers that have further actors, and what those are factored through
    site_layers: Tuple[int, ...] = ()
    site_rank: int = 0
    acted: Tuple[str, ...] = ()  # the base's matrices that there are others of, with actors: of --actor-sites maps

    def __post_init__(self) -> None:
        # Tuples are lists in JSON
        for field in fields(self):
            if str(field.type).startswith("Tuple"):
                object.__setattr__(self, field.name, tuple(getattr(self, field.name)))
        for field in fields(self):
            value = getattr(self, field.name)
            known = {"int": int, "bool": bool, "float": float, "str": str}.get(str(field.type))
            small = field.type != "int" or 0 <= value < (MOST_LAYERS if field.name.endswith("_layers") else MOST)
            if known is not None and (type(value) is not known or not small or value != value):
                raise ValueError(f"{field.name} is {value!r}")
            items = {"Tuple[int, ...]": int, "Tuple[str, ...]": str}.get(str(field.type))
            if items is not None and any(type(item) is not items for item in value):
                raise ValueError(f"{field.name} is {value!r}")
        if max(self.source_positions, self.target_positions) > MOST_POSITIONS:
            raise ValueError(f"{self.source_positions} and {self.target_positions} positions")
        if self.actor not in ACTORS:
            raise ValueError(f"actor is {self.actor!r}")
        if not max(self.pad, self.eos, self.unk) < min(self.vocabulary, self.source_vocabulary):
            raise ValueError("a special symbol is not in the dictionary")
        if min(self.source_positions, self.target_positions) < 2:
            raise ValueError("there are no positions")
        if len(set(self.acted)) < len(self.acted) or not set(self.acted) <= self.base_matrices().keys() - {"output"}:
            raise ValueError(f"acted is {self.acted!r:.200}")
        self.check()
        for name, table in self.positions().items():
            if table.kind == "sinusoidal" and table.rows * table.dim > MOST_TABLE:
                raise ValueError(f"{name} of {table.rows} x {table.dim}")

    # What a family says

    @abstractmethod
    def check(self) -> None:
        """Raise ValueError if its sizes do not go together."""

    @abstractmethod
    def base_matrices(self) -> Dict[str, Tuple[int, int, bool]]:
        """Every linear map but the actors', as rows (outputs), columns (inputs) and whether it has a bias."""

    @abstractmethod
    def parts(self) -> Dict[str, List[Part]]:
        """The maps that every one of these matrices is made of, but for the output projection."""

    @abstractmethod
    def actor_sites(self) -> Dict[str, Tuple[int, int]]:
        """Where actors are: how the names of their matrices begin, and the sizes of state and context."""

    @abstractmethod
    def further_sites(self) -> Dict[str, Tuple[int, int]]:
        """The same of the actors that --actor-sites all adds."""

    @abstractmethod
    def norms(self) -> Dict[str, int]:
        """Every layer norm and its size."""

    @abstractmethod
    def embedding_shapes(self) -> Dict[str, Tuple[int, int]]:
        """The embeddings of "encoder" and "decoder", as words and size."""

    @abstractmethod
    def positions(self) -> Dict[str, Positions]:
        """The tables of positions, "encoder.positions" and so on."""

    def once_a_sentence(self) -> Tuple[str, ...]:
        """How the names of those of the decoder's matrices end that are not for every token."""
        return ()

    def places(self) -> List[str]:
        """All places with an actor, in the order of a step: by layers, and the attention of all layers last."""
        order = ("self", "conv", "actor", "ffn")
        last = MOST_LAYERS

        def turn(site: str) -> Tuple[int, int]:
            layer, part = site.split(".")[1:3]
            return (int(layer), order.index(part)) if layer.isdecimal() else (last, 0)

        return sorted({**self.actor_sites(), **self.further_sites()}, key=turn)

    @abstractmethod
    def attending(self) -> Tuple[int, ...]:
        """The decoder's layers that attend to the source."""

    @abstractmethod
    def cached_per_step(self) -> int:
        """How many numbers a search keeps of every hypothesis for every step."""

    def numbers(self) -> Dict[str, float]:
        """All that the engine is told beside the tensors."""
        found = {f.name: float(getattr(self, f.name)) for f in fields(self) if f.type in ("int", "bool", "float")}
        return {**found, "family": FAMILIES.index(self.family), "actor": ACTORS.index(self.actor)}

    # What follows from it

    def matrices(self) -> Dict[str, Tuple[int, int, bool]]:
        """Every linear map, as rows (outputs), columns (inputs) and whether it has a bias."""
        result = self.base_matrices()
        result.update({name + ACTED: result[name] for name in self.acted})
        for sites, actor, rank in (
            (self.actor_sites(), self.actor, self.actor_rank),
            (self.further_sites(), FURTHER_ACTOR, self.site_rank),
        ):
            for site, sizes in sites.items():
                for name, inputs, outputs, bias in self.actor_maps(actor, *sizes):
                    at = f"{site}.{name}"
                    if not rank:
                        result[f"{at}.full"] = (sum(outputs), inputs, bias)
                        continue
                    result[f"{at}.down"] = (rank * len(outputs), inputs, False)
                    for index, size in enumerate(outputs):
                        result[f"{at}.up.{index}"] = (size, rank, bias)
        return result

    def divided(self) -> Dict[str, int]:
        """Of the actors' matrices of [state, context], those whose context is a mean of rows: with the state's size.

        What such a matrix makes of a mean is the mean of what it makes of the rows. So the engine has it in two parts:
        the context's is for every source token, once a sentence.
        """
        sites = self.actor_sites() if self.averages and self.actor else {}
        part = "down" if self.actor_rank else "full"
        return {f"{site}.{self.actor_maps(self.actor, *sizes)[0][0]}.{part}": sizes[0] for site, sizes in sites.items()}

    def actor_maps(self, actor: str, state: int, context: int) -> List[Tuple[str, int, Tuple[int, ...], bool]]:
        """The maps of an actor (fairseq_tg/actors.py): name, input size, output sizes, whether they have biases."""
        both, hidden = state + context, self.actor_hidden or state
        maps: Dict[str, List[Tuple[str, int, Tuple[int, ...], bool]]] = {
            "": [],
            "gate": [("gate_and_action", both, (state, state), False)],
            "ff": [("input", both, (hidden,), True), ("output", hidden, (state,), True)],
            "ff2": [
                ("input", both, (hidden,), True),
                ("middle", hidden, (hidden,), True),
                ("output", hidden, (state,), True),
            ],
            "rnn": [
                ("input", both, (hidden, hidden, hidden), False),
                ("gates", hidden, (hidden, hidden), False),
                ("candidate", hidden, (hidden,), False),
                ("output", hidden, (state,), False),
            ],
            "linear": [("output", both, (state,), True)],
        }
        return maps[actor]

    def embeddings(self) -> Dict[str, Tuple[int, int]]:
        """The embeddings that are not the output projection's weights."""
        shapes, output = self.embedding_shapes(), self.base_matrices()["output"][:2]
        for side in self.shared_embeddings:
            if shapes.get(side) != output:
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
        for name, positions in self.positions().items():
            if positions.kind == "learned":
                result[name] = ("float32", (positions.rows, positions.dim))
        return result

    def weights_per_token(self) -> int:
        """How many weights a step of greedy decoding reads: those of the decoder, each once."""
        once, divided = self.once_a_sentence(), self.divided()
        return sum(
            rows * divided.get(name, columns)
            for name, (rows, columns, _) in self.matrices().items()
            if not name.startswith("encoder.") and not name.endswith((ACTED, *once))
        )
