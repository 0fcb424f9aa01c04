"""What is done with a batch of sentences: translated by one of a model's systems, or explained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Hashable, List, Optional, Sequence

import numpy as np

from fairseq_tg.compiled import Translator
from fairseq_tg.compiled.alignment import align
from fairseq_tg.compiled.engine import Found
from fairseq_tg.compiled.explain import Actions, join_actions, mean_score, trace_actions
from fairseq_tg.compiled.pieces import encode_pieces
from fairseq_tg.serve.batching import Work
from fairseq_tg.serve.drafts import Aligned


@dataclass(frozen=True)
class Hypothesis:
    text: str
    score: float = 0.0  # a token's mean log-probability, as fairseq gives it
    tokens: Sequence[str] = ()
    actions: Optional[Actions] = None
    alignment: Optional[np.ndarray] = None  # of its words with the source's, if there are tags to be placed


@dataclass(frozen=True)
class Piece:
    """A sentence, or a part of one that is too long for the model."""

    tokens: List[int]
    aligned: Optional[Aligned] = None  # the sentence, if there are tags to be placed

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class System(Work):
    """A model searched with or without its actors; a piece gives its hypotheses, best first."""

    translator: Translator
    beam: int = 1
    nbest: int = 1
    actor: bool = True
    named_actor: Optional[str] = None
    scores: bool = False  # and tokens
    actions: bool = False

    @property
    def key(self) -> Hashable:  # type: ignore[override]
        choices = self.actor, self.named_actor, self.scores, self.actions
        return (id(self.translator), self.beam, self.nbest, *choices)

    @property
    def cost(self) -> int:  # type: ignore[override]
        return self.beam + 2 * self.actions  # which are found by going over the translation with the actors and without

    def pieces(self, sentence: str) -> List[Piece]:
        """A sentence as the model takes it."""
        pieces = encode_pieces(self.translator, sentence)
        if isinstance(sentence, Aligned) and len(pieces) == 1:
            return [Piece(pieces[0], sentence)]
        return [Piece(tokens) for tokens in pieces]

    def run(self, pieces: Sequence[Any]) -> List[List[Hypothesis]]:
        found = self.translator.search(
            [piece.tokens for piece in pieces],
            beam=self.beam,
            nbest=self.nbest,
            actors=self.actor,
            scores=self.scores,
            threads=1,
            actor=self.named_actor,
        )
        return [
            [self._hypothesis(piece, item, not rank) for rank, item in enumerate(best)]
            for piece, best in zip(pieces, found)
        ]

    def _hypothesis(self, piece: Piece, found: Found, first: bool) -> Hypothesis:
        text, chosen = self.translator.decode(found.tokens), (self.actor, self.named_actor)
        hypothesis = Hypothesis(text)
        if first and piece.aligned is not None:
            alignment = align(self.translator, piece.aligned, text, found.tokens, *chosen)
            hypothesis = replace(hypothesis, alignment=alignment)
        if not self.scores:
            return hypothesis
        actions = None
        if self.actions and first:
            actions = trace_actions(self.translator, piece.tokens, found.tokens, self.named_actor)
        tokens = self.translator.symbols(found.tokens)
        return replace(hypothesis, score=found.score, tokens=tokens, actions=actions)


def join_pieces(pieces: Sequence[List[Hypothesis]]) -> List[Hypothesis]:
    """Of a sentence its hypotheses, of those of its pieces; if there are several, it has the best of each."""
    if len(pieces) == 1:
        return pieces[0]
    best = [piece[0] for piece in pieces]
    tokens = [token for item in best for token in item.tokens]
    score = mean_score([(item.score, len(item.tokens)) for item in best])
    actions = [item.actions for item in best if item.actions is not None]
    return [Hypothesis(" ".join(item.text for item in best), score, tokens, join_actions(actions) if actions else None)]
