"""The recipe's stages and trainings."""

from __future__ import annotations

from pathlib import Path

import pytest
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_tg.errors import UserError
from fairseq_tg.loading.checkpoints import without_extras
from fairseq_tg.models.base import read_base
from fairseq_tg.recipe.ablation import BEAMS, OBJECTIVES, cells
from fairseq_tg.recipe.run import Recipe
from fairseq_tg.recipe.stages import Stage
from fairseq_tg.recipe.training import Training, architecture_flags, count_updates
from tests.conftest import BASES, USER_DIR, Workspace

KINDS = ("actor", "beam", "composition", "objective")


def do(stage: Stage, text: str = "output") -> None:
    with stage.doing(["file"]):
        (stage.directory / "file").write_text(text)


def test_a_stage_is_done_when_it_ended_well(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage", {"lr": 0.1})
    assert not stage.is_done()
    with pytest.raises(KeyError), stage.doing(["file"]):
        (stage.directory / "file").write_text("half")
        raise KeyError
    assert not stage.is_done()
    do(stage)
    assert stage.is_done() and Stage(tmp_path / "stage", {"lr": 0.1}).is_done()


@pytest.mark.parametrize("damage", ["", "outpux", None])
def test_a_damaged_output_makes_a_stage_undone(tmp_path: Path, damage: str) -> None:
    stage = Stage(tmp_path / "stage", {})
    do(stage)
    (tmp_path / "stage" / "file").unlink()
    if damage is not None:
        (tmp_path / "stage" / "file").write_text(damage)
    assert not stage.is_done()
    do(stage)
    stage.stamp.write_text("{}")
    assert not stage.is_done()


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    do(Stage(tmp_path / "stage", {"training": {"lr": 0.1, "seed": 1}}))
    with pytest.raises(UserError, match=r"was made with other settings .*lr"):
        Stage(tmp_path / "stage", {"training": {"lr": 0.2, "seed": 1}}).is_done()


def test_a_stage_without_its_output_is_not_stamped(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage", {})
    with pytest.raises(UserError, match="has no file at the end"), stage.doing(["file"]):
        pass
    assert not stage.stamp.exists()


@pytest.mark.parametrize("base", BASES)
def test_a_base_is_built_again_from_its_own_flags(workspace: Workspace, base: str) -> None:
    record, tensors = read_base(workspace.bases[base])
    flags = [workspace.data, "--user-dir", USER_DIR, "--task", "tg_translation", *architecture_flags(record)]
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), flags))
    model = tasks.setup_task(config.task).build_model(config.model)
    assert {name: t.shape for name, t in without_extras(model.state_dict()).items()} == {
        name: t.shape for name, t in tensors.items()
    }


def test_updates_are_about_those_of_the_epochs(workspace: Workspace) -> None:
    one, four = (count_updates(Path(workspace.data), Training(max_tokens=200, epochs=n)) for n in (1, 4))
    assert four == 4 * one and 3 <= one <= 15
    with pytest.raises(UserError, match="has no binarized train split"):
        count_updates(Path(workspace.data).parent, Training())


def test_the_cells_of_the_papers_ablations() -> None:
    recipe = Recipe("data", "base.pt", "out")
    names = {kind: [cell.name for cell in cells(kind, recipe, (64, 128), BEAMS)] for kind in KINDS}
    assert names == {
        "actor": ["gate", "linear", "ff 64", "ff 128", "ff2 64", "ff2 128", "rnn 64", "rnn 128", "cont."],
        "beam": ["k=1", "k=5", "k=10", "k=20", "k=35", "k=50"],
        "composition": ["para", "full", "thd", "top1", "comb"],
        "objective": ["sbleu", "sbleu+2", "meteor", "ter"],
    }
    usual = [cell.name for cell in cells("actor", recipe, (0,), ())]
    assert usual == ["gate", "linear", "ff", "ff2", "rnn", "cont."]
    assert [cell.corpus for cell in cells("beam", recipe, (), (1, 5))] == [{"beam": 1}, {"beam": 5}]
    assert [cell.corpus for cell in cells("objective", recipe, (), ())] == [{"objective": n} for n in OBJECTIVES]
    assert cells("actor", recipe, (64,), ())[2].training == Training(actor="ff", actor_hidden=64)
    with pytest.raises(UserError, match="no ablation 'colour'"):
        cells("colour", recipe, (), ())
