"""Several language pairs as one data set: their sentences in a row, in batches of one pair each."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
from fairseq.data import ConcatDataset, FairseqDataset


class Pair(NamedTuple):
    """A pair of a corpus, and how many of its sentences are that pair's."""

    source: str
    target: str
    sentences: int

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


class PairsDataset(FairseqDataset):
    """The data sets of some language pairs, one after another.

    Args:
        datasets: by language pair; what they collate may have other symbols than their sentences, but not more.
    """

    def __init__(self, datasets: Dict[Tuple[str, str], Any]) -> None:
        self.languages = list(datasets)
        self.datasets = list(datasets.values())
        plain = [getattr(dataset, "dataset", dataset) for dataset in self.datasets]  # inside TransformEosLangPair...
        self.pairs = [Pair(*names, len(dataset)) for names, dataset in zip(self.languages, plain)]
        self.src = ConcatDataset([dataset.src for dataset in plain])
        self.src_sizes = np.concatenate([dataset.src_sizes for dataset in plain])
        targets = [dataset.tgt for dataset in plain]
        self.tgt = None if any(target is None for target in targets) else ConcatDataset(targets)
        self.tgt_sizes = None if self.tgt is None else np.concatenate([dataset.tgt_sizes for dataset in plain])
        self.ends = np.cumsum([len(dataset) for dataset in plain])

    def pair_of(self, index: int) -> int:
        return int(np.searchsorted(self.ends, index, side="right"))

    def __getitem__(self, index: int) -> Tuple[int, Dict[str, Any]]:
        pair = self.pair_of(index)
        item = self.datasets[pair][index - (self.ends[pair] - len(self.datasets[pair]))]
        return pair, {**item, "id": index}

    def __len__(self) -> int:
        return len(self.src)

    def collater(self, samples: List[Tuple[int, Dict[str, Any]]]) -> Dict[str, Any]:
        """A batch, and in it the pair that all its sentences are of."""
        if not samples:
            return {}
        (pair,) = {pair for pair, _ in samples}
        return {**self.datasets[pair].collater([item for _, item in samples]), "pair": self.languages[pair]}

    @property
    def sizes(self) -> np.ndarray:
        return self.src_sizes if self.tgt_sizes is None else np.vstack((self.src_sizes, self.tgt_sizes)).T

    def num_tokens(self, index: int) -> int:
        return int(np.max(self.sizes[index]))

    def size(self, index: int) -> Any:
        return self.sizes[index] if self.tgt_sizes is None else tuple(self.sizes[index])

    def batch_by_size(self, indices: Sequence[int], **options: Any) -> List[Any]:
        """Batches of the sentences in this order, of one pair each."""
        pairs = np.searchsorted(self.ends, indices, side="right")
        chosen = [np.asarray(indices)[pairs == pair] for pair in np.unique(pairs)]
        return [batch for ids in chosen for batch in super(PairsDataset, self).batch_by_size(ids, **options)]
