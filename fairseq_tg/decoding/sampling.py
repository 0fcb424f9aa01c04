"""Drawing translations from a model: every token by its probability, at the speed of greedy search."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_tg.decoding.fast_search import FastGenerator


class SamplingGenerator(FastGenerator):
    """fairseq's generator with its search strategy `Sampling` and a beam of 1; searches itself with a model's session.

    Made by fairseq with that strategy, which draws where a model has no session.
    """

    def _find_engine(self) -> Any:
        return None  # it knows no chance

    def _pick(self, logits: Tensor) -> Tensor:
        return draw(logits)


def draw(logits: Tensor) -> Tensor:
    """B x V -> B: one of each row, with the probabilities that the logits give; -inf is never drawn.

    By where a number falls among the sums of probabilities: one number a row, where torch.multinomial takes one for
    every token of the vocabulary.
    """
    sums = (logits - logits.amax(dim=1, keepdim=True)).exp_().cumsum(dim=1, dtype=torch.double)
    fallen = torch.rand(len(logits), 1, dtype=torch.double, device=logits.device) * sums[:, -1:]
    return torch.searchsorted(sums, fallen, right=True).squeeze(1).clamp_(max=logits.size(1) - 1)
