"""The best translation that a wide beam finds, by the reference: what an actor is trained on, for a test set."""

from __future__ import annotations

from typing import Iterator, List

from fairseq_tg.evaluation.batches import Say, by_length, in_batches
from fairseq_tg.evaluation.subset import Subset
from fairseq_tg.evaluation.systems import Search, Tokens
from fairseq_tg.objectives import sentence_bleu


def oracle_translations(search: Search, subset: Subset, say: Say, doing: str, batch_size: int) -> List[Tokens]:
    """Of all that a search finds for each sentence, what has the best sentence BLEU; ties to the lower rank."""
    score, references = sentence_bleu(subset.tokenizer).score, subset.references or []

    def choose(ids: List[int]) -> Iterator[Tokens]:
        for i, found in zip(ids, search([subset.sources[i] for i in ids])):
            scores = [score(subset.words(tokens), references[i]) for tokens in found]
            yield found[scores.index(max(scores))]

    return in_batches(choose, by_length([len(source) for source in subset.sources], batch_size), say, doing)
