"""The settings that were found best stand in one place; README.md's commands and Hydra's files have the same."""

from __future__ import annotations

import re
import shlex
from typing import Any, Dict, List

import pytest
import yaml

from fairseq_tg.recipe.options import Recipe
from fairseq_tg.recipe.training import training_flags
from tests.conftest import FAMILIES, REPO

UPDATES = 1500
#: Said by the number of updates there, by that of epochs here; and not said at all
ELSEWHERE, UNSAID = {"max_update"}, {"seed"}


def named(words: List[str]) -> Dict[str, Any]:
    """Options by their names, and their values as numbers if they are such."""
    found: Dict[str, Any] = {}
    for word in words:
        if word.startswith("--"):
            found[name := word[2:].replace("-", "_")] = True
        else:
            found[name] = float(word) if re.fullmatch(r"[\d.e-]+", word) else word
    return found


def best_for(family: str) -> Dict[str, Any]:
    recipe = Recipe(data="", base="", out="", selection="comb")
    training = recipe.training_on("comb").of_family(family)
    found = named(training_flags(training, "base.pt", family, UPDATES))
    return {"max_epoch": training.epochs, **{n: v for n, v in found.items() if n not in ELSEWHERE | UNSAID}}


@pytest.mark.parametrize("family", FAMILIES)
def test_hydras_files_have_them(family: str) -> None:
    config = REPO / "user_dir_configs"
    flat: Dict[str, Any] = {"base_dropout": False}
    for file in ("tg", f"tg_{family}_gate"):
        for group, values in yaml.safe_load((config / f"{file}.yaml").read_text()).items():
            if group != "defaults":
                flat.update({group if name == "_name" else name: value for name, value in values.items()})
    found = {**flat, "arch": flat["model"], "lr": flat["lr"][0], "base_checkpoint": "base.pt"}
    best = {"base_dropout": False, **best_for(family)}
    assert {name: found.get(name) for name in best} == best


def test_the_readmes_command_has_them() -> None:
    readme = re.sub(r"\\\n\s*", "", (REPO / "README.md").read_text())
    command = next(line for line in readme.splitlines() if line.startswith("fairseq-train pseudo-bin"))
    found = named(shlex.split(command, comments=True)[2:])
    unsaid = {"actor_hidden": 0, "actor_rank": 0, "end_learning_rate": 0}  # fairseq's defaults and ours
    best = {name: value for name, value in best_for("transformer").items() if unsaid.get(name) != value}
    assert {name: found.get(name) for name in best} == best
    others = {family: best_for(family) for family in FAMILIES if family != "transformer"}
    assert all(other["lr"] == 3e-3 and "base_dropout" not in other for other in others.values())
    assert "`--lr 3e-3`, and no `--base-dropout`" in readme
