"""Training on k-best lists: what a tg task does with --kbest-lists, for criteria that learn from lists."""

# Without `from __future__ import annotations`: fairseq wants the types of a config's fields, not their names.
import os
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.utils import split_paths

from fairseq_tg.corpus.assemble import SPLIT
from fairseq_tg.corpus.drawing import Draw
from fairseq_tg.corpus.list_dataset import ListDataset
from fairseq_tg.corpus.lists import check_lists, join_lists, read_lists
from fairseq_tg.corpus.sources import ChangingSources
from fairseq_tg.criterions.lists import ListCriterion
from fairseq_tg.errors import UserError
from fairseq_tg.models.base import ActorModel
from fairseq_tg.names import LIST_CRITERIA, one_of
from fairseq_tg.tasks.marks import MarkedTask


@dataclass
class ListOptions(FairseqDataclass):
    kbest_lists: Optional[str] = field(
        default=None,
        metadata={
            "help": "train on the k-best lists of this corpus (built with --kbest-jsonl), by a criterion that learns "
            f"from lists; several are taken together, separated by '{os.pathsep}'"
        },
    )


class ListTask(MarkedTask):
    """Trains on lists in place of the train split, where the criterion is one for that."""

    def __init__(self, cfg: Any, *dictionaries: Any) -> None:
        super().__init__(cfg, *dictionaries)
        self._draw: Optional[Draw] = None  # what the criterion wants of a list
        self._base = ""  # the fingerprint of the base that is trained on

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> BaseFairseqModel:
        model = super().build_model(cfg, from_checkpoint)
        if isinstance(model, ActorModel):
            self._base = model.base.fingerprint
        return model

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """The criterion; lists that are none, or not for it, are refused now."""
        criterion = super().build_criterion(cfg, from_checkpoint)
        learns_from_lists = isinstance(criterion, ListCriterion)
        if learns_from_lists and not self.cfg.kbest_lists:
            raise UserError(f"--criterion {cfg._name} learns from k-best lists: give --kbest-lists their corpus")
        if self.cfg.kbest_lists and not learns_from_lists:
            raise UserError(f"--criterion {cfg._name} does not learn from --kbest-lists: use {one_of(LIST_CRITERIA)}")
        if learns_from_lists and len(self.pairs) > 1:
            raise UserError(f"--criterion {cfg._name} learns from the lists of one pair: give one in --lang-pairs")
        if learns_from_lists and self.around_target() is None:
            raise UserError(f"--criterion {cfg._name} does not know --lang-tok-replacing-bos-eos: train on the corpus")
        if learns_from_lists and self._base:  # a model without actors is refused by the criterion
            self._draw = criterion.drawn()
            for path in split_paths(self.cfg.kbest_lists):
                recipe = check_lists(path, split_paths(self.cfg.data)[0], self.pairs[0], self._base)
                if recipe["beam"] < self._draw.most:
                    raise UserError(
                        f"--kbest-lists {path}: the lists have {recipe['beam']} hypotheses and {cfg._name} wants "
                        f"{self._draw.most}: give it fewer, or lists of a wider beam"
                    )
        return criterion

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        if split != self.cfg.train_subset or self._draw is None:
            super().load_dataset(split, epoch, combine, **kwargs)
            return
        paths, pairs, data = split_paths(self.cfg.kbest_lists), [], self.cfg.data
        try:
            for path in paths:
                self.cfg.data = path
                pairs.append(self._list_sources())
        finally:
            self.cfg.data = data
        eos, around = self.target_dictionary.eos(), self.around_target() or ()
        lists = join_lists([read_lists(path, eos, *around) for path in paths], list(map(len, pairs)))
        self.datasets[split] = ListDataset(pairs, lists, self._draw, self.cfg._get_root().common.seed)

    def _list_sources(self) -> Any:
        """The pairs of a corpus: its sources are made as those of any training."""
        if self.marks:
            return self.mark_pairs(*self.plain_split(SPLIT))
        super().load_dataset(SPLIT)
        return self.datasets.pop(SPLIT)

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> EpochBatchIterator:
        lists = dataset.dataset if isinstance(dataset, ChangingSources) else dataset
        if isinstance(lists, ListDataset) and kwargs.get("max_tokens"):
            lists.fit(kwargs["max_tokens"])
        return super().get_batch_iterator(dataset, *args, **kwargs)
