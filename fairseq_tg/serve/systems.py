"""What is done with a batch of sentences: translated by one of a model's systems, or explained."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, Hashable, List, Optional, Sequence

import numpy as np

from fairseq_tg.compiled import InputError, Translator
from fairseq_tg.compiled.alignment import align
from fairseq_tg.compiled.engine import Found
from fairseq_tg.compiled.explain import trace_actions
from fairseq_tg.serve.batching import Work
from fairseq_tg.serve.drafts import Aligned
from fairseq_tg.serve.sentences import halves

#: How much longer than its source a translation may be, in tokens, and still have room: without, it would be cut
LONGER = 1.25


@dataclass(frozen=True)
class Hypothesis:
    text: str
    score: float = 0.0  # a token's mean log-probability, as fairseq gives it
    tokens: Sequence[str] = ()
    actions: Optional[Dict[str, Any]] = None
    alignment: Optional[np.ndarray] = None  # of its words with the source's, if there are tags to be placed


@dataclass(frozen=True)
class System(Work):
    """A model searched with or without its actors; a sentence gives its hypotheses, best first."""

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

    def run(self, sentences: Sequence[Any]) -> List[List[Hypothesis]]:
        pieces: List[List[int]] = []  # token ids; a sentence has one, or several if it is too long for the model
        counts = []
        for sentence in sentences:
            encoded = encode_pieces(self.translator, sentence)
            pieces += encoded
            counts.append(len(encoded))
        found = self.translator.search(
            pieces,
            beam=self.beam,
            nbest=self.nbest,
            actors=self.actor,
            scores=self.scores,
            threads=1,
            actor=self.named_actor,
        )
        results, at = [], 0
        for sentence, count in zip(sentences, counts):
            both = zip(pieces[at : at + count], found[at : at + count])
            joined = self._joined(
                [[self._hypothesis(source, item, not rank) for rank, item in enumerate(best)] for source, best in both]
            )
            if isinstance(sentence, Aligned) and count == 1:
                best = joined[0].text, found[at][0].tokens
                alignment = align(self.translator, sentence, *best, self.actor, self.named_actor)
                joined[0] = replace(joined[0], alignment=alignment)
            results.append(joined)
            at += count
        return results

    def _hypothesis(self, source: List[int], found: Found, first: bool) -> Hypothesis:
        text = self.translator.decode(found.tokens)
        if not self.scores:
            return Hypothesis(text)
        actions = None
        if self.actions and first:
            actions = asdict(trace_actions(self.translator, source, found.tokens, self.named_actor))
        return Hypothesis(text, found.score, self.translator.symbols(found.tokens), actions)

    @staticmethod
    def _joined(pieces: List[List[Hypothesis]]) -> List[Hypothesis]:
        if len(pieces) == 1:
            return pieces[0]
        best = [piece[0] for piece in pieces]
        score = sum(item.score * len(item.tokens) for item in best) / max(1, sum(len(item.tokens) for item in best))
        tokens = [token for item in best for token in item.tokens]
        return [Hypothesis(" ".join(item.text for item in best), score, tokens, best[0].actions)]


def encode_pieces(translator: Translator, sentence: str) -> List[List[int]]:
    """A sentence's token ids, in as many pieces as the model needs, and as their translations have room for."""
    short = len(sentence.strip()) < 2  # which may be too long by itself: others of its batch are not to blame
    try:
        tokens = translator.encode(sentence)
        if short or len(tokens) * LONGER <= translator.limit(tokens):
            return [tokens]
    except InputError:
        if short:
            return [translator.encode("")]
    first, second = halves(sentence)
    return [*encode_pieces(translator, first), *encode_pieces(translator, second)]
