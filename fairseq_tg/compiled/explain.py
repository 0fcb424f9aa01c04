"""What the actors of a model do with a sentence: four translations, and the steps of one of them."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from fairseq_tg.compiled.engine import Found
from fairseq_tg.compiled.translator import Translator
from fairseq_tg.differences import differing_words

BEAM = 4
#: Source tokens told of, for a layer and a step: those with the largest weights
ATTENDED = 8

Likely = List[Tuple[str, float]]  # tokens and their probabilities


@dataclass(frozen=True)
class Translation:
    text: str
    words: List[Tuple[str, bool]]  # and whether they differ from greedy's
    tokens: List[str]
    score: float  # a token's mean log-probability, as fairseq gives it
    milliseconds: float


@dataclass(frozen=True)
class Step:
    token: str
    actions: List[float]  # of each place: |action| / |state|
    attention: List[List[Tuple[int, float]]]  # of each layer: source tokens, by number, and their weights
    base: Likely  # what the base alone would go on with here
    tg: Likely


@dataclass(frozen=True)
class Actions:
    """What the actors did on the way to a translation."""

    source: List[str]
    places: List[str]
    place_layers: List[int]  # which of the attentions is the place's own, or its layer's
    steps: List[Step]


@dataclass(frozen=True)
class Explanation:
    text: str
    translations: Dict[str, Translation]  # by system
    actions: Actions  # of tg, or of greedy if there are no actors

    def to_json(self) -> Dict[str, Any]:
        return asdict(self)


def systems(translator: Translator) -> Dict[str, Tuple[int, bool]]:
    """What one file can be searched with: the beam, and whether actors act."""
    base = {"greedy": (1, False), f"beam {BEAM}": (BEAM, False)}
    return {**base, "tg": (1, True), f"tg + beam {BEAM}": (BEAM, True)} if translator.layout.actor else base


def explain(translator: Translator, text: str) -> Explanation:
    """Translate a sentence with every system, and go over tg's translation again."""
    return explain_tokens(translator, translator.encode(text), text, translator.decode)


def explain_tokens(
    translator: Translator, source: Sequence[int], text: str, decode: Callable[[List[int]], str]
) -> Explanation:
    """`explain` for token ids; decode makes a text of a translation's."""
    found: Dict[str, Tuple[Found, float]] = {}
    for name, (beam, actors) in systems(translator).items():
        started = time.perf_counter()
        best = translator.search([source], beam=beam, actors=actors)[0][0]
        found[name] = (best, 1000 * (time.perf_counter() - started))
    greedy = decode(found["greedy"][0].tokens)
    translations = {}
    for name, (best, milliseconds) in found.items():
        output = decode(best.tokens)
        translations[name] = Translation(
            output, differing_words(output, greedy), translator.symbols(best.tokens), best.score, round(milliseconds, 3)
        )
    chosen = found["tg" if translator.layout.actor else "greedy"][0]
    return Explanation(text, translations, trace_actions(translator, source, chosen.tokens))


def trace_actions(
    translator: Translator, source: Sequence[int], target: Sequence[int], actor: Optional[str] = None
) -> Actions:
    """What the actors did on the way to a translation of token ids, and what the base would have done."""
    acting, base = (translator.trace(source, target, actors, actor=actor) for actors in (True, False))
    names = translator.engine(actor).layout.places()
    steps = [
        Step(
            token,
            [_rounded(value) for value in acting.actions[index]],
            [_strongest(weights) for weights in acting.attention[index]],
            _likely(translator, base.tokens[index], base.probabilities[index]),
            _likely(translator, acting.tokens[index], acting.probabilities[index]),
        )
        for index, token in enumerate(translator.symbols(target))
    ]
    attending = translator.layout.attending()
    layers = [_attention(attending, _layer(name)) for name in names]
    return Actions(translator.symbols(source, source=True), [_place(name) for name in names], layers, steps)


def join_actions(parts: Sequence[Actions]) -> Actions:
    """Those on the way to the translations of a sentence's parts, as of the sentence."""
    source: List[str] = []
    steps: List[Step] = []
    for part in parts:
        before = len(source)
        for step in part.steps:
            attention = [[(before + index, weight) for index, weight in layer] for layer in step.attention]
            steps.append(replace(step, attention=attention))
        source += part.source
    return replace(parts[0], source=source, steps=steps)


def _attention(attending: Sequence[int], layer: int) -> int:
    """Which of the attentions is that of a layer, or the last before it."""
    return max([index for index, number in enumerate(attending) if number <= layer], default=0)


def _layer(site: str) -> int:
    """The number of the layer that a site's name has, as in decoder.3.actor."""
    found = re.search(r"\d+", site)
    return int(found.group()) if found else 0


def _place(site: str) -> str:
    """decoder.0.actor: layer 1; decoder.0.fc.actor: layer 1, fc; decoder.attention.actor: attention"""
    parts = [part for part in site.split(".") if part not in ("decoder", "actor")]
    return ", ".join(f"layer {int(part) + 1}" if part.isdecimal() else part for part in parts)


def _strongest(weights: np.ndarray) -> List[Tuple[int, float]]:
    order = np.argsort(-weights, kind="stable")[:ATTENDED]
    return [(int(index), _rounded(weights[index])) for index in order]


def _likely(translator: Translator, tokens: np.ndarray, probabilities: np.ndarray) -> Likely:
    symbols = translator.symbols(tokens.tolist())
    return [(symbol, _rounded(value)) for symbol, value in zip(symbols, probabilities)]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
