"""One build of a corpus: which sentences in which batches, what is known of them already, and how it goes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
from tqdm import tqdm

from fairseq_tg.corpus.assemble import assemble
from fairseq_tg.corpus.blocks import Sentence, Tally, read_sentences
from fairseq_tg.corpus.directory import KBEST, CorpusDirectory, describe_difference
from fairseq_tg.errors import UserError, printable

#: What a stored k-best list depends on; a build from stored lists may differ in all else.
SEARCH_SETTINGS = (
    *("base", "actors", "model_overrides", "fp16", "data_hash", "subset", "languages", "sentences", "marks"),
    *("beam", "search", "engine", "text", "source", "dropout", "limits"),
)
#: In what the model may differ from the one whose lists are refreshed
MODEL_SETTINGS = ("base", "actors", "model_overrides", "engine")


def parse_shard(text: Optional[str]) -> Tuple[int, int]:
    """`I/N`, counted from 0; without it, the place in a Slurm array, if there is one, or the only shard."""
    if text is None:
        if "SLURM_ARRAY_TASK_ID" not in os.environ:
            return 0, 1
        names = ("ID", "MIN", "MAX", "STEP", "COUNT")
        task, first, last, step, count = (int(os.environ.get(f"SLURM_ARRAY_TASK_{name}", 1)) for name in names)
        if first > 1 or count == 1 or last != first + step * (count - 1):
            # a part of an array, sent again: which shards the others are is not known
            raise UserError(
                f"this Slurm array ({first} to {last}, {count} tasks) is no whole set: give --kbest-shard I/N"
            )
        return (task - first) // step, count
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise UserError(f"--kbest-shard {text}: give I/N with I from 0 to N-1, as in 0/4, 1/4, 2/4, 3/4")
    return int(match[1]), int(match[2])


class Build:
    """A build, or the share of one that a shard has.

    The sentences are divided into blocks of consecutive ids; of N shards each has every N-th block. Batches are made
    inside blocks. So neither an interruption nor the number of shards changes what is translated together with what.
    """

    def __init__(self, directory: CorpusDirectory, recipe: Dict[str, Any], shard: Tuple[int, int]) -> None:
        self.directory = directory
        self.recipe = recipe
        self.shard, self.shards = shard
        self.tally = Tally()
        self._pending: Dict[int, Dict[int, Sentence]] = {}  # block -> id -> sentence
        self._left: List[int] = []  # blocks with sentences still to come, in order
        self._reused: Optional[Iterator[Sentence]] = None
        self._asked: List[int] = []
        self.refreshes = False  # the lists that are reused are an earlier model's
        self._known: Tuple[int, Dict[int, Sentence]] = (-1, {})  # the block read last
        self._lengths = np.zeros(0)
        self._bar: Optional[tqdm] = None

    def reuse(self, path: str, refreshes: bool = False) -> None:
        """Take k-best lists from a complete corpus instead of decoding; if it is to be refreshed, some of them."""
        source = CorpusDirectory(path)
        manifest = source.manifest
        if manifest is None or not (source.path / KBEST).exists():
            raise UserError(f"'{path}' has no stored k-best lists: build it with --kbest-jsonl")
        self.refreshes = refreshes
        names = [name for name in SEARCH_SETTINGS if not (refreshes and name in MODEL_SETTINGS)]
        old, new = ({name: r.get(name) for name in names} for r in (manifest["recipe"], self.recipe))
        difference = describe_difference(old, new)
        if difference:
            raise UserError(f"the k-best lists in '{path}' were made with other settings: {difference}")
        source.check_files()
        self._reused = read_sentences(source.path / KBEST)

    # Planning

    def plan(self, lengths: np.ndarray, skip: Dict[int, str], make_batches: Callable[[List[int]], Sequence]) -> List:
        """The batches of this shard: lists of ids, made by `make_batches` from ids that are ordered by length.

        Args:
            lengths: of the source sentences, to order them by.
            skip: ids that are not translated, with the reason.
        """
        self._lengths = lengths
        batches: List = []
        size, count = self.recipe["block_size"], self.recipe["sentences"]
        mine = range(self.shard, -(-count // size), self.shards)
        ids_of = {number: range(number * size, min((number + 1) * size, count)) for number in mine}
        total = sum(len(ids) for ids in ids_of.values())
        self._bar = tqdm(
            total=total, unit="sent", desc=f"k-best {self.recipe['objective']}", file=sys.stderr, smoothing=0.05
        )
        for number, ids in ids_of.items():
            self._pending[number] = {i: Sentence(id=i, skipped=skip[i]) for i in ids if i in skip}
            self._bar.update(len(self._pending[number]))
            wanted = [i for i in ids if i not in skip]
            wanted.sort(key=lambda i: (lengths[i], i))
            if wanted:
                batches.extend(make_batches(wanted))
                self._left.append(number)
            else:
                self._commit(number)
        return batches

    # Running

    def known(self, sentence_id: int) -> Tuple[Optional[Sentence], bool]:
        """What is stored of a sentence, and whether that is this build's own (else the list is to be scored anew)."""
        number = sentence_id // self.recipe["block_size"]
        if number in self.directory.blocks:
            if self._known[0] != number:
                self._known = number, {s.id: s for s in self.directory.blocks.read(number)}
            return self._known[1].get(sentence_id), True
        if self._reused is not None:
            if self._known[0] != number:
                self._known = number, self._read_reused(number)
            sentence = self._known[1].get(sentence_id)
            return (sentence if sentence is not None and sentence.hypotheses else None), False
        return None, False

    def left_in_block(self, sentence_id: int) -> List[int]:
        """The sentences of a sentence's block that are to be searched, in the order they are asked for."""
        if self._reused is not None:
            return self._asked
        size = self.recipe["block_size"]
        done = self._pending[sentence_id // size]
        first = sentence_id - sentence_id % size
        left = [i for i in range(first, min(first + size, self.recipe["sentences"])) if i not in done]
        return sorted(left, key=lambda i: (self._lengths[i], i))

    def ask(self, sentence_ids: List[int]) -> None:
        """Say which sentences are searched next, where others have their lists already."""
        self._asked = sentence_ids

    def next_block(self, sentence_id: int) -> List[int]:
        """The sentences of the block after a sentence's that have no result yet, if they have to be searched for."""
        number = sentence_id // self.recipe["block_size"]
        after = next((n for n in self._left if n > number), None)
        if after is None or after in self.directory.blocks or self._reused is not None:
            return []
        return self.left_in_block(after * self.recipe["block_size"])

    def _read_reused(self, number: int) -> Dict[int, Sentence]:
        assert self._reused is not None
        size, sentences = self.recipe["block_size"], {}
        for sentence in self._reused:  # in the order of ids, as blocks are asked for
            if sentence.id // size == number:
                sentences[sentence.id] = sentence
            if sentence.id % size == size - 1 and sentence.id // size >= number:
                break
        return sentences

    def add(self, sentence: Sentence) -> None:
        """Take a sentence's result; commits its block with the last one, and the corpus with the last block."""
        number = sentence.id // self.recipe["block_size"]
        pending = self._pending[number]
        pending[sentence.id] = sentence
        size = self.recipe["block_size"]
        self._show(sentence)
        if len(pending) == min(size, self.recipe["sentences"] - number * size):
            self._commit(number)
            self._left.remove(number)
            if not self._left:
                self.finish()

    def _commit(self, number: int) -> None:
        sentences = self._pending.pop(number)
        if number not in self.directory.blocks:
            self.directory.blocks.write(number, [sentences[i] for i in sorted(sentences)])

    def _show(self, sentence: Sentence) -> None:
        assert self._bar is not None
        self.tally.add(sentence)
        means = self.tally.means()
        self._bar.set_postfix_str(
            f"rank 1 {means['rank 1']:.2f}, chosen {means['chosen']:.2f}, not rank 1 {means['oracle not rank 1']:.0%}",
            refresh=False,
        )
        self._bar.update()

    def finish(self) -> None:
        """Make the corpus of the blocks, if they are all there is."""
        assert self._bar is not None
        self._bar.close()
        if self.shards == 1:
            print(describe(self.directory.path, assemble(self.directory)))
        else:
            place = f"{self.shard}/{self.shards}"
            print(f"shard {place} is done: when all are, fairseq-tg corpus merge {self.directory.path}")
        self.directory.unlock()


def describe(path: Path, manifest: Dict[str, Any]) -> str:
    """A complete corpus in a line."""
    counts, means = manifest["counts"], manifest["means"]
    skipped = ", ".join(f"{count} {reason}" for reason, count in sorted(counts["skipped"].items())) or "none"
    kept = f"{counts['kept']:,} lists of an earlier model; " if counts.get("kept") else ""
    return printable(
        f"{path}: complete, {counts['pairs']:,} pairs of {counts['source_sentences']:,} source sentences; "
        f"{kept}skipped: {skipped}; mean {manifest['recipe']['objective']} {means['rank 1']:.2f} at rank 1, "
        f"{means['chosen']:.2f} chosen, another than rank 1 in {means['oracle not rank 1']:.1%}"
    )
