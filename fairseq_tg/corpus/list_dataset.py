"""A data set of source sentences, each with several hypotheses of its k-best list as rows of the target side."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from fairseq.data import ConcatDataset, FairseqDataset, LanguagePairDataset, data_utils
from torch import Tensor

from fairseq_tg.corpus.drawing import UNCOUNTED, Draw
from fairseq_tg.corpus.lists import KBestLists
from fairseq_tg.errors import UserError


class ListDataset(FairseqDataset):
    """What is drawn of a list depends on seed, epoch and sentence alone, so that a training that resumes goes on.

    Args:
        pairs: the train splits of the lists' corpora, which have the sources.
        draw: makes rows of a list.
    """

    def __init__(self, pairs: Sequence[LanguagePairDataset], lists: KBestLists, draw: Draw, seed: int) -> None:
        super().__init__()
        self.pairs = pairs[0]  # as which all are collated
        self.sources = ConcatDataset([of.src for of in pairs])
        self.lists = lists
        self.draw = draw
        self.seed = seed
        # Shared with the processes that load data, which fairseq keeps from one epoch to the next
        self._epoch = torch.ones(1, dtype=torch.long).share_memory_()
        #: S x 2: of the source and of the longest hypothesis, whatever is drawn
        self.sizes = np.stack([self.sources.sizes[lists.sources], lists.longest()], axis=1)
        self._rows = np.minimum(lists.counts(), draw.most)

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.lists)

    def __getitem__(self, index: int) -> Dict[str, Any]:
        kbest = self.lists[index]
        random = np.random.default_rng((self.seed, int(self._epoch), int(index)))
        rows = self.draw(kbest, random)[: self._rows[index]]
        return {
            "id": index,
            "source": self.sources[int(self.lists.sources[index])],
            "hypotheses": [torch.from_numpy(kbest.hypotheses[row.rank].astype(np.int64)) for row in rows],
            "targets": [torch.from_numpy(row.targets.astype(np.int64)) for row in rows],
            "scores": [float(kbest.scores[row.rank]) for row in rows],
        }

    # Batches

    def num_tokens(self, index: int) -> int:
        return int(self.num_tokens_vec(np.array([index]))[0])

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """Of the larger side; all rows count, each as long as the longest hypothesis."""
        return np.maximum(self.sizes[indices, 0], self._rows[indices] * self.sizes[indices, 1])

    def size(self, index: int) -> Tuple[int, int]:
        return int(self.sizes[index, 0]), int(self.sizes[index, 1])

    def ordered_indices(self) -> np.ndarray:
        """By the size of both sides; of equal ones, in a random order, which fairseq seeds."""
        indices = np.random.permutation(len(self))
        indices = indices[np.argsort(self.sizes[indices, 0], kind="mergesort")]
        return indices[np.argsort(self.num_tokens_vec(indices), kind="mergesort")]

    def fit(self, max_tokens: int) -> None:
        """Make every sentence fit in a batch: of lists with very long hypotheses, fewer are taken."""
        alone = self.sizes.max(axis=1)
        if alone.max() > max_tokens:
            raise UserError(
                f"--max-tokens {max_tokens} has no room for a hypothesis of list {int(alone.argmax())}: give at least "
                f"{int(alone.max())}"
            )
        self._rows = np.minimum(self._rows, max_tokens // self.sizes[:, 1])

    def collater(self, samples: List[Dict[str, Any]], pad_to_length: Optional[Any] = None) -> Dict[str, Any]:
        """A batch of B sentences and R rows.

        As fairseq's, with `rows` (R: the sentence of each) among the net's input, the target side R x T, and `scores`
        (R: the objective).
        """
        if not samples:
            return {}
        samples = sorted(samples, key=lambda sample: -len(sample["source"]))  # as recurrent encoders want them
        counts = torch.tensor([len(sample["targets"]) for sample in samples])
        targets = [target for sample in samples for target in sample["targets"]]
        hypotheses = [hypothesis for sample in samples for hypothesis in sample["hypotheses"]]
        target = self._pad(targets, self.pairs.left_pad_target)
        target[target == UNCOUNTED] = self.pairs.src_dict.pad()
        return {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "nsentences": len(samples),
            "ntokens": int(target.ne(self.pairs.src_dict.pad()).sum()),
            "net_input": {
                "src_tokens": self._pad([sample["source"] for sample in samples], self.pairs.left_pad_source),
                "src_lengths": torch.tensor([len(sample["source"]) for sample in samples]),
                "prev_output_tokens": self._pad(hypotheses, self.pairs.left_pad_target, shifted=True),
                "rows": torch.repeat_interleave(torch.arange(len(samples)), counts),
            },
            "target": target,
            # In double precision: fairseq makes half of what is single, with --fp16
            "scores": torch.tensor([s for sample in samples for s in sample["scores"]], dtype=torch.double),
        }

    def _pad(self, tensors: List[Tensor], left: bool, shifted: bool = False) -> Tensor:
        """Sentences as a matrix; shifted, each with its last token, the end of sentence, in front."""
        pairs = self.pairs
        return data_utils.collate_tokens(
            tensors, pairs.src_dict.pad(), pairs.eos, left, shifted, pad_to_multiple=pairs.pad_to_multiple
        )
