"""The oracle corpora of the recipe."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Dict, List, Optional

from fairseq_tg.corpus.directory import CorpusDirectory, hash_data, validation_splits
from fairseq_tg.corpus.engines import OF_BASES
from fairseq_tg.errors import UserError
from fairseq_tg.launch.shards import build_locally
from fairseq_tg.recipe.options import Recipe


def build_corpus(
    recipe: Recipe, task: Any, directory: Path, model: Optional[Path] = None, **changes: Any
) -> Dict[str, Any]:
    """An oracle corpus, built in as many processes as there are workers, unless it is there.

    Args:
        model: a checkpoint with actors to search with, instead of the base.
        changes: options of the build that are not the recipe's.
    """
    selection = recipe.selections()[0]
    settings: Dict[str, Any] = {"beam": recipe.beam, "objective": recipe.objective, "selection": selection}
    flags: List[str] = [recipe.data, *task.task_flags(), "--path", str(model or recipe.base), "--gen-subset", "train"]
    for name, value in {**settings, **changes, "kbest_dir": directory}.items():
        flags += [f"--{name.replace('_', '-')}", str(value)]
    if recipe.engine is not None and not (model and recipe.engine in OF_BASES):
        flags += ["--kbest-engine", recipe.engine]
    flags += ["--kbest-greedy"] if _keeps_greedy(recipe, directory, changes) else []
    flags += ["--batch-size", str(recipe.batch_size), "--kbest-jsonl", "--num-workers", "0"]
    flags += recipe.text.flags(*task.pairs[0])
    manifest = build_locally(flags, str(directory), recipe.workers, threads=1)
    # a training's data is here
    splits = {split for place in (Path(recipe.data), directory) for split in validation_splits(place, task.pairs[0])}
    for split in sorted(splits):
        if hash_data(directory, split, task.pairs) != hash_data(Path(recipe.data), split, task.pairs):
            raise UserError(
                f"'{directory}' was built with another {split} split than that of '{recipe.data}': give another --out, "
                "or remove it"
            )
    return manifest


def _keeps_greedy(recipe: Recipe, directory: Path, changes: Dict[str, Any]) -> bool:
    """Whether greedy translations are kept: for a next round's lists; of a corpus that is there, as it was begun."""
    manifest = CorpusDirectory(str(directory)).manifest
    if manifest is None:
        return (recipe.rounds or 1) > 1 and "kbest_from" not in changes
    return bool(manifest["recipe"].get("greedy"))


def hash_originals(data: Path, task: Any) -> str:
    """Tells the data that a base was trained on from any other, and what trainings are validated on."""
    splits = ("train", *validation_splits(data, task.pairs[0]))
    return "".join(hash_data(data, split, task.pairs) for split in splits)


def corpus_hash(manifest: Dict[str, Any]) -> str:
    """Tells a corpus from any other by the hashes of its files."""
    return hashlib.sha256(json.dumps(manifest["files"], sort_keys=True).encode()).hexdigest()
