"""How likely a model finds translations, token by token: the paper's P_w, and how sure it is of a sentence."""

from __future__ import annotations

import statistics
from typing import Any, List, Sequence

import torch

from fairseq_tg.evaluation.batches import SENTENCES, Say, by_length, in_batches
from fairseq_tg.evaluation.systems import Tokens

#: Of a batch: 16 MB, several times while they are worked out
MOST_PROBABILITIES = 1 << 22


def word_likelihood(
    model: Any, task: Any, sources: Sequence[Tokens], targets: Sequence[Tokens], *progress: Any
) -> float:
    """P_w = 1/T sum_t P(y_t | y_<t, x), in percent, averaged over sentences."""
    return 100 * statistics.fmean(token_means(model, task, sources, targets, False, *progress))


@torch.no_grad()
def token_means(
    model: Any,
    task: Any,
    sources: Sequence[Tokens],
    targets: Sequence[Tokens],
    log_probs: bool,
    say: Say = lambda text: None,
    doing: str = "likelihoods",
) -> List[float]:
    """For each sentence, the mean over its tokens of their probability or log-probability; targets end with eos."""
    dataset = task.marked_pairs(sources, targets)
    ignored = torch.tensor([task.target_dictionary.pad(), *task.marks])

    def likelihoods(ids: List[int]) -> List[float]:
        batch = dataset.collater([dataset[i] for i in ids])
        probabilities = model.get_normalized_probs(model(**batch["net_input"]), log_probs=log_probs)  # B x T x V
        expected = batch["target"]
        real = ~torch.isin(expected, ignored)
        chosen = probabilities.gather(2, expected.unsqueeze(2)).squeeze(2).masked_fill(~real, 0.0)
        means = dict(zip(batch["id"].tolist(), (chosen.sum(dim=1) / real.sum(dim=1)).tolist()))
        return [means[i] for i in ids]  # the collater orders them by length

    lengths = [(len(target), len(source)) for source, target in zip(sources, targets)]
    most = MOST_PROBABILITIES // (max(map(len, targets)) * len(task.target_dictionary))
    return in_batches(likelihoods, by_length(lengths, min(SENTENCES, max(1, most))), say, doing)
