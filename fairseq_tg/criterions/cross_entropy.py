"""actor_cross_entropy: cross-entropy on the pseudo-parallel corpus that trains actors and nothing else."""

# Without `from __future__ import annotations`: fairseq wants the types of a config's fields, not their names.
from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

import torch
from fairseq import metrics
from fairseq.criterions import CRITERION_REGISTRY, register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import Tensor, nn

from fairseq_tg.criterions.adaptive import adaptive_log_probs
from fairseq_tg.criterions.log_probs import TokenLogProbs, smoothed
from fairseq_tg.errors import UserError
from fairseq_tg.models.base import ActorModel
from fairseq_tg.models.site import Norms


@dataclass
class ActorCrossEntropyConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """fairseq's own options; a label smoothing of 0, the default, is the paper's plain cross-entropy."""


@register_criterion("actor_cross_entropy", dataclass=ActorCrossEntropyConfig)
class ActorCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):
    """Trains actors; at validation it also logs the mean L2 norms of action, state and context (the paper's figure)."""

    def __init__(self, task: Any, cfg: ActorCrossEntropyConfig) -> None:
        super().__init__(task, cfg.sentence_avg, cfg.label_smoothing, cfg.ignore_prefix_size, cfg.report_accuracy)

    @classmethod
    def build_criterion(cls, cfg: ActorCrossEntropyConfig, task: Any) -> "ActorCrossEntropyCriterion":
        """fairseq's own gives a constructor each field as an argument, which would have to repeat them all."""
        return cls(task, cfg)

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
        # accuracy is taken from the logits afterwards
        if not reduce or not model.training or self.report_accuracy:
            return super().compute_loss(model, net_output, sample, reduce)
        log_probs, sums, vocabulary = self.score(model, net_output, sample["target"])
        loss = smoothed(log_probs, sums, vocabulary, self.eps).sum()
        return loss, -log_probs.detach().sum()

    def get_lprobs_and_target(self, model: Any, net_output: Any, sample: Dict[str, Any]) -> Tuple[Tensor, Tensor]:
        adaptive = _adaptive(model)
        if adaptive is None:
            return super().get_lprobs_and_target(model, net_output, sample)
        kept = slice(self.ignore_prefix_size, None)
        log_probs = adaptive_log_probs(adaptive, net_output[0])[:, kept]
        return log_probs.flatten(0, 1), sample["target"][:, kept].flatten()

    def score(self, model: Any, net_output: Any, target: Tensor) -> Tuple[Tensor, Tensor, int]:
        """The log-probabilities of B x T targets, their sums over the vocabulary, 0 at padding, and its size.

        The logits are used up.
        """
        target = target[:, self.ignore_prefix_size :]
        logits = net_output[0]
        adaptive = _adaptive(model)
        if adaptive is not None:
            logits = adaptive_log_probs(adaptive, logits)  # which are logits of themselves
        logits = logits[:, self.ignore_prefix_size :].flatten(0, 1)
        log_probs, sums = TokenLogProbs.apply(logits, target.flatten(), self.padding_idx, self.eps > 0)
        return log_probs.view_as(target), sums.view_as(target), logits.size(-1)

    @classmethod
    def reduce_metrics(cls, logging_outputs: List[Dict[str, Any]]) -> None:
        super().reduce_metrics(logging_outputs)
        count = sum(log.get("norm_count", 0) for log in logging_outputs)
        if count:
            for name in Norms._fields:
                total = sum(log[f"{name}_norm"] for log in logging_outputs)
                metrics.log_scalar(f"{name}_norm", total / count, count, round=3)


def trains_actors(criterion: str) -> bool:
    """Whether a criterion of this name is for actors only."""
    return issubclass(CRITERION_REGISTRY.get(criterion, object), ActorCrossEntropyCriterion)


def check_trains_actors_only(model: nn.Module) -> ActorModel:
    """The actor model inside fairseq's distributed wrappers; refuses one that would train anything but actors."""
    inner = _inside(model)
    if not isinstance(inner, ActorModel) or not inner.sites():
        raise UserError(
            "this criterion trains actors, and this model has none: "
            "use --arch tg_transformer, tg_bart, tg_lstm or tg_fconv with --base-checkpoint"
        )
    of_actors = {parameter for site in inner.sites() for parameter in site.parameters()}
    for name, parameter in inner.named_parameters():
        if parameter.requires_grad and parameter not in of_actors:
            raise UserError(f"the base's parameter {name} is set to be trained: call requires_grad_(False) on it")
    return inner


def _adaptive(model: Any) -> Any:
    return getattr(_inside(model).decoder, "adaptive_softmax", None)


def _inside(model: Any) -> Any:
    """The model inside fairseq's distributed wrappers."""
    while not isinstance(model, ActorModel) and isinstance(getattr(model, "module", None), nn.Module):
        model = model.module
    return model


@torch.no_grad()
def _sum_norms(recorded: List[List[Norms]], real: Tensor) -> Dict[str, Any]:
    """Sum the norms over sites and over the target's real tokens (B x T)."""
    sums: Dict[str, Any] = {"norm_count": len(recorded) * real.sum()}
    for index, name in enumerate(Norms._fields):
        # A site is called once for all steps, or (lstm) step by step: T x B either way
        norms = [torch.cat([call[index] for call in calls]) for calls in recorded]
        sums[f"{name}_norm"] = torch.stack([norm.t()[real].sum() for norm in norms]).sum()
    return sums
