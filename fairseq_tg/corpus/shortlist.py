"""Which target tokens a source token brings: those seen with it most often in a base's k-best lists.

A sentence is then translated with what its tokens bring together. Its end of sentence is among them, and has been seen
with everything: what that brings are the most frequent tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Tuple

import numpy as np
from fairseq.data.data_utils import load_indexed_dataset

from fairseq_tg.compiled.engine import Shortlist
from fairseq_tg.compiled.options import Compilation
from fairseq_tg.corpus.assemble import SPLIT
from fairseq_tg.corpus.directory import KBEST
from fairseq_tg.corpus.lists import KBestLists, check_lists, read_lists
from fairseq_tg.errors import UserError

#: Pairs of tokens that are counted at a time
TOGETHER = 1 << 24
#: And kept; beyond it those that were seen least are forgotten
MOST_PAIRS = 1 << 26


def make_shortlist(task: Any, options: Compilation, base: str) -> Shortlist:
    """Of the lists that the options name, a corpus' kbest.jsonl.gz.

    Args:
        task: has the dictionaries of the model.
        base: the fingerprint of the model's base, whose lists they must be.
    """
    path = Path(options.shortlist or "")
    if path.name != KBEST:
        raise UserError(f"--shortlist {path}: give the {KBEST} of a corpus that was built with --kbest-jsonl")
    if task.marks:
        raise UserError("--shortlist is for a model of one pair of languages: leave it out")
    languages, dictionary = (task.cfg.source_lang, task.cfg.target_lang), task.target_dictionary
    check_lists(str(path.parent), task.cfg.data, languages, base, flag="--shortlist")
    lists = read_lists(str(path.parent), dictionary.eos())
    split = f"{SPLIT}.{'-'.join(languages)}.{languages[0]}"  # which has the sources
    sources = load_indexed_dataset(str(path.parent / split), task.source_dictionary)
    keys, counts = count_pairs(lists, sources, len(dictionary))
    return most_seen(
        *(keys, counts, len(task.source_dictionary), len(dictionary), dictionary.eos()),
        *(options.shortlist_each, options.shortlist_frequent),
    )


def count_pairs(lists: KBestLists, sources: Any, vocabulary: int) -> Tuple[np.ndarray, np.ndarray]:
    """How often a source token and a target token were seen together, as sorted source * vocabulary + target."""
    keys, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    waiting: List[Tuple[np.ndarray, np.ndarray]] = []
    size = 0
    for index in range(len(lists)):
        source = np.unique(np.asarray(sources[lists.sources[index]])).astype(np.int64)
        first, end = lists.firsts[index], lists.firsts[index + 1]
        target, times = np.unique(lists.tokens[lists.starts[first] : lists.starts[end]], return_counts=True)
        waiting.append(((source[:, None] * vocabulary + target).ravel(), np.tile(times, len(source))))
        size += len(waiting[-1][0])
        if size >= TOGETHER or index + 1 == len(lists):
            keys, counts = _added([(keys, counts), *waiting])
            waiting, size = [], 0
    return keys, counts


def _added(parts: List[Tuple[np.ndarray, np.ndarray]]) -> Tuple[np.ndarray, np.ndarray]:
    keys, places = np.unique(np.concatenate([keys for keys, _ in parts]), return_inverse=True)
    weights = np.concatenate([counts for _, counts in parts])
    counts = np.bincount(places, weights=weights, minlength=len(keys)).astype(np.int64)
    if len(keys) > MOST_PAIRS:
        kept = counts > np.partition(counts, len(counts) - MOST_PAIRS)[len(counts) - MOST_PAIRS]
        keys, counts = keys[kept], counts[kept]
    return keys, counts


def most_seen(
    keys: np.ndarray, counts: np.ndarray, source_vocabulary: int, vocabulary: int, eos: int, each: int, frequent: int
) -> Shortlist:
    """The tokens that every source token brings, one source token after another, and where each begins.

    Of equally many the lower numbers. The end of sentence brings `frequent` tokens, and the others `each`, which are
    not among those.
    """
    order = np.lexsort((keys % vocabulary, -counts, keys // vocabulary))
    sources, targets = keys[order] // vocabulary, keys[order] % vocabulary
    everywhere = targets[sources == eos][:frequent]
    kept = (sources == eos) | ~np.isin(targets, everywhere)
    sources, targets = sources[kept], targets[kept]
    first = np.searchsorted(sources, np.arange(source_vocabulary))
    rank = np.arange(len(sources)) - first[sources]
    kept = rank < np.where(sources == eos, frequent, each)
    sources, targets = sources[kept], targets[kept]
    tokens = targets[np.lexsort((targets, sources))]
    starts = np.searchsorted(sources, np.arange(source_vocabulary + 1))
    return Shortlist(starts.astype(np.int32), tokens.astype(np.int32))
