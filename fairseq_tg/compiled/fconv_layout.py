"""The sizes of a ConvS2S with actors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, List, Tuple

from fairseq_tg.compiled.layout import MOST, MOST_LAYERS, Layout, Part, Positions

MOST_WIDTH = 1000  # of a convolution's window
HALF = math.sqrt(0.5)  # keeps the variance of a sum of two


@dataclass(frozen=True, kw_only=True)
class FConvLayout(Layout):
    family = "fconv"
    averages = True

    embedding: int  # of both sides: the attention compares them
    # of every convolution: output channels, tokens that it sees, how many layers back its residual comes from
    encoder_channels: Tuple[int, ...]
    encoder_widths: Tuple[int, ...]
    encoder_residuals: Tuple[int, ...]
    decoder_channels: Tuple[int, ...]
    decoder_widths: Tuple[int, ...]
    decoder_residuals: Tuple[int, ...]
    attention_layers: Tuple[int, ...]
    out_embedding: int

    def convolutions(self, side: str) -> Tuple[Tuple[int, ...], Tuple[int, ...], Tuple[int, ...]]:
        """Their channels, widths and residuals."""
        if side == "encoder":
            return self.encoder_channels, self.encoder_widths, self.encoder_residuals
        return self.decoder_channels, self.decoder_widths, self.decoder_residuals

    def check(self) -> None:
        for side in ("encoder", "decoder"):
            channels, widths, residuals = self.convolutions(side)
            if not 1 <= len(channels) < MOST_LAYERS or not len(channels) == len(widths) == len(residuals):
                raise ValueError(f"{side}: {len(channels)}, {len(widths)} and {len(residuals)} convolutions")
            for layer, (size, width, back) in enumerate(zip(channels, widths, residuals)):
                if not (1 <= size < MOST and 1 <= width <= MOST_WIDTH and 0 <= back <= layer + 1):
                    raise ValueError(f"{side}.{layer}: {size} channels, a window of {width}, a residual {back} back")
        if any(not 0 <= layer < len(self.decoder_channels) for layer in self.attention_layers):
            raise ValueError(f"attention in layers {self.attention_layers} of {len(self.decoder_channels)}")
        if any(not 0 <= layer < len(self.decoder_channels) for layer in self.site_layers):
            raise ValueError(f"actors in layers {self.site_layers} of {len(self.decoder_channels)}")
        if not {*self.actor_layers} <= {*self.attention_layers}:
            raise ValueError(f"actors in layers {self.actor_layers}, attention in {self.attention_layers}")

    def numbers(self) -> Dict[str, float]:
        result = super().numbers()
        for side in ("encoder", "decoder"):
            _, widths, residuals = self.convolutions(side)
            for layer, (width, back) in enumerate(zip(widths, residuals)):
                result[f"{side}.{layer}.width"], result[f"{side}.{layer}.back"] = width, back
        return result

    def base_matrices(self) -> Dict[str, Tuple[int, int, bool]]:
        result = {
            "output": (self.vocabulary, self.out_embedding, self.output_bias),
            "encoder.out": (self.embedding, self.encoder_channels[-1], True),
            "decoder.out": (self.out_embedding, self.decoder_channels[-1], True),
        }
        for side in ("encoder", "decoder"):
            channels, widths, residuals = self.convolutions(side)
            result[f"{side}.in"] = (channels[0], self.embedding, True)
            sizes = [channels[0]]  # of the states: a convolution's inputs, and what residuals come from
            for layer, (outputs, width, back) in enumerate(zip(channels, widths, residuals)):
                result[f"{side}.{layer}.conv"] = (2 * outputs, width * sizes[-1], True)
                if back and sizes[-back] != outputs:
                    result[f"{side}.{layer}.residual"] = (outputs, sizes[-back], True)
                sizes.append(outputs)
        for layer in self.attention_layers:
            # Keys are what a decoder's state is compared with, by way of its projection, whose bias is the last row;
            # values are the source's, projected back. Both projections are linear.
            size = self.decoder_channels[layer]
            result[f"decoder.{layer}.attention.keys"] = (size + 1, self.embedding, False)
            result[f"decoder.{layer}.attention.values"] = (size, self.embedding, True)
        return result

    def parts(self) -> Dict[str, List[Part]]:
        names = {"in": "fc1", "out": "fc2", "conv": "convolutions", "residual": "projections"}
        result = {}
        for matrix, (rows, columns, _) in self.base_matrices().items():
            if matrix == "output":
                continue
            side, layer, kind = matrix.split(".", 2) if matrix.count(".") > 1 else (*matrix.split("."), "")
            if kind == "attention.keys":  # the last row is a bias
                size, actor = rows - 1, f"decoder.attention.{layer}.in_projection.actor"
                part = Part(actor, (columns, size), rows=slice(size), transposed=True)
            elif kind == "attention.values":
                part = Part(f"decoder.attention.{layer}.out_projection.actor", (rows, columns), scale=HALF)
            elif kind:
                part = Part(f"{side}.{names[kind]}.{layer}.actor", (rows, columns))
            else:
                scale = HALF if matrix == "encoder.out" else 1.0
                part = Part(f"{side}.{names[layer]}.actor", (rows, columns), scale=scale)
            result[matrix] = [part]
        return result

    def once_a_sentence(self) -> Tuple[str, ...]:
        return (".attention.keys", ".attention.values")

    def cached_per_step(self) -> int:
        return 2  # ancestors: a step needs no more of the ones before it than its windows show

    def actor_sites(self) -> Dict[str, Tuple[int, int]]:
        return {f"decoder.{layer}.actor": (self.decoder_channels[layer], self.embedding) for layer in self.actor_layers}

    def attending(self) -> Tuple[int, ...]:
        return self.attention_layers

    def further_sites(self) -> Dict[str, Tuple[int, int]]:
        channels = self.decoder_channels
        inputs = [channels[0], *channels]
        return {f"decoder.{layer}.conv.actor": (2 * channels[layer], inputs[layer]) for layer in self.site_layers}

    def norms(self) -> Dict[str, int]:
        return {}

    def embedding_shapes(self) -> Dict[str, Tuple[int, int]]:
        return {
            "encoder": (self.source_vocabulary, self.embedding),
            "decoder": (self.vocabulary, self.embedding),
        }

    def positions(self) -> Dict[str, Positions]:
        return {
            "encoder.positions": Positions("learned", self.source_positions, self.embedding),
            "decoder.positions": Positions("learned", self.target_positions, self.embedding),
        }
