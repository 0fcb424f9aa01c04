"""Source sentences changed at random: segmented otherwise, words left out or swapped; once, or anew in every epoch.

A base knows its training sentences by heart, in the one segmentation that it saw. Changed, they are as uncertain to it
as text that it has not seen, and so are the k-best lists and the states that an actor learns from.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import torch
from fairseq.data import BaseWrapperDataset
from omegaconf import DictConfig
from torch import Tensor

from fairseq_tg.corpus.directory import hash_file
from fairseq_tg.errors import UserError
from fairseq_tg.segmentations import Segmentations, Splits, Word
from fairseq_tg.subwords import begins_word, guess_subwords


def asks_for_changes(options: Any) -> bool:
    """Whether a task's options ask for changed sources."""
    return options.source_sampling is not None or options.source_splitting != 0 or options.source_noise != 0


def source_changes(task: Any, command: DictConfig) -> SourceChanges:
    """The changes that a command asks for."""
    if task.marks:
        raise UserError("sources are changed without their language symbols, which this task has: leave that out")
    model = command.bpe.get("sentencepiece_model") if command.bpe else None
    options = task.cfg.source_sampling, task.cfg.source_noise, model, command.common.seed, task.cfg.source_splitting
    return SourceChanges(task.source_dictionary, *options)


class SourceChanges:
    """Changes sentences, each by the seed, the epoch and its own number alone, whatever was changed before it.

    Args:
        dictionary: fairseq's, of the source.
        sampling: segment words otherwise, with this power of the probabilities; None leaves them as they are.
        noise: the probability with which a word is left out, and that with which it is swapped with the next.
        model: SentencePiece's file, to sample with.
        splitting: the mean probability with which a subword is split, in half of the sentences.
    """

    def __init__(
        self,
        dictionary: Any,
        sampling: Optional[float],
        noise: float,
        model: Optional[str],
        seed: int,
        splitting: float = 0.0,
    ) -> None:
        if sampling is not None and not 0 < sampling < float("inf"):
            raise UserError(f"--source-sampling {sampling}: give a number above 0, as 0.5; less changes more")
        if not 0 <= noise < 1:
            raise UserError(f"--source-noise {noise}: give a probability, as 0.1")
        if not 0 <= splitting <= 0.5:
            raise UserError(f"--source-splitting {splitting}: give a probability of at most 0.5, as 0.1")
        if sampling is not None and not model:
            raise UserError(
                "--source-sampling needs the model that the data was made with: "
                "give --bpe sentencepiece --sentencepiece-model FILE"
            )
        self._eos, self._symbols = dictionary.eos(), dictionary.symbols
        self._subwords = guess_subwords(dictionary.symbols)
        self._segmentations: Optional[Segmentations] = None
        self._noise = noise
        self._splitting = splitting
        self._splits = Splits(dictionary.symbols, self._subwords) if splitting else None
        self._seed = seed
        #: What a corpus depends on
        self.record: Dict[str, Any] = {"sampling": sampling, "noise": noise, "seed": seed}
        if sampling is not None and model is not None:
            self._segmentations = Segmentations(model, dictionary.symbols, sampling)
            self.record["model"] = hash_file(Path(model))
        if splitting:
            self.record["splitting"] = splitting
        self.longest = float("inf")  # a sentence that would become longer stays as it is

    def limit(self, max_positions: Any) -> None:
        """Keep sentences within what fairseq says of a model: a number, or one for each side."""
        source = max_positions[0] if isinstance(max_positions, (tuple, list)) else max_positions
        self.longest = float("inf") if source is None else source

    def apply(self, tokens: Tensor, number: int, epoch: int = 0) -> Tensor:
        """A sentence, changed.

        Args:
            tokens: its ids, with or without an end of sentence.
            number: of the sentence in its data set.
        """
        ids: List[int] = tokens.tolist()
        end = ids[-1:] if ids[-1:] == [self._eos] else []
        words = self._words(ids[: len(ids) - len(end)])
        chance = random.Random(f"{self._seed} {epoch} {number}")
        if self._noise:
            words = disturb(words, self._noise, chance)
        if self._segmentations is not None:
            words = [self._segmentations.sample(word, chance) for word in words]
        if self._splits is not None and chance.random() < 0.5:
            rate = 2 * self._splitting * chance.random()
            words = [self._splits.sample(word, rate, chance) for word in words]
        changed = [token for word in words for token in word] + end
        return tokens.new_tensor(changed) if len(changed) <= max(self.longest, len(ids)) else tokens

    def _words(self, ids: Sequence[int]) -> List[Word]:
        words: List[List[int]] = []
        before = ""
        for token in ids:
            symbol = self._symbols[token]
            if not words or begins_word(self._subwords, before, symbol):
                words.append([])
            words[-1].append(token)
            before = symbol
        return [tuple(word) for word in words]


def disturb(words: List[Word], probability: float, chance: random.Random) -> List[Word]:
    """Leave words out, but not all, and swap neighbours."""
    kept = [word for word in words if chance.random() >= probability] or words[:1]
    place = 0
    while place + 1 < len(kept):
        if chance.random() < probability:
            kept[place], kept[place + 1] = kept[place + 1], kept[place]
            place += 1  # no word goes further than one place
        place += 1
    return kept


class ChangedSources(BaseWrapperDataset):
    """The source sentences of a data set, changed once and for all. Sizes are of the sentences as they were."""

    def __init__(self, sources: Any, changes: SourceChanges) -> None:
        super().__init__(sources)
        self.changes = changes

    def __getitem__(self, index: int) -> Tensor:
        return self.changes.apply(self.dataset[index], int(index))


class ChangingSources(BaseWrapperDataset):
    """A data set of examples whose sources are changed anew in every epoch; their targets stay.

    Batches are made by the sizes of the sentences as they were: they are the same in every epoch, and a training that
    was interrupted goes on with the same.
    """

    def __init__(self, dataset: Any, changes: SourceChanges) -> None:
        super().__init__(dataset)
        self.changes = changes
        # The processes that load data live through all epochs, and have the data set as it was in the first
        self._epoch = torch.ones(1, dtype=torch.long).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._epoch[0] = epoch

    def __getitem__(self, index: int) -> Dict[str, Any]:
        example = dict(self.dataset[index])
        example["source"] = self.changes.apply(example["source"], int(index), int(self._epoch))
        return example
