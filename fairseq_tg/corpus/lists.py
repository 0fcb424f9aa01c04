"""The k-best lists of a corpus to train on: all hypotheses with their objective, in a few arrays."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Dict, List, Sequence

import numpy as np

from fairseq_tg.corpus.assemble import SPLIT
from fairseq_tg.corpus.blocks import read_sentences
from fairseq_tg.corpus.directory import KBEST, CorpusDirectory, hash_file
from fairseq_tg.corpus.selection import get_selection
from fairseq_tg.errors import UserError


@dataclass(frozen=True)
class KBestList:
    """One sentence's hypotheses, by beam rank."""

    hypotheses: List[np.ndarray]  # each with its end of sentence
    scores: np.ndarray  # the objective

    @property
    def best(self) -> int:
        """The best by the objective; of equal ones, the lowest rank."""
        return int(self.scores.argmax())


@dataclass(frozen=True)
class KBestLists:
    """The lists of S sentences, H hypotheses and N tokens."""

    sources: np.ndarray  # S: where the source is in the corpus' train split
    firsts: np.ndarray  # S + 1: where a sentence's hypotheses begin
    starts: np.ndarray  # H + 1: where a hypothesis' tokens begin
    tokens: np.ndarray  # N
    scores: np.ndarray  # H

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> KBestList:
        first, end = self.firsts[index], self.firsts[index + 1]
        starts = self.starts[first : end + 1]
        hypotheses = [self.tokens[start:stop] for start, stop in pairwise(starts)]
        return KBestList(hypotheses, self.scores[first:end])

    def longest(self) -> np.ndarray:
        """S: the lengths of the longest hypotheses."""
        return np.maximum.reduceat(np.diff(self.starts), self.firsts[:-1])

    def counts(self) -> np.ndarray:
        """S: the numbers of hypotheses."""
        return np.diff(self.firsts)


def check_lists(
    path: str, data: str, languages: Sequence[str], base: str, flag: str = "--kbest-lists"
) -> Dict[str, Any]:
    """The recipe of the corpus in `path`, whose lists are whole, and of this data and this base; else a refusal.

    Args:
        data: the data directory of the training, which has the dictionaries.
        base: the fingerprint of the base that is trained on.
        flag: that the user gave the path with.
    """
    corpus = CorpusDirectory(path)
    manifest = corpus.manifest
    if manifest is None:
        raise UserError(f"{flag} {path}: there is no k-best corpus; build one with --kbest-jsonl")
    if manifest["status"] != "complete":
        raise UserError(f"{flag} {path}: the corpus is not complete, see fairseq-tg corpus status {path}")
    if KBEST not in manifest["files"]:
        raise UserError(f"{flag} {path}: the corpus has no stored k-best lists; build it with --kbest-jsonl")
    recipe = manifest["recipe"]
    if recipe["languages"] != list(languages):
        pairs = "-".join(recipe["languages"]), "-".join(languages)
        raise UserError(f"{flag} {path}: the lists are of {pairs[0]}, and the data is of {pairs[1]}")
    for name in (f"dict.{language}.txt" for language in languages):
        own, other = Path(path) / name, Path(data) / name
        there = own.is_file(), other.is_file()  # neither, with --fixed-dictionary
        if there != (False, False) and (not all(there) or hash_file(own) != hash_file(other)):
            raise UserError(f"{flag} {path}: the lists are of other data, their {name} is not that of '{data}'")
    # Of the base itself, or of a tg model of it
    if base not in manifest.get("bases", recipe["base"]):
        found = ", ".join(f"{name[:16]}..." for name in recipe["base"])
        raise UserError(
            f"{flag} {path}: the lists are of another base, {found} and not {base[:16]}...; build them with the "
            "base that is trained on"
        )
    corpus.check_files(SPLIT)
    corpus.check_files(KBEST)
    return recipe


def read_lists(path: str, eos: int, before: Sequence[int] = (), after: Sequence[int] = ()) -> KBestLists:
    """All lists of a corpus whose sources are in its train split.

    Args:
        before, after: symbols of languages around a hypothesis and its end of sentence.
    """
    manifest = CorpusDirectory(path).manifest
    assert manifest is not None
    adds_gold = get_selection(manifest["recipe"]["selection"]).adds_gold
    row = 0
    sources, firsts, lengths, scores = [], [0], [], []
    pieces: List[np.ndarray] = []
    for sentence in read_sentences(Path(path) / KBEST):
        if sentence.skipped is not None:
            continue  # of which the train split has no source
        if sentence.hypotheses:
            sources.append(row)
            firsts.append(firsts[-1] + len(sentence.hypotheses))
            flat: List[int] = []
            for hypothesis in sentence.hypotheses:
                if hypothesis.objective is None:
                    raise UserError(f"'{path}' has a hypothesis of sentence {sentence.id} without an objective")
                flat += [*before, *hypothesis.tokens, eos, *after]
                lengths.append(len(before) + len(hypothesis.tokens) + 1 + len(after))
                scores.append(hypothesis.objective)
            pieces.append(np.array(flat, dtype=np.int32))
        row += len(sentence.chosen) + adds_gold
    if not sources:
        raise UserError(f"--kbest-lists {path}: there is no list in it")
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return KBestLists(np.array(sources), np.array(firsts), starts, np.concatenate(pieces), np.array(scores))


def join_lists(parts: Sequence[KBestLists], sizes: Sequence[int]) -> KBestLists:
    """The lists of several corpora as one, their train splits, of these sizes, one after the other."""
    offsets = np.cumsum([0, *sizes])
    hypotheses = np.cumsum([0, *(len(part.scores) for part in parts)])
    tokens = np.cumsum([0, *(len(part.tokens) for part in parts)])
    return KBestLists(
        np.concatenate([part.sources + offset for part, offset in zip(parts, offsets)]),
        np.concatenate([[0], *(part.firsts[1:] + offset for part, offset in zip(parts, hypotheses))]),
        np.concatenate([[0], *(part.starts[1:] + offset for part, offset in zip(parts, tokens))]),
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.scores for part in parts]),
    )
