"""actor_cross_entropy: cross-entropy on the pseudo-parallel corpus that trains actors and nothing else."""

# Without `from __future__ import annotations`: fairseq wants the types of a config's fields, not their names.
from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

import torch
from fairseq import metrics
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import Tensor, nn

from fairseq_tg.errors import UserError
from fairseq_tg.models.base import ActorModel
from fairseq_tg.models.site import Norms


@dataclass
class ActorCrossEntropyConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """fairseq's own options; a label smoothing of 0, the default, is the paper's plain cross-entropy."""


@register_criterion("actor_cross_entropy", dataclass=ActorCrossEntropyConfig)
class ActorCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):
    """Trains actors; at validation it also logs the mean L2 norms of action, state and context (the paper's figure)."""

    def forward(self, model: nn.Module, sample: Dict[str, Any], reduce: bool = True) -> Tuple[Tensor, Any, Dict]:
        actor_model = check_trains_actors_only(model)
        if model.training:
            return super().forward(model, sample, reduce)
        with actor_model.recorded_norms() as recorded:
            loss, sample_size, logging_output = super().forward(model, sample, reduce)
        logging_output.update(_sum_norms(recorded, sample["target"].ne(self.padding_idx)))
        return loss, sample_size, logging_output

    def compute_loss(
        self, model: Any, net_output: Any, sample: Dict[str, Any], reduce: bool = True
    ) -> Tuple[Tensor, Tensor]:
        logits = net_output[0]
        in_place = (
            reduce and model.training and not self.report_accuracy
        )  # accuracy is taken from the logits afterwards
        if not in_place or getattr(model.decoder, "adaptive_softmax", None) is not None:
            return super().compute_loss(model, net_output, sample, reduce)
        skip = self.ignore_prefix_size
        target = model.get_targets(sample, net_output)[:, skip:]
        loss, nll_loss = FusedCrossEntropy.apply(
            logits[:, skip:].flatten(0, 1), target.flatten(), self.padding_idx, self.eps
        )
        return loss, nll_loss

    @classmethod
    def reduce_metrics(cls, logging_outputs: List[Dict[str, Any]]) -> None:
        super().reduce_metrics(logging_outputs)
        count = sum(log.get("norm_count", 0) for log in logging_outputs)
        if count:
            for name in Norms._fields:
                total = sum(log[f"{name}_norm"] for log in logging_outputs)
                metrics.log_scalar(f"{name}_norm", total / count, count, round=3)


class FusedCrossEntropy(torch.autograd.Function):
    """Label-smoothed cross-entropy from logits, summed over tokens, its gradient worked out on the way.

    With q = 1 - eps - eps/(V-1) on the target and eps/(V-1) on every token, as fairseq smooths, the loss of a token is
    -sum_v q_v log p_v and its gradient p - q. The gradient takes the place of the logits, which nobody reads again:
    fairseq's way keeps logits, log-probabilities and two gradients of N x V, and passes over them as often.
    """

    ROWS = 512  # at a time, so that what is in the making stays in the cache

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, padding_idx: int, eps: float) -> Tuple[Tensor, Tensor]:
        """logits: N x V, target: N -> the smoothed loss and the plain one."""
        eps_v = eps / (logits.size(1) - 1)
        loss = logits.new_zeros((), dtype=torch.float)
        nll_loss = logits.new_zeros((), dtype=torch.float)
        for rows, picked in zip(logits.split(FusedCrossEntropy.ROWS), target.split(FusedCrossEntropy.ROWS)):
            lprobs = rows.float().log_softmax(dim=-1)
            real = picked.ne(padding_idx).unsqueeze(1)
            nll = -lprobs.gather(1, picked.unsqueeze(1)).masked_fill(~real, 0.0).sum()
            nll_loss += nll
            loss += (1.0 - eps - eps_v) * nll
            if eps:
                loss -= eps_v * (lprobs.sum(dim=1, keepdim=True) * real).sum()
            gradient = lprobs.exp_().sub_(eps_v) if eps else lprobs.exp_()
            gradient.scatter_add_(1, picked.unsqueeze(1), torch.full_like(gradient[:, :1], -(1.0 - eps - eps_v)))
            rows.copy_(gradient.mul_(real))
        ctx.gradient = logits
        ctx.mark_non_differentiable(nll_loss)
        return loss, nll_loss

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tuple[Tensor, None, None, None]:
        gradient, ctx.gradient = ctx.gradient, None
        return gradient.mul_(grad_outputs[0]), None, None, None


def check_trains_actors_only(model: nn.Module) -> ActorModel:
    """The actor model inside fairseq's distributed wrappers; refuses one that would train anything but actors."""
    inner = model
    while not isinstance(inner, ActorModel) and isinstance(getattr(inner, "module", None), nn.Module):
        inner = inner.module  # type: ignore[assignment]
    if not isinstance(inner, ActorModel) or not inner.sites():
        raise UserError(
            "--criterion actor_cross_entropy trains actors, and this model has none: "
            "use --arch tg_transformer, tg_lstm or tg_fconv with --base-checkpoint"
        )
    of_actors = {parameter for site in inner.sites() for parameter in site.parameters()}
    for name, parameter in inner.named_parameters():
        if parameter.requires_grad and parameter not in of_actors:
            raise UserError(f"the base's parameter {name} is set to be trained: call requires_grad_(False) on it")
    return inner


@torch.no_grad()
def _sum_norms(recorded: List[List[Norms]], real: Tensor) -> Dict[str, Any]:
    """Sum the norms over sites and over the target's real tokens (B x T)."""
    sums: Dict[str, Any] = {"norm_count": len(recorded) * real.sum()}
    for index, name in enumerate(Norms._fields):
        # A site is called once for all steps, or (lstm) step by step: T x B either way
        norms = [torch.cat([call[index] for call in calls]) for calls in recorded]
        sums[f"{name}_norm"] = torch.stack([norm.t()[real].sum() for norm in norms]).sum()
    return sums
