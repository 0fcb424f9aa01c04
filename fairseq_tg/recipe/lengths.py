"""The objective that puts the length of translations right.

Sentence BLEU chooses short hypotheses and actors learn that: good for a base that is too long, bad for one that is too
short, which pays in BLEU's brevity penalty. `sbleu+1` and `sbleu+2` choose longer ones (docs/results.md).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Optional

from fairseq_tg.corpus.directory import validation_splits
from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.batches import translate_all
from fairseq_tg.evaluation.shares import bleu_statistics, corpus_bleu
from fairseq_tg.evaluation.subset import Subset, read_subsets
from fairseq_tg.evaluation.systems import System, build
from fairseq_tg.evaluation.tables import Progress
from fairseq_tg.recipe.options import AUTO, R, Recipe
from fairseq_tg.tokenizers import FLAG, USUAL, load_tokenizer

#: What is chosen by below a length to the references, and above the last
BETWEEN, ABOVE = "sbleu+1", "sbleu"
SHORT_TO_LONG = ((0.99, "sbleu+2"), (1.01, BETWEEN))
SENTENCES = 2000  # of a validation set that are looked at


def choose_objective(ratio: float) -> str:
    """By the length of the base's greedy translations, to the references."""
    return next((objective for most, objective in SHORT_TO_LONG if ratio < most), ABOVE)


def with_tokenizer(recipe: R, model: Any, task: Any) -> R:
    """The recipe with what words are counted by in all its stages, by the validation set, unless it is given.

    Several pairs have that each for itself, stage by stage.
    """
    given = recipe.text.sacrebleu_tokenizer
    if given is not None:
        load_tokenizer(given)
        return recipe
    if len(task.pairs) > 1:
        return recipe
    splits = validation_splits(Path(recipe.data), task.pairs[0])
    found = read_subsets(task, splits, model, recipe.text).tokenizer
    if found != USUAL:
        print(f"words are counted by sacreBLEU's {found}: {task.pairs[0][1]} is written without spaces ({FLAG})")
    return replace(recipe, text=replace(recipe.text, sacrebleu_tokenizer=found))


def with_objective(recipe: R, model: Any, task: Any) -> R:
    """The recipe with the objective in the place of `auto` that is right for a model: the same whenever it is asked."""
    if recipe.objective != AUTO:
        return recipe
    if len(task.pairs) > 1:
        print(f"objective: {BETWEEN}, for several pairs of languages")
        return replace(recipe, objective=BETWEEN)
    found = validate(recipe, model, task)
    chosen = choose_objective(found.length)
    of = ", ".join(validation_splits(Path(recipe.data), task.pairs[0]))
    print(f"objective: {chosen}, as greedy translations of {of} have {found.length:.3f} of the references' length")
    return replace(recipe, objective=chosen)


class Validation(NamedTuple):
    """Of translations of validation data."""

    bleu: float
    length: float  # to the references, in words as BLEU counts them


def validate(recipe: Recipe, model: Any, task: Any, checkpoint: Optional[str] = None, beam: int = 1) -> Validation:
    """Translate validation data with a model, or with that of a checkpoint."""
    splits = validation_splits(Path(recipe.data), task.pairs[0])
    subset = read_subsets(task, splits, model, recipe.text, SENTENCES)
    if subset.references is None:
        raise UserError(f"a validation set of '{recipe.data}' has no references: actors are chosen by them")
    path = checkpoint or recipe.base
    system = System("", "fast", path, recipe.data, beam, threads=recipe.workers, languages=recipe.languages)
    say = Progress()
    function = build(system, None if checkpoint else lambda *_: (model, task))
    tokens = translate_all(function, subset.sources, say, "translations of valid")
    say.end()
    words = [subset.words(sentence) for sentence in tokens]
    sums = bleu_statistics(words, subset.references, subset.tokenizer).sum(axis=0)
    return Validation(corpus_bleu(sums), float(sums[0] / max(sums[1], 1)))


def check_words(subset: Subset) -> None:
    """Refuse references that are one word each to BLEU, which could tell no translation from another."""
    if not subset.references or subset.targets is None:
        return
    words = bleu_statistics(subset.references, subset.references, subset.tokenizer)[:, 1].mean()
    tokens = sum(map(len, subset.targets)) / len(subset.targets)
    if words < 2 and tokens > 4 * words:
        raise UserError(
            f"the references of {', '.join(subset.sets)} have {words:.1f} words each, as {subset.tokenizer} counts "
            f"them, of {tokens:.0f} tokens: where words are not divided, give {FLAG} char, or zh for Chinese"
        )
