"""The whole recipe for a base that the user has: oracle corpus, actor, report."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Sequence, Tuple

from fairseq_tg.actors import ACTORS
from fairseq_tg.corpus.directory import hash_data, hash_file, split_files
from fairseq_tg.corpus.selection import get_selection
from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.options import ReportOptions
from fairseq_tg.evaluation.report import make_report
from fairseq_tg.evaluation.subset import read_subsets
from fairseq_tg.files import make_directory
from fairseq_tg.models.base import ActorModel, Base, read_base
from fairseq_tg.objectives import get_objective
from fairseq_tg.recipe.options import Recipe
from fairseq_tg.recipe.rounds import train_in_rounds
from fairseq_tg.recipe.stages import Stage, with_contents
from fairseq_tg.recipe.training import source_flags
from fairseq_tg.tasks.loading import load_model

FAMILIES = ("transformer", "lstm", "fconv")


def run(recipe: Recipe) -> Path:
    """Do what is not done yet, and give the report's directory."""
    record, model, task = open_base(recipe)
    subsets = recipe.subset.split(",")
    check(recipe, task, subsets)
    read_subsets(task, subsets, model, recipe.text, scores_targets=True)  # as the report will
    out = Path(recipe.out)
    make_directory(out)

    checkpoint = train_in_rounds(recipe, record, task, out)
    print(f"== 3 of 3: the report on {recipe.subset}, {out / 'report'}")
    options = ReportOptions(
        data=recipe.data,
        base=recipe.base,
        actor=(str(checkpoint),),
        out=str(out / "report"),
        subset=recipe.subset,
        oracle_beam=recipe.beam,
        threads=recipe.workers,
        text=recipe.text,
    )
    settings = {"base": record.fingerprint, "actor": hash_file(checkpoint), "subset": recipe.subset, "k": recipe.beam}
    pair = [task.cfg.source_lang, task.cfg.target_lang]
    hashes = {f"data {name}": hash_data(Path(recipe.data), name, [pair]) for name in subsets}
    stage = Stage(out / "report", {**settings, **hashes, **with_contents(recipe.text.given())})
    if not stage.is_done():
        with stage.doing(["report.html", "report.json", "report.txt"]):
            make_report(options)
    return out / "report"


def open_base(recipe: Recipe) -> Tuple[Base, Any, Any]:
    """The base's record, its model and a task for it; refuses what there are no actors for, or has some already."""
    record, _ = read_base(recipe.base)
    if record.family not in FAMILIES:
        raise UserError(f"'{recipe.base}' is a {record.family} model: there are actors for {', '.join(FAMILIES)}")
    model, task = load_model(recipe.base, recipe.data)
    if isinstance(model, ActorModel):
        raise UserError(f"--base {recipe.base} has actors already: give the checkpoint of a model without")
    return record, model, task


def check(recipe: Recipe, task: Any, splits: Sequence[str] = ()) -> None:
    """What a stage would stumble over after hours of others is found before them."""
    get_objective(recipe.objective)
    get_selection(recipe.selection)
    ACTORS[recipe.training.actor]
    source_flags(recipe.training, recipe.text)
    for split in ("train", "valid", *splits):
        if not split_files(Path(recipe.data), split, [task.cfg.source_lang, task.cfg.target_lang]):
            raise UserError(
                f"there is no split '{split}' in '{recipe.data}': the recipe needs train, valid and --subset"
            )
