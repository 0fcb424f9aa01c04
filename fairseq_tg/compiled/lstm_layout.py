"""The sizes of an LSTM with attention and an actor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Tuple

from fairseq_tg.compiled.layout import MOST_LAYERS, Layout, Part, Positions

ATTENTION = "decoder.attention"


@dataclass(frozen=True, kw_only=True)
class LSTMLayout(Layout):
    family = "lstm"
    averages = True

    layers: int
    encoder_embedding: int
    encoder_hidden: int
    bidirectional: bool
    embedding: int
    hidden: int
    out_embedding: int
    attention: bool
    residuals: bool

    @property
    def encoder_units(self) -> int:
        """The size of what the encoder says of a token."""
        return self.encoder_hidden * (2 if self.bidirectional else 1)

    def check(self) -> None:
        if not 1 <= self.layers <= MOST_LAYERS:
            raise ValueError(f"{self.layers} layers")
        if any(not 0 <= layer < self.layers for layer in self.site_layers):
            raise ValueError(f"actors in layers {self.site_layers} of {self.layers}")
        if self.actor and not self.attention:
            raise ValueError("an actor without an attention")

    def base_matrices(self) -> Dict[str, Tuple[int, int, bool]]:
        hidden, units, directions = self.hidden, self.encoder_units, 2 if self.bidirectional else 1
        result = {"output": (self.vocabulary, self.out_embedding, self.output_bias)}
        for layer in range(self.layers):
            inputs = units if layer else self.encoder_embedding
            # of both directions, forward first; with the biases of the products with the state, too
            result[f"encoder.{layer}.input"] = (directions * 4 * self.encoder_hidden, inputs, True)
            for direction in ("forward", "backward")[:directions]:
                result[f"encoder.{layer}.{direction}"] = (4 * self.encoder_hidden, self.encoder_hidden, False)
            # of [input, state], the first layer's input being [embedding, what the attention gave]
            inputs = hidden if layer else self.embedding + hidden
            result[f"decoder.{layer}.cell"] = (4 * hidden, inputs + hidden, True)
        if units != hidden:
            result["decoder.start.hidden"] = result["decoder.start.cell"] = (hidden, units, True)
        if self.attention:
            # Keys and values of a source token: what its state is to a decoder's state by way of the projection of
            # the one, and to the attention vector by way of the projection of the other. Both are linear.
            result[f"{ATTENTION}.source"] = (2 * hidden, units, False)
            result[f"{ATTENTION}.state"] = (hidden, hidden, False)
        if self.out_embedding != hidden:
            result["decoder.out"] = (self.out_embedding, hidden, True)
        return result

    def parts(self) -> Dict[str, List[Part]]:
        hidden, units, encoder_hidden = self.hidden, self.encoder_units, self.encoder_hidden
        directions = {"forward": "", "backward": "_reverse"} if self.bidirectional else {"forward": ""}
        result = {}
        for layer in range(self.layers):
            gates, inputs = 4 * encoder_hidden, units if layer else self.encoder_embedding
            result[f"encoder.{layer}.input"] = [
                Part(
                    f"encoder.lstm.weight_ih_l{layer}{suffix}_actor",
                    (gates, inputs),
                    rows=slice(index * gates, (index + 1) * gates),
                )
                for index, suffix in enumerate(directions.values())
            ]
            for direction, suffix in directions.items():
                actor = f"encoder.lstm.weight_hh_l{layer}{suffix}_actor"
                result[f"encoder.{layer}.{direction}"] = [Part(actor, (gates, encoder_hidden))]
            at, gates, inputs = f"decoder.layers.{layer}", 4 * hidden, hidden + (0 if layer else self.embedding)
            result[f"decoder.{layer}.cell"] = [
                Part(f"{at}.weight_ih_actor", (gates, inputs), columns=slice(inputs)),
                Part(f"{at}.weight_hh_actor", (gates, hidden), columns=slice(inputs, None)),
            ]
        if units != hidden:
            for name in ("hidden", "cell"):
                result[f"decoder.start.{name}"] = [Part(f"decoder.encoder_{name}_proj.actor", (hidden, units))]
        if self.attention:
            query, answer = (f"{ATTENTION}.{name}_proj.actor" for name in ("input", "output"))
            both = hidden, units + hidden  # the answer's map is of [e, h]
            result[f"{ATTENTION}.source"] = [
                Part(query, (units, hidden), rows=slice(hidden), transposed=True),
                Part(answer, both, inputs=slice(units), rows=slice(hidden, None)),
            ]
            result[f"{ATTENTION}.state"] = [Part(answer, both, inputs=slice(units, None))]
        if self.out_embedding != hidden:
            result["decoder.out"] = [Part("decoder.additional_fc.actor", (self.out_embedding, hidden))]
        return result

    def once_a_sentence(self) -> Tuple[str, ...]:
        return (".attention.source", ".start.hidden", ".start.cell")

    def cached_per_step(self) -> int:
        return 0  # a step needs the one before it and no other

    def actor_sites(self) -> Dict[str, Tuple[int, int]]:
        return {f"{ATTENTION}.actor": (self.hidden, self.encoder_units)} if self.actor else {}

    def attending(self) -> Tuple[int, ...]:
        return (0,) if self.attention else ()

    def further_sites(self) -> Dict[str, Tuple[int, int]]:
        inputs = {layer: self.hidden + (0 if layer else self.embedding) for layer in self.site_layers}
        return {f"decoder.{layer}.actor": (self.hidden, size) for layer, size in inputs.items()}

    def norms(self) -> Dict[str, int]:
        return {}

    def embedding_shapes(self) -> Dict[str, Tuple[int, int]]:
        return {
            "encoder": (self.source_vocabulary, self.encoder_embedding),
            "decoder": (self.vocabulary, self.embedding),
        }

    def positions(self) -> Dict[str, Positions]:
        return {}
