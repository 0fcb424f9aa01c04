"""What the actors of a model do with a text: four translations, and the steps of one of them."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from fairseq_tg.compiled.engine import Found, Traced
from fairseq_tg.compiled.pieces import encode_pieces
from fairseq_tg.compiled.translator import Translator
from fairseq_tg.differences import differing_words
from fairseq_tg.sentences import split_text

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
    actions: Actions  # of tg, or of greedy if there are no actors; of all sentences, one after another

    def to_json(self) -> Dict[str, Any]:
        return asdict(self)


def systems(translator: Translator) -> Dict[str, Tuple[int, bool]]:
    """What one file can be searched with: the beam, and whether actors act."""
    base = {"greedy": (1, False), f"beam {BEAM}": (BEAM, False)}
    return {**base, "tg": (1, True), f"tg + beam {BEAM}": (BEAM, True)} if translator.layout.actor else base


def explain(translator: Translator, text: str) -> Explanation:
    """Translate a text with every system, and go over tg's translations of its sentences again."""
    parts = split_text(text)

    def fill(translations: Sequence[str]) -> str:
        found = iter(translations)
        return "".join(next(found) if is_sentence else part for part, is_sentence in parts)

    sentences = [encode_pieces(translator, part) for part, is_sentence in parts if is_sentence]
    return explain_tokens(translator, sentences, text, translator.decode, fill)


def explain_tokens(
    translator: Translator,
    sentences: Sequence[Sequence[List[int]]],
    text: str,
    decode: Callable[[List[int]], str],
    fill: Callable[[Sequence[str]], str] = " ".join,
) -> Explanation:
    """`explain` for the token ids of each sentence's pieces.

    Args:
        decode: makes a text of a translation's token ids.
        fill: puts the sentences' translations into the text.
    """
    pieces = [piece for sentence in sentences for piece in sentence]

    def search(beam: int, actors: bool) -> List[List[Found]]:
        """The best of each sentence's pieces."""
        found = iter(translator.search(pieces, beam=beam, actors=actors) if pieces else [])
        return [[best[0] for best in islice(found, len(sentence))] for sentence in sentences]

    def translation(found: List[List[Found]], greedy: str, seconds: float) -> Translation:
        output = written(found)
        tokens = [token for sentence in found for piece in sentence for token in piece.tokens]
        scores = [mean_score([(piece.score, len(piece.tokens)) for piece in sentence]) for sentence in found]
        score = sum(scores) / max(1, len(scores))
        words = differing_words(output, greedy)
        return Translation(output, words, translator.symbols(tokens), score, round(1000 * seconds, 3))

    def written(found: List[List[Found]]) -> str:
        return fill([" ".join(decode(piece.tokens) for piece in sentence) for sentence in found])

    wanted, chosen = systems(translator), "tg" if translator.layout.actor else "greedy"
    found: Dict[str, Tuple[List[List[Found]], float]] = {}
    traces: List[List[Traced]] = []
    for actors in (True, False) if translator.layout.actor else (False,):  # one after the other: see `alone`
        for name, system in wanted.items():
            if system[1] is actors:
                search(*system)  # the first time takes longer: memory is got, and read
                started = time.perf_counter()
                best = search(*system)
                found[name] = (best, time.perf_counter() - started)
        ways = list(zip(pieces, (piece.tokens for sentence in found[chosen][0] for piece in sentence)))
        traces.append([translator.trace(*way, actors) for way in ways])
    sides = zip(ways, traces[0], traces[-1])
    actions = join_actions([_told(translator, *way, acting, base) for way, acting, base in sides])
    greedy = written(found["greedy"][0])
    return Explanation(text, {name: translation(found[name][0], greedy, found[name][1]) for name in wanted}, actions)


def mean_score(pieces: Sequence[Tuple[float, int]]) -> float:
    """A token's mean log-probability in all pieces, of that in each and its number of tokens."""
    return sum(score * count for score, count in pieces) / max(1, sum(count for _, count in pieces))


def trace_actions(
    translator: Translator, source: Sequence[int], target: Sequence[int], actor: Optional[str] = None
) -> Actions:
    """What the actors did on the way to a translation of token ids, and what the base would have done."""
    acting, base = (translator.trace(source, target, actors, actor=actor) for actors in (True, False))
    return _told(translator, source, target, acting, base, actor)


def _told(
    translator: Translator,
    source: Sequence[int],
    target: Sequence[int],
    acting: Traced,
    base: Traced,
    actor: Optional[str] = None,
) -> Actions:
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
    """Those on the way to the translations of a text's pieces, as of one."""
    source: List[str] = []
    steps: List[Step] = []
    for part in parts:
        before = len(source)
        for step in part.steps:
            attention = [[(before + index, weight) for index, weight in layer] for layer in step.attention]
            steps.append(replace(step, attention=attention))
        source += part.source
    first = parts[0] if parts else Actions([], [], [], [])
    return replace(first, source=source, steps=steps)


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
