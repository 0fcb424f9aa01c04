"""What a model that is being trained says at this update: decoded anew for criteria that learn from it."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Dict, List, Sequence

from torch import Tensor, nn

from fairseq_tg.criterions.cross_entropy import check_trains_actors_only
from fairseq_tg.errors import UserError

#: By how many tokens an output may be longer than the longest target of the batch
LONGER = 5


class OwnOutput:
    """Searches with the model as it is now. (No module: a criterion's modules are trained.)

    Args:
        task: builds the generators.
        criterion: its name, for the user of a task that it does not know.
        searches: fairseq's options of each search beside a beam of 1.
    """

    def __init__(self, task: Any, criterion: str, searches: Sequence[Dict[str, Any]]) -> None:
        if getattr(task, "marks", None):
            raise UserError(f"--criterion {criterion} does not know this task's language symbols: use actor_risk")
        self._task = task
        self._searches = searches
        self._generators: List[Any] = []  # made with the first batch, when there is a model

    def __call__(self, model: nn.Module, sample: Dict[str, Any]) -> List[List[Tensor]]:
        """For every search the translations of a batch, each of which ends with the end of sentence."""
        inner = check_trains_actors_only(model)
        source = {name: sample["net_input"][name] for name in ("src_tokens", "src_lengths")}
        inner.eval()
        try:
            if not self._generators:
                self._generators = [self._task.build_generator([inner], Namespace(beam=1, **s)) for s in self._searches]
            found = []
            for generator in self._generators:
                generator.max_len_a, generator.max_len_b = 0, sample["target"].size(1) + LONGER - 1
                translations = generator.generate([inner], {"net_input": source})
                found.append([hypotheses[0]["tokens"].to(source["src_tokens"]) for hypotheses in translations])
        finally:
            inner.train()
        return found
