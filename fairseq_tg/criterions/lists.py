"""What the criteria that learn from k-best lists have in common: data from --kbest-lists, validation as ever."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Dict, List, Tuple

import torch
from fairseq import metrics
from torch import Tensor, nn

from fairseq_tg.corpus.drawing import Draw
from fairseq_tg.criterions.cross_entropy import ActorCrossEntropyCriterion, check_trains_actors_only
from fairseq_tg.criterions.log_probs import smoothed
from fairseq_tg.errors import UserError


class Rows:
    """The rows of a batch as a model sees them.

    Args:
        log_probs: R x T, of the targets; 0 where there is none.
        losses: R x T, their cross-entropies with label smoothing.
        sample: the batch; see `ListDataset.collater`.
    """

    def __init__(self, log_probs: Tensor, losses: Tensor, target: Tensor, sample: Dict[str, Any], pad: int) -> None:
        self.log_probs = log_probs
        self.losses = losses
        self.sentences = sample["nsentences"]
        self.sentence: Tensor = sample["net_input"]["rows"]  # R
        self.scores: Tensor = sample["scores"]  # R
        self.lengths = target.ne(pad).sum(dim=1)  # R
        #: R: whether a row is the first of its sentence, the best hypothesis
        self.best = torch.ones_like(self.sentence, dtype=torch.bool)
        self.best[1:] = self.sentence[1:] != self.sentence[:-1]

    def of_sentences(self, values: Tensor) -> Tensor:
        """R -> B: the sums over rows of a sentence."""
        return values.new_zeros(self.sentences).index_add(0, self.sentence, values)

    def softmax(self, values: Tensor) -> Tensor:
        """R -> R: a softmax over the rows of each sentence."""
        tops = values.new_full((self.sentences,), -torch.inf)
        tops = tops.scatter_reduce(0, self.sentence, values.detach(), "amax")
        weights = (values - tops[self.sentence]).exp()
        return weights / self.of_sentences(weights)[self.sentence]


class ListCriterion(ActorCrossEntropyCriterion):
    """Trains actors on rows that are drawn from k-best lists; validates by cross-entropy on the references."""

    #: Sums that are logged as means over sentences
    logged: Tuple[str, ...] = ()

    @abstractmethod
    def drawn(self) -> Draw:
        """What it wants to be drawn from a list."""

    @abstractmethod
    def loss_of(self, rows: Rows) -> Tuple[Tensor, Any, Dict[str, Any]]:
        """The loss of a batch, what its gradient is divided by, and what there is to log beside it."""

    def forward(self, model: nn.Module, sample: Dict[str, Any], reduce: bool = True) -> Tuple[Tensor, Any, Dict]:
        if not model.training:
            return super().forward(model, sample, reduce)
        check_trains_actors_only(model)
        rows = self.rows_of(model, self.prepared(model, _with_rows(sample)))
        loss, sample_size, log = self.loss_of(rows)
        if self.sentence_avg:
            sample_size = rows.sentences
        logging_output = {
            "loss": loss.detach(),
            "nll_loss": -rows.log_probs.detach()[rows.best].sum(),
            "nll_tokens": rows.lengths[rows.best].sum(),
            "ntokens": sample["ntokens"],
            "nsentences": rows.sentences,
            "sample_size": sample_size,
            **log,
        }
        return loss, sample_size, logging_output

    def prepared(self, model: nn.Module, sample: Dict[str, Any]) -> Dict[str, Any]:
        """The batch to compute."""
        return sample

    def rows_of(self, model: nn.Module, sample: Dict[str, Any]) -> Rows:
        log_probs, sums, vocabulary = self.score(model, model(**sample["net_input"]), sample["target"])
        losses = smoothed(log_probs, sums, vocabulary, self.eps)
        target = sample["target"][:, self.ignore_prefix_size :]
        return Rows(log_probs, losses, target, sample, self.padding_idx)

    @classmethod
    def reduce_metrics(cls, logging_outputs: List[Dict[str, Any]]) -> None:
        # Of the best hypotheses' tokens, where a batch has those of others too
        plain = [{**log, "ntokens": log.get("nll_tokens", log.get("ntokens", 0))} for log in logging_outputs]
        super().reduce_metrics(plain)
        sentences = sum(log.get("nsentences", 0) for log in logging_outputs)
        for name in cls.logged:
            if sentences and all(name in log for log in logging_outputs):
                total = sum(log[name] for log in logging_outputs)
                metrics.log_scalar(name, total / sentences, sentences, round=4)


def checked_weight(weight: float) -> float:
    """--cross-entropy-weight, of a criterion that mixes it with a loss of its own."""
    if not 0 <= weight < 1:
        raise UserError(f"--cross-entropy-weight {weight:g}: give a number from 0 to below 1")
    return weight


def _with_rows(sample: Dict[str, Any]) -> Dict[str, Any]:
    """A batch of lists.

    A rank that has fewer batches than others computes one of the validation set in their place, which counts nothing:
    its references are lists of one.
    """
    if "rows" in sample["net_input"]:
        return sample
    rows = torch.arange(len(sample["target"]), device=sample["target"].device)
    return {**sample, "net_input": {**sample["net_input"], "rows": rows}, "scores": rows.new_zeros(len(rows)).double()}
