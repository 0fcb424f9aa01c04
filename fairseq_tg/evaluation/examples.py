"""Translations side by side, chosen by a rule: where the actor helped most, and where it hurt most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Sequence, Tuple

from fairseq_tg.objectives import sentence_bleu
from fairseq_tg.tokenizers import USUAL


@dataclass(frozen=True)
class Example:
    index: int  # in the test set, from 0
    source: str
    reference: str
    outputs: Dict[str, str]
    gain: float  # of tg over greedy, in sentence BLEU


def choose_examples(
    sources: Sequence[str],
    references: Sequence[str],
    outputs: Mapping[str, Sequence[str]],
    tg: str,
    each: int = 5,
    tokenizer: str = USUAL,
) -> Tuple[List[Example], List[Example]]:
    """The sentences with the largest gains of `tg` over `greedy` in sentence BLEU, and those with the largest losses.

    Of equal ones the first in the test set.
    """
    score = sentence_bleu(tokenizer).score
    gains = [
        score(better, reference) - score(greedy, reference)
        for better, greedy, reference in zip(outputs[tg], outputs["greedy"], references)
    ]
    order = sorted(range(len(gains)), key=lambda i: (-gains[i], i))

    def example(i: int) -> Example:
        return Example(i, sources[i], references[i], {name: texts[i] for name, texts in outputs.items()}, gains[i])

    best = [example(i) for i in order[:each] if gains[i] > 0]
    worst = [example(i) for i in sorted(range(len(gains)), key=lambda i: (gains[i], i))[:each] if gains[i] < 0]
    return best, worst
