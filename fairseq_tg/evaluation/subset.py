"""A split of a data directory, as the benchmark and the report read it, and what they tell the user meanwhile."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import torch

from fairseq_tg import __version__
from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.systems import Tokens
from fairseq_tg.subwords import guess_subwords


class Subset(NamedTuple):
    """Sentences in token ids, and in words where they are to be read."""

    sources: List[Tokens]
    targets: Optional[List[Tokens]]
    source_text: List[str]
    references: Optional[List[str]]


def read_subset(task: Any, name: str, most: Optional[int] = None) -> Subset:
    """Read the first sentences of a split, all by default."""
    try:
        task.load_dataset(name)
    except FileNotFoundError:
        raise UserError(f"there is no split '{name}' in '{task.cfg.data}': give --subset one that is there") from None
    dataset = task.dataset(name)
    chosen = range(len(dataset) if most is None else min(most, len(dataset)))
    if not len(chosen):
        raise UserError(f"the split '{name}' of '{task.cfg.data}' is empty: give --subset another")
    sources = [dataset.src[i].tolist() for i in chosen]
    source_text = [to_text(task.source_dictionary, tokens) for tokens in sources]
    if dataset.tgt is None:
        return Subset(sources, None, source_text, None)
    targets = [dataset.tgt[i].tolist() for i in chosen]
    return Subset(sources, targets, source_text, [to_text(task.target_dictionary, tokens) for tokens in targets])


def to_text(dictionary: Any, tokens: Tokens) -> str:
    """Words of token ids, with subwords joined."""
    return dictionary.string(torch.tensor(tokens), guess_subwords(dictionary.symbols))


def label_actors(paths: Sequence[str]) -> List[str]:
    """A short name for each tg checkpoint: `tg`, or with its file's name if there are several."""
    if len(paths) == 1:
        return ["tg"]
    names = [Path(path).stem for path in paths]
    if len(set(names)) < len(names):
        names = [Path(path).parent.name for path in paths]
    if len(set(names)) < len(names):
        raise UserError(f"the tg checkpoints have the same name: {', '.join(paths)}; rename them")
    return [f"tg:{name}" for name in names]


def versions() -> Dict[str, str]:
    """Of everything that the numbers may depend on."""
    found = {"fairseq_tg": __version__, "python": platform.python_version()}
    for name in ("torch", "fairseq", "fairseq-fixed", "ctranslate2", "sacrebleu"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> List[str]:
    """Text in columns, numbers to the right."""
    if not rows:
        return []
    table = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in table if i < len(row)) for i in range(len(header))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 or cell.startswith("/ ") else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in table
    ]


class Progress:
    """One line on the terminal that says what is being done."""

    def __call__(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        self("")
