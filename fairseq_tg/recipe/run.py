"""The whole recipe for a base that the user has: oracle corpus, actor, report."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator, List, Sequence, Tuple

import numpy as np
from fairseq.utils import resolve_max_positions

from fairseq_tg.actors import ACTORS
from fairseq_tg.corpus.directory import hash_data, hash_file, split_files, validation_splits, with_contents
from fairseq_tg.corpus.selection import get_selection
from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.options import ReportOptions
from fairseq_tg.evaluation.report import make_report
from fairseq_tg.evaluation.subset import read_subsets
from fairseq_tg.files import make_directory, refuse_links
from fairseq_tg.languages import LanguageOptions
from fairseq_tg.loading.splits import load_side
from fairseq_tg.models.base import ActorModel, has_places, no_place
from fairseq_tg.models.families import FAMILIES
from fairseq_tg.models.record import Base, read_base
from fairseq_tg.names import LIST_CRITERIA
from fairseq_tg.objectives import get_objective
from fairseq_tg.recipe.lengths import check_words, validate, with_objective, with_tokenizer
from fairseq_tg.recipe.options import AUTO, ROUNDS, TRIED, R, Recipe
from fairseq_tg.recipe.rounds import train_in_rounds
from fairseq_tg.recipe.stages import Stage
from fairseq_tg.recipe.training import check_hypotheses, source_flags
from fairseq_tg.segmentations import Segmentations
from fairseq_tg.tasks.loading import load_model
from fairseq_tg.tokenizers import USUAL

#: Of the training sentences, that may be left out because no batch has room for them
LEFT_OUT = 0.1


def run(recipe: Recipe) -> List[Path]:
    """Do what is not done yet, and give the report's directory, or those of the reports on each of the pairs."""
    recipe, record, model, task = open_base(recipe)
    subsets, out = recipe.subset.split(","), Path(recipe.out)
    check(recipe, model, task, subsets)
    recipe = with_tokenizer(recipe, model, task)
    check_objective(recipe)
    by_length = recipe.objective == AUTO
    recipe = with_objective(recipe, model, task)
    if task.marks and recipe.selection == AUTO:
        print(f"selection: {TRIED[0]}; what references add to a model of many languages was not tried")
        recipe = replace(recipe, selection=TRIED[0])
    refined = recipe.refined()
    if refined is not None and not knows_lists(task, refined.criterion):
        print(f"no second training: {refined.criterion} does not know these language symbols")
        recipe = replace(recipe, refinement=replace(recipe.refinement, refine="none"))
    if len(task.pairs) == 1:
        reports = {out / "report": (recipe.languages, task)}
    else:
        of_pairs = [replace(recipe.languages, lang_pairs="-".join(pair)) for pair in task.pairs]
        reports = {
            out / "report" / str(one.lang_pairs): (one, load_model(recipe.base, recipe.data, languages=one)[1])
            for one in of_pairs
        }
    for _, of_pair in reports.values():
        validation = validation_splits(Path(recipe.data), of_pair.pairs[0])
        for names in (subsets, validation):  # as the report will, and the training
            check_words(read_subsets(of_pair, names, model, recipe.text, scores_targets=True))
    make_directory(out)

    def check_reports() -> None:
        """A report on something else, which is there already, would be refused after hours of further rounds."""
        for directory, (_, of_pair) in reports.items():
            _report_stage(recipe, of_pair.pairs, record, "", directory).is_done()

    checkpoint = train_in_rounds(recipe, record, task, out, by_length, check_reports)
    print(f"the model with its actors: {checkpoint}")
    for directory, (languages, of_pair) in reports.items():
        _say_gain(replace(recipe, languages=languages), model, of_pair, checkpoint)
        print(f"== 3 of 3: the report on {recipe.subset}, {directory}")
        stage = _report_stage(recipe, of_pair.pairs, record, hash_file(checkpoint), directory)
        if not stage.is_done():
            with stage.doing(["report.html", "report.json", "report.txt"]):
                _report(recipe, languages, checkpoint, directory)
    return list(reports)


def _say_gain(recipe: Recipe, model: Any, task: Any, checkpoint: Path) -> None:
    """Say what the actors gained on validation data, and what to try if that is nothing."""
    before = validate(recipe, model, task).bleu
    after = validate(recipe, model, task, str(checkpoint)).bleu
    pair = f" of {'-'.join(task.pairs[0])}" if task.marks else ""
    print(f"greedy BLEU on the validation set{pair}: {before:.2f} by the base, {after:.2f} with actors")
    if after < before:
        print("so the actors make it worse: try a lower --lr, more training text, or --beam of another width")


def _report_stage(recipe: Recipe, pairs: Any, record: Base, actor: str, directory: Path) -> Stage:
    settings = {"base": record.fingerprint, "actor": actor, "subset": recipe.subset, "k": recipe.beam}
    hashes = {f"data {name}": hash_data(Path(recipe.data), name, pairs) for name in recipe.subset.split(",")}
    return Stage(directory, {**settings, **hashes, **with_contents(recipe.text.given())}, follows=["actor"])


def _report(recipe: Recipe, languages: LanguageOptions, checkpoint: Path, directory: Path) -> None:
    options = ReportOptions(
        data=recipe.data,
        base=recipe.base,
        actor=(str(checkpoint),),
        out=str(directory),
        subset=recipe.subset,
        oracle_beam=recipe.beam,
        threads=recipe.workers,
        languages=languages,
        text=recipe.text,
    )
    make_report(options)


def open_base(recipe: R) -> Tuple[R, Base, Any, Any]:
    """The recipe with what was not given as it is best for a base, the base's record, its model and a task for it.

    Refuses what there are no actors for, or has some already.
    """
    paths = {name: getattr(recipe, name) for name in ("data", "base", "out")}
    for name, path in paths.items():
        if os.pathsep in path:
            raise UserError(f"--{name} {path}: to fairseq a '{os.pathsep}' is between two paths; give one without")
    # To fairseq's commands, what begins with a dash is an option
    dashed = {name: os.path.abspath(path) for name, path in paths.items() if path.startswith("-")}
    recipe = replace(recipe, **dashed)
    out = Path(recipe.out)
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {recipe.out} is a file: give a directory")
    if out.is_dir() and Path(recipe.data).is_dir() and out.samefile(recipe.data):
        raise UserError(f"--out {recipe.out} is the data directory: give another")
    refuse_links(out)
    record, _ = read_base(recipe.base)
    if record.family not in FAMILIES:
        raise UserError(f"'{recipe.base}' is a {record.family} model: there are actors for {', '.join(FAMILIES)}")
    model, task = load_model(recipe.base, recipe.data, languages=recipe.languages)
    if isinstance(model, ActorModel):
        raise UserError(f"--base {recipe.base} has actors already: give the checkpoint of a model without")
    if not has_places(record.family, model):
        raise no_place(record.family)
    given = recipe.languages
    if task.marks and not (given.source_lang or given.lang_pairs or task.cfg.source_lang):
        raise UserError("a model of many languages: give --source-lang and --target-lang, or --lang-pairs")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    rounds = recipe.rounds or (1 if task.marks else ROUNDS)
    return replace(recipe, rounds=rounds, training=recipe.training.of_size(parameters)), record, model, task


def knows_lists(task: Any, criterion: str) -> bool:
    """Whether a criterion can learn from the lists of this task, with its language symbols."""
    one_pair = len(task.pairs) == 1 and task.around_target() is not None
    return not task.marks or (one_pair and criterion != "actor_preference")


def check_objective(recipe: Recipe) -> None:
    """Refuse one that cannot be had, or not of words as they are counted."""
    if recipe.objective != AUTO:
        get_objective(recipe.objective, recipe.text.sacrebleu_tokenizer or USUAL)


def check(recipe: Recipe, model: Any, task: Any, splits: Sequence[str] = ()) -> None:
    """What a stage would stumble over after hours of others is found before them."""
    for selection in recipe.selections():
        get_selection(selection)
    ACTORS[recipe.training.actor]
    check_hypotheses(recipe.training, recipe.beam)
    refined = recipe.refined()
    if refined is not None and recipe.training.criterion in LIST_CRITERIA:
        raise UserError(
            f"--refine {refined.criterion} is a training on whole lists, and so is --criterion "
            f"{recipe.training.criterion}: leave one out"
        )
    if refined is not None:
        check_hypotheses(refined, recipe.beam, "--refine-hypotheses")
    if source_flags(recipe.training, recipe.text) and task.marks:
        raise UserError("sources are changed without their language symbols, which this task has: leave that out")
    if recipe.training.source_sampling is not None:
        symbols = task.source_dictionary.symbols
        Segmentations(recipe.text.sentencepiece_model or "", symbols, recipe.training.source_sampling)
    if recipe.training.criterion in LIST_CRITERIA and not knows_lists(task, recipe.training.criterion):
        raise UserError(f"--criterion {recipe.training.criterion} does not know these language symbols: leave it out")
    if len(task.pairs) > 1 and task.frame(task.pairs[0][1]).first != task.target_dictionary.eos():
        raise UserError("this model's language symbols take another's place: give one pair at a time")
    if len(task.pairs) > 1 and recipe.text.tokenizer:
        raise UserError(f"--tokenizer {recipe.text.tokenizer} is of one language: give one pair at a time")
    for split, pair in itertools.product(("train", "valid", *splits), task.pairs):
        if not split_files(Path(recipe.data), split, pair):
            of_pair = f" of {'-'.join(pair)}" if task.marks else ""
            raise UserError(
                f"there is no split '{split}'{of_pair} in '{recipe.data}': the recipe needs train, valid and --subset"
            )
    longest = max(_sizes(recipe, model, task), default=0)
    for flag, training in (("--max-tokens", recipe.training), ("--refine-max-tokens", refined)):
        if training is not None and training.max_tokens < longest:
            raise UserError(
                f"{flag} {training.max_tokens} has no room for a sentence of train or valid: give at least {longest}"
            )
    further = sorted({path.name.split(".")[0] for path in Path(recipe.data).glob("train[0-9]*.*-*.*")})
    if further:
        print(f"only train is searched and trained on, not {', '.join(further)}")


def _sizes(recipe: Recipe, model: Any, task: Any) -> Iterator[int]:
    """The longest of each side that fairseq-train is given, which ends at one that no batch has room for.

    But of train by cross-entropy, where it leaves such sentences out: all but a few of them.
    """
    most = 1.0 if recipe.refined() or recipe.training.criterion in LIST_CRITERIA else 1 - LEFT_OUT
    limits = resolve_max_positions(task.max_positions(), model.max_positions())  # a corpus skips what is longer
    learns_targets = any(get_selection(name).adds_gold for name in recipe.selections())
    for pair in task.pairs:
        for split in ("train", *validation_splits(Path(recipe.data), pair)):
            paths = {path.with_suffix("") for path in split_files(Path(recipe.data), split, pair)}
            for lang, limit, marks in zip(pair, limits, task.empty_sizes):
                if split == "train" and lang == pair[1] and not learns_targets:
                    continue
                for path in (path for path in paths if path.suffix == f".{lang}"):
                    side = load_side(str(path))  # its sizes live as long as it does
                    sizes = np.array(side.sizes) + marks - 1
                    fitting = sizes[sizes <= limit]
                    if len(fitting):
                        yield int(np.quantile(fitting, most if split == "train" else 1.0, method="higher"))
