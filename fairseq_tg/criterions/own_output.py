"""What a model that is being trained says at this update: decoded anew for criteria that learn from it."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Dict, List, Sequence, Tuple

from fairseq.data import data_utils
from torch import Tensor, nn

from fairseq_tg.criterions.cross_entropy import check_trains_actors_only
from fairseq_tg.decoding.sampling import SamplingGenerator
from fairseq_tg.errors import UserError

#: By how many tokens an output may be longer than the longest target of the batch
LONGER = 5


class OwnOutput:
    """Searches with the model as it is now. (No module: a criterion's modules are trained.)

    Args:
        task: builds the generators.
        criterion: its name, for the user of a task that it does not know.
        sampled: of each search, whether its tokens are drawn from the model and not the likeliest.
    """

    def __init__(self, task: Any, criterion: str, sampled: Sequence[bool]) -> None:
        if getattr(task, "marks", None):
            raise UserError(f"--criterion {criterion} does not know this task's language symbols: use actor_risk")
        self._task = task
        self._sampled = sampled
        self._generators: List[Any] = []  # made with the first batch, when there is a model

    def __call__(self, model: nn.Module, sample: Dict[str, Any]) -> List[List[Tensor]]:
        """For every search the translations of a batch, each of which ends with the end of sentence."""
        inner = check_trains_actors_only(model)
        source = {name: sample["net_input"][name] for name in ("src_tokens", "src_lengths")}
        inner.eval()
        try:
            if not self._generators:
                self._generators = [self._generator(inner, sampled) for sampled in self._sampled]
            found = []
            for generator in self._generators:
                generator.max_len_a, generator.max_len_b = 0, _limit(sample)
                translations = generator.generate([inner], {"net_input": source})
                found.append([hypotheses[0]["tokens"].to(source["src_tokens"]) for hypotheses in translations])
        finally:
            inner.train()
        return found

    def _generator(self, model: nn.Module, sampled: bool) -> Any:
        ours: Dict[str, Any] = {"seq_gen_cls": SamplingGenerator}
        fast = ours if sampled and not self._task.cfg.no_fast_search else {}
        return self._task.build_generator([model], Namespace(beam=1, sampling=sampled), **fast)

    def as_targets(self, rows: Sequence[Tensor], sample: Dict[str, Any]) -> Tuple[Tensor, Tensor]:
        """Sentences, outputs of this batch among them, as targets and as what comes before these, both R x T.

        The end of an output that is as long as it may be was nobody's choice: it is no target.
        """
        words = self._task.target_dictionary
        target, previous = (
            data_utils.collate_tokens(rows, words.pad(), words.eos(), move_eos_to_beginning=shifted)
            for shifted in (False, True)
        )
        target[:, _limit(sample) :] = words.pad()
        return target, previous


def _limit(sample: Dict[str, Any]) -> int:
    """The most tokens of an output of this batch, its end not counted."""
    return int(sample["target"].size(1)) + LONGER - 1
