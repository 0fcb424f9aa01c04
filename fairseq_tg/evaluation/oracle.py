"""The best translation that a wide beam finds, by the reference: what an actor is trained on, for a test set."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_tg.evaluation.subset import to_text
from fairseq_tg.evaluation.systems import Tokens
from fairseq_tg.objectives import sentence_bleu


def oracle_translations(
    model: Any,
    task: Any,
    sources: Sequence[Tokens],
    references: Sequence[str],
    beam: int,
    batch_size: int = 16,
    progress: Callable[[str], None] = lambda text: None,
) -> List[Tokens]:
    """Of the `beam` best translations of each sentence, the one with the best sentence BLEU; ties to the lower rank."""
    generator = SequenceGenerator([model], task.target_dictionary, beam_size=beam)
    score = sentence_bleu().score
    chosen: List[Tokens] = [[] for _ in sources]
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for start in range(0, len(order), batch_size):
        progress(f"oracle of beam {beam}: {start} of {len(order)} sentences")
        batch = order[start : start + batch_size]
        tokens = [torch.tensor(sources[i]) for i in batch]
        dataset = task.build_dataset_for_inference(tokens, [len(sources[i]) for i in batch])
        sample = dataset.collater([dataset[i] for i in range(len(batch))])
        for row, hypotheses in zip(sample["id"].tolist(), generator.generate([model], sample)):
            found = [hypothesis["tokens"].tolist() for hypothesis in hypotheses]
            scores = [score(to_text(task.target_dictionary, item), references[batch[row]]) for item in found]
            chosen[batch[row]] = found[scores.index(max(scores))]
    return chosen
