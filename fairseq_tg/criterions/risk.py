"""actor_risk: the expected risk over candidates of a k-best list, mixed with cross-entropy on the best."""

# Without `from __future__ import annotations`: fairseq wants the types of a config's fields, not their names.
from dataclasses import dataclass, field
from typing import Any, Dict, Tuple

from fairseq.criterions import register_criterion
from torch import Tensor

from fairseq_tg.corpus.drawing import Candidates, Draw
from fairseq_tg.criterions.cross_entropy import ActorCrossEntropyConfig
from fairseq_tg.criterions.lists import ListCriterion, Rows, checked_weight
from fairseq_tg.errors import UserError


@dataclass
class ActorRiskConfig(ActorCrossEntropyConfig):
    candidates: int = field(
        default=8,
        metadata={"help": "hypotheses of a list: the best by its objective, the beam's first, and others at random"},
    )
    risk_temperature: float = field(
        default=1.0, metadata={"help": "candidates weigh exp(log-probability / temperature), of which the sum is 1"}
    )
    risk_per_token: bool = field(
        default=False, metadata={"help": "weigh candidates by the mean log-probability of their tokens, not the sum"}
    )
    risk_scale: float = field(
        default=0.01, metadata={"help": "times the objective's difference: 0.01 is for objectives of 0 to 100"}
    )
    risk_keep_length: bool = field(
        default=False,
        metadata={"help": "leave out of costs what goes with length: translations stay as long as they are"},
    )
    cross_entropy_weight: float = field(
        default=0.3, metadata={"help": "of the cross-entropy on the best hypothesis; that of the risk is 1 minus this"}
    )


@register_criterion("actor_risk", dataclass=ActorRiskConfig)
class ActorRiskCriterion(ListCriterion):
    r"""Expected risk over n candidates u of a list, by the objective O (Edunov et al., 2018, section 3.2):

    R = \sum_u q(u) (max O - O(u)), with q(u) = p(u)^{1/t} / \sum_{u'} p(u')^{1/t}.

    Both parts count as often as the best hypothesis has tokens, so that their weights compare means.

    Objectives like longer hypotheses, or shorter ones, and to say more or less everywhere is learned before anything
    else, and overdone on text that the base has not seen. --risk-keep-length takes costs c less their regression on the
    length l in a batch: the sum of q(u) (l(u) - E_q l) c(u), by which the mean length would change, is then 0.
    """

    logged = ("risk", "best_weight")

    def __init__(self, task: Any, cfg: ActorRiskConfig) -> None:
        super().__init__(task, cfg)
        if cfg.candidates < 2:
            raise UserError(f"--candidates {cfg.candidates}: give at least 2, of one there is no risk")
        for name, value in (("temperature", cfg.risk_temperature), ("scale", cfg.risk_scale)):
            if value <= 0:
                raise UserError(f"--risk-{name} {value:g}: give a number above 0")
        self.candidates = cfg.candidates
        self.temperature = cfg.risk_temperature
        self.per_token = cfg.risk_per_token
        self.keep_length = cfg.risk_keep_length
        self.scale = cfg.risk_scale
        self.weight = checked_weight(cfg.cross_entropy_weight)

    def drawn(self) -> Draw:
        return Candidates(self.candidates)

    def loss_of(self, rows: Rows) -> Tuple[Tensor, Any, Dict[str, Any]]:
        log_probs = rows.log_probs.sum(dim=1)
        if self.per_token:
            log_probs = log_probs / rows.lengths.clamp(min=1)
        weights = rows.softmax(log_probs / self.temperature)
        costs = (rows.scores[rows.best][rows.sentence] - rows.scores).to(weights.dtype)
        risks = rows.of_sentences(weights * costs)
        log = {"risk": risks.detach().sum(), "best_weight": weights.detach()[rows.best].sum()}
        if self.keep_length:
            risks = rows.of_sentences(weights * without_length(costs, weights.detach(), rows))
        lengths = rows.lengths[rows.best]
        cross_entropy = rows.losses[rows.best].sum()
        loss = (1 - self.weight) * self.scale * (risks * lengths).sum() + self.weight * cross_entropy
        return loss, lengths.sum(), log


def without_length(costs: Tensor, weights: Tensor, rows: Rows) -> Tensor:
    """R: costs less what a batch's regression on length, within lists, says of them."""
    lengths = rows.lengths.to(costs.dtype)
    deviations = lengths - rows.of_sentences(weights * lengths)[rows.sentence]
    counts = weights * lengths[rows.best][rows.sentence]  # as the risks do
    slope = (counts * deviations * costs).sum() / (counts * deviations**2).sum().clamp(min=1e-6)
    return costs - slope * deviations
