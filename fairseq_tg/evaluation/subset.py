"""A split of a data directory, in token ids and in words."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.systems import Tokens
from fairseq_tg.subwords import WordOptions
from fairseq_tg.text import Words


class Subset(NamedTuple):
    """Sentences in token ids, and in words where they are to be read; how a translation is made words.

    `sets` are the splits that they come from, one after another.
    """

    sources: List[Tokens]
    targets: Optional[List[Tokens]]
    source_text: List[str]
    references: Optional[List[str]]
    words: Words
    sets: Dict[str, range]


def read_subsets(task: Any, names: Sequence[str], *args: Any, **options: Any) -> Subset:
    """Several splits, one after another: see `read_subset`. Without references of one, there are none of any."""
    parts = [read_subset(task, name, *args, **options) for name in names]

    def joined(field: str) -> Any:
        lists = [getattr(part, field) for part in parts]
        return None if any(one is None for one in lists) else [item for one in lists for item in one]

    sets: Dict[str, range] = {}
    for name, part in zip(names, parts):
        start = sum(map(len, sets.values()))
        sets[name] = range(start, start + len(part.sources))
    fields = ("sources", "targets", "source_text", "references")
    return Subset(**{field: joined(field) for field in fields}, words=parts[0].words, sets=sets)


def read_subset(
    task: Any,
    name: str,
    model: Any,
    text: Optional[WordOptions] = None,
    most: Optional[int] = None,
    scores_targets: bool = False,
) -> Subset:
    """Read the first sentences of a split, all by default; refuses one with sentences that are too long.

    Args:
        model: what translates the sources and, with `scores_targets`, is given the targets.
    """
    if task.marks:
        raise UserError("report, bench and run do not know language symbols yet: score with fairseq-generate")
    text = text or WordOptions()
    words = Words.of(task.target_dictionary, text, task.cfg.target_lang)
    task.load_dataset(name)
    dataset = task.dataset(name)
    chosen = range(len(dataset) if most is None else min(most, len(dataset)))
    if not len(chosen):
        raise UserError(f"the split '{name}' of '{task.cfg.data}' is empty: give --subset another")
    sources = [dataset.src[i].tolist() for i in chosen]
    targets = None if dataset.tgt is None else [dataset.tgt[i].tolist() for i in chosen]
    for sentences, limit in zip([sources, targets if scores_targets else None], model.max_positions()):
        longest = max(map(len, sentences or [[]]))
        if longest > limit:
            raise UserError(
                f"'{name}' has a sentence of {longest} tokens, and the model takes up to {limit}: give --subset another"
            )
    source_words = Words.of(task.source_dictionary, text, task.cfg.source_lang)
    references = None if targets is None else [words(target, reference=True) for target in targets]
    source_text = [source_words(source) for source in sources]
    return Subset(sources, targets, source_text, references, words, {name: range(len(sources))})
