"""A split of a data directory, in token ids and in words."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.systems import Tokens
from fairseq_tg.subwords import WordOptions
from fairseq_tg.tasks.damage import naming_damage
from fairseq_tg.text import Words
from fairseq_tg.tokenizers import USUAL, find_tokenizer, load_tokenizer


class Subset(NamedTuple):
    """Sentences in token ids, without language symbols, and in words where they are to be read.

    `words` makes words of a translation.

    `sets` are the splits that they come from, one after another.

    `tokenizer` is sacreBLEU's that words are counted by.
    """

    sources: List[Tokens]
    targets: Optional[List[Tokens]]
    source_text: List[str]
    references: Optional[List[str]]
    words: Words
    sets: Dict[str, range]
    tokenizer: str = USUAL


def read_subsets(
    task: Any, names: Sequence[str], model: Any, text: Optional[WordOptions] = None, *args: Any, **options: Any
) -> Subset:
    """Several splits, one after another: see `read_subset`. Without references of one, there are none of any."""
    if len(set(names)) < len(names):
        raise UserError(f"--subset {','.join(names)} has a name twice: give each once")
    parts = [read_subset(task, name, model, text, *args, **options) for name in names]

    def joined(field: str) -> Any:
        lists = [getattr(part, field) for part in parts]
        return None if any(one is None for one in lists) else [item for one in lists for item in one]

    sets: Dict[str, range] = {}
    for name, part in zip(names, parts):
        start = sum(map(len, sets.values()))
        sets[name] = range(start, start + len(part.sources))
    fields = ("sources", "targets", "source_text", "references")
    found = Subset(**{field: joined(field) for field in fields}, words=parts[0].words, sets=sets)
    return found._replace(tokenizer=_tokenizer(task, text, found.references))


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
    text = text or WordOptions()
    if len(task.pairs) != 1 or None in task.pairs[0]:
        raise UserError("no pair of languages to translate: give --source-lang and --target-lang")
    words = Words.of(task.target_dictionary, text, task.pairs[0][1], task.marks)
    all_sources, all_targets = task.plain_split(name)
    chosen = range(len(all_sources) if most is None else min(most, len(all_sources)))
    if not len(chosen):
        raise UserError(f"the split '{name}' of '{task.cfg.data}' is empty: give --subset another")
    with naming_damage(task.cfg.data):
        sources = [all_sources[i].tolist() for i in chosen]
        targets = None if all_targets is None else [all_targets[i].tolist() for i in chosen]
    for sentences, dictionary in ((sources, task.source_dictionary), (targets, task.target_dictionary)):
        if any(not 0 <= token < len(dictionary) for sentence in sentences or () for token in sentence):
            raise UserError(
                f"'{name}' of '{task.cfg.data}' has tokens that its dictionary has not: binarize the data again"
            )
    sides = zip([sources, targets if scores_targets else None], model.max_positions(), task.empty_sizes)
    for sentences, limit, marks in sides:
        longest = max(map(len, sentences or [[]])) + marks - 1
        if longest > limit:
            raise UserError(
                f"'{name}' has a sentence of {longest} tokens, and the model takes up to {limit}: leave it out of the "
                "data, or give another split"
            )
    source_words = Words.of(task.source_dictionary, text, task.pairs[0][0])
    references = None if targets is None else [words(target, reference=True) for target in targets]
    source_text = [source_words(source) for source in sources]
    tokenizer = _tokenizer(task, text, references)
    return Subset(sources, targets, source_text, references, words, {name: range(len(sources))}, tokenizer)


def _tokenizer(task: Any, text: Optional[WordOptions], references: Optional[Sequence[str]]) -> str:
    """What words are counted by: as it is asked for, else as the language and its text have it."""
    given = text and text.sacrebleu_tokenizer
    known = references or ()
    tokenizer = given or find_tokenizer(task.pairs[0][1], known.__getitem__, len(known))
    load_tokenizer(tokenizer)
    return tokenizer
