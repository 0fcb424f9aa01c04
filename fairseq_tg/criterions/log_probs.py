"""Log-probabilities of tokens from logits, with a gradient that takes no memory of its own."""

from __future__ import annotations

from typing import Any, Tuple

import torch
from torch import Tensor


class TokenLogProbs(torch.autograd.Function):
    """log p of every target, and the sum of log p over the vocabulary, which label smoothing takes.

    With g and s the gradients of the two, that of the logits is g (1[v = target] - p) + s (1 - V p). The probabilities
    take the place of the logits, which nobody reads again, and the gradient that of the probabilities: fairseq's way
    keeps logits, log-probabilities and two gradients of N x V, and passes over them as often. What a loss does with N
    numbers costs nothing beside that, so every loss of ours is made of these.
    """

    ROWS = 512  # at a time, so that what is in the making stays in the cache

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, padding_idx: int, sums: bool) -> Tuple[Tensor, Tensor]:
        """logits: N x V, target: N -> N and N, 0 where the target is padding, and sums of 0 if they are not wanted."""
        log_probs = torch.zeros(len(logits), dtype=torch.float, device=logits.device)
        totals = torch.zeros_like(log_probs)
        pieces = (tensor.split(TokenLogProbs.ROWS) for tensor in (logits, target, log_probs, totals))
        for rows, picked, log_prob, total in zip(*pieces):
            lprobs = rows.float().log_softmax(dim=-1)
            log_prob.copy_(lprobs.gather(1, picked.unsqueeze(1)).squeeze(1))
            if sums:
                total.copy_(lprobs.sum(dim=1))
            rows.copy_(lprobs.exp_())
        padding = target.eq(padding_idx)
        ctx.probabilities, ctx.sums = logits, sums
        ctx.save_for_backward(target, padding)
        return log_probs.masked_fill_(padding, 0.0), totals.masked_fill_(padding, 0.0)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tuple[Tensor, None, None, None]:
        probabilities, ctx.probabilities = ctx.probabilities, None
        target, padding = ctx.saved_tensors
        of_target, of_sum = (gradient.masked_fill(padding, 0.0) for gradient in grad_outputs)
        weight = -(of_target + probabilities.size(1) * of_sum) if ctx.sums else -of_target
        probabilities.mul_(weight.unsqueeze(1))
        if ctx.sums:
            probabilities.add_(of_sum.unsqueeze(1))
        probabilities.scatter_add_(1, target.unsqueeze(1), of_target.unsqueeze(1).to(probabilities.dtype))
        return probabilities, None, None, None


def smoothed(log_probs: Tensor, sums: Tensor, vocabulary: int, eps: float) -> Tensor:
    """Label-smoothed cross-entropy as fairseq's, of each token.

    With q = 1 - eps - eps/(V-1) on the target and eps/(V-1) on every token, the loss is -sum_v q_v log p_v.
    """
    if not eps:
        return -log_probs
    eps_v = eps / (vocabulary - 1)
    return -(1.0 - eps - eps_v) * log_probs - eps_v * sums
