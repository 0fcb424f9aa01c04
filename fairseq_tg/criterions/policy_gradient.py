"""actor_policy_gradient: actors that are rewarded for what they say, a baseline that needs no k-best lists."""

# Without `from __future__ import annotations`: fairseq wants the types of a config's fields, not their names.
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Dict, List, Tuple

import torch
from fairseq import metrics
from fairseq.criterions import register_criterion
from torch import Tensor, nn

from fairseq_tg.criterions.cross_entropy import ActorCrossEntropyConfig, ActorCrossEntropyCriterion
from fairseq_tg.criterions.own_output import OwnOutput
from fairseq_tg.errors import UserError
from fairseq_tg.loading.splits import indexable
from fairseq_tg.objectives import Objective, get_objective, score_hypothesis
from fairseq_tg.text import Words
from fairseq_tg.tokenizers import USUAL


@dataclass
class ActorPolicyGradientConfig(ActorCrossEntropyConfig):
    reward: str = field(default="sbleu", metadata={"help": "what translations are rewarded by, as --objective"})
    reward_scale: float = field(
        default=0.1, metadata={"help": "times the rewards' difference: 0.1 is for objectives of 0 to 100"}
    )


@register_criterion("actor_policy_gradient", dataclass=ActorPolicyGradientConfig)
class ActorPolicyGradientCriterion(ActorCrossEntropyCriterion):
    r"""REINFORCE with the greedy translation as its baseline (Rennie et al., 2017), for the actors alone.

    For a translation y that is sampled from the model and its greedy one \hat y the loss is
    -s (O(y) - O(\hat y)) \log p(y). The data are source sentences with references, which O compares with.

    Gu et al. (2017), who taught actors first, used a deterministic policy gradient with a critic that estimates O from
    the decoder's states: the same aim, with a gradient of less variance and a second network to train.
    """

    def __init__(self, task: Any, cfg: ActorPolicyGradientConfig) -> None:
        super().__init__(task, cfg)
        if cfg.reward_scale <= 0:
            raise UserError(f"--reward-scale {cfg.reward_scale:g}: give a number above 0")
        get_objective(cfg.reward, task.cfg.sacrebleu_tokenizer or USUAL)  # one that cannot be had is refused now
        self.reward = cfg.reward
        self.scale = cfg.reward_scale
        self.words = Words(task.target_dictionary)
        self.own_output = OwnOutput(task, "actor_policy_gradient", [False, True])

    def forward(self, model: nn.Module, sample: Dict[str, Any], reduce: bool = True) -> Tuple[Tensor, Any, Dict]:
        if not model.training:
            return super().forward(model, sample, reduce)
        greedy, sampled = self.own_output(model, sample)
        baselines, rewards = self._rewards(greedy, sample), self._rewards(sampled, sample)
        target, previous = self.own_output.as_targets(sampled, sample)
        net_output = model(**{**sample["net_input"], "prev_output_tokens": previous})
        picked, _, _ = self.score(model, net_output, target)
        advantages = self.scale * (rewards - baselines)
        loss = -(advantages.to(picked) * picked.sum(dim=1)).sum()
        tokens = int(target.ne(self.padding_idx).sum())
        sample_size = len(sampled) if self.sentence_avg else tokens
        logging_output = {
            "loss": loss.detach(),
            "nll_loss": -picked.detach().sum(),
            "ntokens": tokens,
            "nsentences": len(sampled),
            "sample_size": sample_size,
            "greedy_reward": baselines.sum(),
            "sampled_reward": rewards.sum(),
        }
        return loss, sample_size, logging_output

    @cached_property
    def objective(self) -> Objective:
        """In words as the training's targets have them."""
        dataset = indexable(self.task.dataset(self.task.cfg.train_subset))

        def text(index: int) -> str:
            return self.words(dataset[index]["target"].tolist(), True)

        return get_objective(self.reward, self.task.count_words_by(self.task.pairs[0][1], text, len(dataset)))

    def _rewards(self, translations: List[Tensor], sample: Dict[str, Any]) -> Tensor:
        """The objective of every translation, B."""
        scores = []
        for tokens, reference, number in zip(translations, sample["target"], sample["id"].tolist()):
            text = self.words(reference[reference.ne(self.padding_idx)].tolist(), True)
            scores.append(score_hypothesis(self.objective, self.words(tokens.tolist()), text, number))
        return torch.tensor(scores)

    @classmethod
    def reduce_metrics(cls, logging_outputs: List[Dict[str, Any]]) -> None:
        super().reduce_metrics(logging_outputs)
        sentences = sum(log.get("nsentences", 0) for log in logging_outputs)
        for name in ("greedy_reward", "sampled_reward"):
            if sentences and all(name in log for log in logging_outputs):
                metrics.log_scalar(name, sum(log[name] for log in logging_outputs) / sentences, sentences, round=3)
