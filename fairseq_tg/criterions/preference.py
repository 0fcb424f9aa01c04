"""actor_preference: the best hypothesis of a list is to be likelier than what the actor itself says now."""

# Without `from __future__ import annotations`: fairseq wants the types of a config's fields, not their names.
from dataclasses import dataclass, field
from typing import Any, Dict, Tuple

import torch
from fairseq.criterions import register_criterion
from torch import Tensor, nn
from torch.nn import functional

from fairseq_tg.corpus.drawing import Best, Draw
from fairseq_tg.criterions.cross_entropy import ActorCrossEntropyConfig
from fairseq_tg.criterions.lists import ListCriterion, Rows, checked_weight
from fairseq_tg.criterions.own_output import OwnOutput
from fairseq_tg.errors import UserError


@dataclass
class ActorPreferenceConfig(ActorCrossEntropyConfig):
    preference_beta: float = field(
        default=0.1, metadata={"help": "times the difference of the log-probabilities, in the preference's sigmoid"}
    )
    preference_per_token: bool = field(
        default=False, metadata={"help": "compare the mean log-probabilities of tokens, not their sums"}
    )
    cross_entropy_weight: float = field(
        default=0.5,
        metadata={"help": "of the cross-entropy on the best hypothesis; that of the preference is 1 minus this"},
    )


@register_criterion("actor_preference", dataclass=ActorPreferenceConfig)
class ActorPreferenceCriterion(ListCriterion):
    r"""Contrastive preference (CPO, Xu et al., 2024) of the best hypothesis w over the actor's own greedy output l:

    -\log \sigma(\beta (\log p(w) - \log p(l))), where l is not w.

    The output is that of the actor as it is at this update. Both parts count as often as w has tokens, so that their
    weights compare means.
    """

    logged = ("preference", "differing")

    def __init__(self, task: Any, cfg: ActorPreferenceConfig) -> None:
        super().__init__(task, cfg)
        if cfg.preference_beta <= 0:
            raise UserError(f"--preference-beta {cfg.preference_beta:g}: give a number above 0")
        self.beta = cfg.preference_beta
        self.per_token = cfg.preference_per_token
        self.weight = checked_weight(cfg.cross_entropy_weight)
        self.own_output = OwnOutput(task, "actor_preference", [False])

    def drawn(self) -> Draw:
        return Best()

    def prepared(self, model: nn.Module, sample: Dict[str, Any]) -> Dict[str, Any]:
        """The batch with the actor's own output beside the best hypothesis, where it is another."""
        source, target = sample["net_input"]["src_tokens"], sample["target"]
        best = [row[row.ne(self.padding_idx)] for row in target]
        (said,) = self.own_output(model, sample)
        pairs = [[w] if torch.equal(w, own) else [w, own] for w, own in zip(best, said)]
        rows = [row for pair in pairs for row in pair]
        target, previous = self.own_output.as_targets(rows, sample)
        counts = torch.tensor([len(pair) for pair in pairs], device=source.device)
        net_input = {
            **sample["net_input"],
            "prev_output_tokens": previous,
            "rows": torch.repeat_interleave(torch.arange(len(pairs), device=source.device), counts),
        }
        return {**sample, "net_input": net_input, "target": target}

    def loss_of(self, rows: Rows) -> Tuple[Tensor, Any, Dict[str, Any]]:
        log_probs = rows.log_probs.sum(dim=1)
        if self.per_token:
            log_probs = log_probs / rows.lengths.clamp(min=1)
        lengths = rows.lengths[rows.best]
        others = ~rows.best
        differing = rows.sentence[others]  # sentences, one row of others each
        margins = log_probs[rows.best][differing] - log_probs[others]
        preferences = -functional.logsigmoid(self.beta * margins)
        cross_entropy = rows.losses[rows.best].sum()
        loss = (1 - self.weight) * (preferences * lengths[differing]).sum() + self.weight * cross_entropy
        return loss, lengths.sum(), {"preference": preferences.detach().sum(), "differing": others.sum()}
