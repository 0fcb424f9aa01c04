"""The recipe's stages and trainings."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, List, Optional

import pytest
import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_tg.corpus.directory import describe_difference, with_contents
from fairseq_tg.errors import PREFIX, UserError
from fairseq_tg.files import refuse_links
from fairseq_tg.launch.processes import failure, last_words
from fairseq_tg.loading.checkpoints import without_extras
from fairseq_tg.models.record import read_base
from fairseq_tg.recipe import training
from fairseq_tg.recipe.ablation import OBJECTIVES, Cell, cells
from fairseq_tg.recipe.options import Ablation, Training
from fairseq_tg.recipe.stages import Stage
from fairseq_tg.recipe.training import architecture_flags, count_updates
from tests.conftest import BASES, REPO, USER_DIR, Workspace

FIXTURE = REPO / "tests" / "fixtures" / "fairseq-0.12.3" / "tg_lstm.pt"
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
    (tmp_path / "stage" / "half").write_text("of what is damaged, too")
    (tmp_path / "stage" / "elsewhere").symlink_to(tmp_path)
    assert not stage.is_done()
    do(stage)
    assert stage.is_done() and not (tmp_path / "stage" / "half").exists()
    for stamp in ("{}", '{"settings": {}, "outputs": 5}', "[" * 100_000):
        stage.stamp.write_text(stamp)
        with pytest.raises(UserError, match=r"stage.json' is damaged"):
            stage.is_done()


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    stage, other = (Stage(tmp_path / "stage", {"training": {"lr": lr, "seed": 1}}) for lr in (0.1, 0.2))
    with pytest.raises(KeyboardInterrupt), stage.doing(["file"]):
        raise KeyboardInterrupt  # under way
    for _ in range(2):
        with pytest.raises(UserError, match=r"was begun with other settings \(training.lr was 0.1, is 0.2\)"):
            other.is_done()
        with pytest.raises(UserError, match=r"was begun with other settings"):
            do(other)
        do(stage)


def test_what_follows_others_is_done_again_when_they_have_changed(tmp_path: Path) -> None:
    def stage(actor: str, k: int = 5) -> Stage:
        return Stage(tmp_path / "stage", {"actor": actor, "k": k}, follows=["actor"])

    do(stage("a"), "of a")
    (tmp_path / "stage" / "more").write_text("of a, too")
    assert stage("a").is_done() and not stage("b").is_done()
    do(stage("b"), "of b")
    assert stage("b").is_done() and sorted(path.name for path in (tmp_path / "stage").glob("[!.]*")) == [
        "file",
        "stage.json",
    ]
    for actor in "ab":
        with pytest.raises(UserError, match=r"was begun with other settings \(k was 5, is 6\)"):
            stage(actor, 6).is_done()


def test_a_kill_in_a_stages_first_moment_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / "stage.json.tmp0123").write_text("{")
    stage = Stage(tmp_path / "stage", {})
    assert not stage.is_done()
    do(stage)
    assert stage.is_done()


def test_a_file_may_be_elsewhere_the_next_time(tmp_path: Path) -> None:
    """Its contents are the setting; of stages and corpora of before these were known, its place is."""
    places = [tmp_path / name for name in ("a.model", "b.model", "c.model")]
    for place, text in zip(places, ("one", "one", "two")):
        place.write_text(text)
    same, moved, other = ({"n": 1, "bpe": with_contents({"model": str(place), "alpha": None})} for place in places)
    do(Stage(tmp_path / "stage", same))
    assert Stage(tmp_path / "stage", moved).is_done() and not describe_difference(same, moved)
    with pytest.raises(UserError, match=r"begun with other settings \(bpe\.content of model was"):
        Stage(tmp_path / "stage", other).is_done()
    older = {"n": 1, "bpe": {"model": str(places[0]), "alpha": None}}
    assert not describe_difference(older, same) and "bpe.model was" in describe_difference(older, moved)


def test_links_in_a_run_lead_nowhere(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    (out / "round-2").mkdir(parents=True)
    elsewhere.mkdir()
    refuse_links(out)
    (out / "round-2" / "top1").symlink_to(elsewhere)
    with pytest.raises(UserError, match="round-2/top1' is a link: nothing is written through it"):
        refuse_links(out)


@pytest.mark.parametrize(
    "log, words",
    [
        ("INFO:fairseq_cli.generate:{'_name': None\nno room\nDEBUG: more\n", "no room"),
        ("INFO:fairseq_cli.generate:{'_name': None\n", "it said nothing"),
        ("x" * 5000, "x" * 300),
        (f"{PREFIX}{'y' * 5000}\nTraceback", "y" * 5000),
    ],
)
def test_last_words_are_of_an_error(log: str, words: str) -> None:
    assert last_words(log) == words


def test_where_there_is_no_room_for_last_words_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log.write_text("INFO:fairseq_cli.generate:{'_name'")
    assert "it said nothing" in str(failure("shard 0", "failed", log))
    monkeypatch.setattr("fairseq_tg.launch.processes.ROOM", 1 << 62)  # more than any disk has
    assert "there is no room for its log" in str(failure("shard 0", "failed", log))
    log.write_text(f"{PREFIX}cannot write 'x': No space left on device")
    assert "cannot write 'x'" in str(failure("shard 0", "failed", log))


def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    """A checkpoint of a large model, say, and one at every kill."""
    stage = Stage(tmp_path / "stage", {})
    with pytest.raises(KeyError), stage.doing(["file"]):
        (stage.directory / f"checkpoint_last.pt.tmp{'0' * 32}").write_text("half")
        (stage.directory / "checkpoint_last.pt").write_text("the last whole one")
        raise KeyError
    do(stage)
    assert {path.name for path in stage.directory.iterdir()} - {".lock"} == {"checkpoint_last.pt", "file", "stage.json"}


def test_what_another_process_has_done_meanwhile_is_not_removed(tmp_path: Path) -> None:
    mine, other = (Stage(tmp_path / "stage", {}) for _ in range(2))
    assert not mine.is_done()
    do(other)
    with pytest.raises(KeyboardInterrupt), mine.doing(["file"]):
        assert (tmp_path / "stage" / "file").read_text() == "output"
        raise KeyboardInterrupt


def test_the_same_in_another_directory_is_taken_over(tmp_path: Path) -> None:
    old, other, new = (Stage(tmp_path / name, {"k": 1}) for name in ("old", "other", "deep/new"))
    do(old)
    do(other)
    Stage(tmp_path / "deep" / "new", {"k": 2}).take_over(old.directory)  # is something else
    new.take_over(tmp_path / "nowhere")
    (tmp_path / "link").symlink_to(old.directory)
    new.take_over(tmp_path / "link")
    assert not new.directory.exists() and old.is_done()
    with old.doing(["file"]), pytest.raises(UserError, match="another process is at work in"):
        new.take_over(old.directory)
    new.take_over(old.directory)
    new.take_over(other.directory)  # it has what it needs
    assert new.is_done() and not old.directory.exists() and other.is_done()


def test_another_content_of_a_file_is_another_setting(tmp_path: Path) -> None:
    given = {"bpe": "sentencepiece", "sentencepiece_model": str(tmp_path / "sp.model")}
    (tmp_path / "sp.model").write_text("one")
    before = with_contents(given)
    assert with_contents(given) == before and before.items() > given.items()
    (tmp_path / "sp.model").write_text("two")
    assert with_contents(given) != before


def test_files_without_a_stamp_are_not_gone_on_from(tmp_path: Path) -> None:
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / "checkpoint_last.pt").write_text("of whatever settings")
    with pytest.raises(UserError, match=r"has files and no stage.json"):
        Stage(tmp_path / "stage", {}).is_done()


def test_a_stage_without_its_output_is_not_stamped(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage", {})
    with pytest.raises(UserError, match="has no file at the end"), stage.doing(["file"]):
        pass
    assert not stage.is_done()


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
        count_updates(Path(workspace.data).parent, Training(epochs=1))


@pytest.mark.parametrize("updates, gainless, again", [(7, 0, False), (4, 3, False), (4, 2, True), (6, None, True)])
def test_a_training_that_had_ended_is_not_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, updates: int, gainless: Optional[int], again: bool
) -> None:
    """Where the stage was killed behind it: fairseq would do an update more, and have patience anew."""
    ran = []

    def run(data: Path, directory: Path, *_: Any) -> None:
        state = torch.load(FIXTURE)
        state["optimizer_history"][-1]["num_updates"] = updates
        state["extra_state"].update({} if gainless is None else {"patience": {"best": 1.0, "num_runs": gainless}})
        for name in ("checkpoint_last.pt", "checkpoint_best.pt", "train.log"):
            torch.save(state, directory / name)
        ran.append(directory)
        if len(ran) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "_run", run)
    base: Any = SimpleNamespace(family="lstm", fingerprint=read_base(str(FIXTURE))[0].fingerprint)
    task = SimpleNamespace(
        marks=(), task_flags=list, pairs=[("xx", "yy")], target_dictionary=SimpleNamespace(symbols=[])
    )
    job = training.Job(Training(patience=3), "base.pt", base, task, tmp_path, "corpus", tmp_path / "actor", 7)
    with pytest.raises(KeyboardInterrupt):
        job.run(1)
    job.run(1)
    assert len(ran) == 1 + again
    base.fingerprint = "of what was there at the start"  # and another file since
    with pytest.raises(UserError, match=r"'base.pt' has changed meanwhile: give a copy that stays as it is"):
        replace(job, directory=tmp_path / "another").run(1)
    assert "outputs" not in (tmp_path / "another" / "stage.json").read_text()


def test_long_epochs_are_saved_within(workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And patience is still of whole epochs."""
    settings = Training(max_tokens=200, epochs=2, patience=9, lr=0.01)
    once = count_updates(Path(workspace.data), settings)
    monkeypatch.setattr(training, "WITHIN", once // 2 - 1)
    record, _ = read_base(workspace.bases["lstm"])
    task = workspace.task()
    job = training.Job(settings, workspace.bases["lstm"], record, task, Path(workspace.data), "corpus", tmp_path)
    assert job.run(1).is_file()
    flags = job._flags(settings.of_family("lstm"), once)
    assert flags[flags.index("--patience") + 1] == "18"
    found = re.findall(r'"valid_num_updates": "(\d+)"', (tmp_path / "train.log").read_text())
    validated = list(map(int, found))
    assert once // 2 - 1 in validated and validated[-1] == once and len(validated) > 2
    assert len(list(tmp_path.glob("checkpoint_*_*.pt"))) == 1


def test_the_cells_of_the_papers_ablations() -> None:
    def planned(kind: str, **options: Any) -> List[Cell]:
        return cells(Ablation(kind=kind, data="data", base="base.pt", out="out", **options))

    names = {kind: [cell.name for cell in planned(kind, hidden=(64, 128))] for kind in KINDS}
    assert names == {
        "actor": ["gate", "linear", "ff 64", "ff 128", "ff2 64", "ff2 128", "rnn 64", "rnn 128", "cont."],
        "beam": ["k=1", "k=5", "k=10", "k=20", "k=35", "k=50"],
        "composition": ["para", "full", "thd", "top1", "comb"],
        "objective": ["sbleu", "sbleu+2", "meteor", "ter"],
    }
    usual = [cell.name for cell in planned("actor")]
    assert usual == ["gate", "linear", "ff", "ff2", "rnn", "cont."]
    assert [cell.corpus for cell in planned("beam", beams=(1, 5))] == [{"beam": 1}, {"beam": 5}]
    assert [cell.corpus for cell in planned("objective")] == [{"objective": n} for n in OBJECTIVES]
    expected = Training(actor="ff", actor_hidden=64, actor_sites="attention", lr=3e-3)
    assert planned("actor", hidden=(64,))[2].training == expected
    with pytest.raises(UserError, match="no ablation 'colour'"):
        planned("colour")


def test_what_is_not_given_is_best_for_the_family() -> None:
    usual, convolutions = (Training().of_family(family) for family in ("transformer", "fconv"))
    assert usual == replace(convolutions, lr=usual.lr, base_dropout=True) != convolutions
    given = Training(actor_rank=8, actor_sites="all", actor_site_rank=3, lr=0.5, epochs=2, base_dropout=True)
    assert given.of_family("fconv") == given.of_size(10**9) == given
    assert usual.actor_site_rank == 0 and Training().of_size(10**7) == Training()
    assert Training().of_size(10**9).of_family("transformer").actor_site_rank == 64  # full maps take too much memory
