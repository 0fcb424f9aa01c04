"""actor_trie: cross-entropy on a k-best list as a trie, where every prefix has its own best continuation."""

# Without `from __future__ import annotations`: fairseq wants the types of a config's fields, not their names.
from dataclasses import dataclass, field
from typing import Any, Dict, Tuple

from fairseq.criterions import register_criterion
from torch import Tensor

from fairseq_tg.corpus.drawing import Draw, TriePaths
from fairseq_tg.criterions.cross_entropy import ActorCrossEntropyConfig
from fairseq_tg.criterions.lists import ListCriterion, Rows
from fairseq_tg.errors import UserError


@dataclass
class ActorTrieConfig(ActorCrossEntropyConfig):
    paths: int = field(
        default=4,
        metadata={"help": "hypotheses of a list to follow: the best by its objective, the beam's first, and others"},
    )
    count_repeats: bool = field(
        default=False, metadata={"help": "count a prefix that several paths have once for each of them, not once"}
    )


@register_criterion("actor_trie", dataclass=ActorTrieConfig)
class ActorTrieCriterion(ListCriterion):
    """At every prefix of several hypotheses, the token that leads to the best which is still reachable from there.

    So an actor also learns to go on well after a first mistake.
    """

    def __init__(self, task: Any, cfg: ActorTrieConfig) -> None:
        super().__init__(task, cfg)
        if cfg.paths < 1:
            raise UserError(f"--paths {cfg.paths}: give the number of hypotheses to follow")
        self.paths = cfg.paths
        self.count_repeats = cfg.count_repeats

    def drawn(self) -> Draw:
        return TriePaths(self.paths, self.count_repeats)

    def loss_of(self, rows: Rows) -> Tuple[Tensor, Any, Dict[str, Any]]:
        return rows.losses.sum(), rows.lengths.sum(), {}
