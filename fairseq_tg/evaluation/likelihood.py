"""How likely a model finds translations, word by word: the paper's P_w."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from fairseq.data import LanguagePairDataset

from fairseq_tg.evaluation.systems import Tokens


@torch.no_grad()
def word_likelihood(
    model: Any, task: Any, sources: Sequence[Tokens], targets: Sequence[Tokens], batch_size: int = 32
) -> float:
    """P_w = 1/T sum_t P(y_t | y_<t, x), in percent, averaged over sentences; targets end with eos."""
    dataset = LanguagePairDataset(
        [torch.tensor(source) for source in sources],
        [len(source) for source in sources],
        task.source_dictionary,
        [torch.tensor(target) for target in targets],
        [len(target) for target in targets],
        task.target_dictionary,
        shuffle=False,
    )
    order = sorted(range(len(sources)), key=lambda i: (len(targets[i]), len(sources[i])))
    total = 0.0
    for start in range(0, len(order), batch_size):
        batch = dataset.collater([dataset[i] for i in order[start : start + batch_size]])
        output = model(**batch["net_input"])
        probabilities = model.get_normalized_probs(output, log_probs=False)  # B x T x V
        expected = batch["target"]
        real = expected.ne(task.target_dictionary.pad())
        chosen = probabilities.gather(2, expected.unsqueeze(2)).squeeze(2) * real
        total += (chosen.sum(dim=1) / real.sum(dim=1)).sum().item()
    return 100 * total / len(order)
