"""The log-probabilities of an adaptive softmax, to be trained through: fairseq's own are written in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def adaptive_log_probs(softmax: Any, features: Tensor) -> Tensor:
    """B x T x C -> B x T x V, by fairseq's AdaptiveSoftmax.

    The head has the frequent words and a symbol for each of the other clusters; a word of a cluster has the
    probability of its symbol times that in the cluster: log p(w) = log p(c) + log p(w | c).
    """
    frequent = softmax.cutoff[0]
    head = softmax.head(features).log_softmax(dim=-1)
    clusters = [
        tail(features).log_softmax(dim=-1) + head[..., frequent + index, None]
        for index, tail in enumerate(softmax.tail)
    ]
    return torch.cat([head[..., :frequent], *clusters], dim=-1)
