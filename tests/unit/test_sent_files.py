"""What an attacker may send to be made words of a command, an archive or a place of files: see test_hostile_files."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import hub_utils
from safetensors.torch import save_file

from fairseq_tg.actor_format import METADATA_KEY
from fairseq_tg.compiled import model_file
from fairseq_tg.compiled.extract import extract
from fairseq_tg.compiled.languages import BEHIND, BEHIND_BOS, find_marks
from fairseq_tg.compiled.layouts import layout_from_json, layout_to_json
from fairseq_tg.compiled.translator import Translator
from fairseq_tg.corpus.assemble import merge
from fairseq_tg.errors import UserError
from fairseq_tg.launch.processes import Command, run_all
from fairseq_tg.loading import data_only
from fairseq_tg.loading.checkpoints import fingerprint, load_checkpoint
from fairseq_tg.loading.data_only import load_data
from fairseq_tg.locks import take_lock
from fairseq_tg.models.actor_files import average_actors, export_actor, read_actor_file, write_actor_file
from fairseq_tg.models.record import read_base
from fairseq_tg.recipe import training
from fairseq_tg.recipe.stages import Stage
from fairseq_tg.recipe.training import architecture_flags
from tests.conftest import Workspace, run_forked, run_tg
from tests.integration.corpora import build
from tests.unit.test_hostile_checkpoints import MARK, harmless_state

CODE = f"__import__('os').system('touch {MARK}')"


@pytest.mark.parametrize(
    "value", [[CODE], (CODE,), {"main": CODE}, {"main": [("tgt", CODE)]}, [CODE[:12], CODE[12:]], [CODE.encode()]]
)
def test_code_in_a_list_is_code(workspace: Workspace, tmp_path: Path, monkeypatch: Any, value: Any) -> None:
    """A list is made text again for a command whose parser evaluates it."""
    monkeypatch.chdir(tmp_path)
    state = harmless_state(workspace.bases["transformer"])
    task = {"_name": "translation_multi_simple_epoch", "data": workspace.data, "lang_pairs": "xx-yy"}
    state["cfg"]["task"] = {**task, "langs": ["xx", "yy"], "langtoks": value, "source_lang": None, "target_lang": None}
    torch.save(state, "evil.pt")
    with pytest.raises(UserError, match=r"'evil.pt' is refused: its option langtoks holds code"):
        run_tg("compile", "evil.pt", "out.tg", "--data", workspace.data, "--no-subword")
    assert not os.path.exists(MARK)


def test_words_that_fairseq_records_are_no_code(workspace: Workspace, tmp_path: Path) -> None:
    state = harmless_state(workspace.bases["transformer"])
    state["cfg"]["task"] = {**state["cfg"]["task"], "langtoks": {"main": ("tgt", "src"), "dae": [None, "en-XX_2"]}}
    torch.save(state, tmp_path / "base.pt")
    assert load_checkpoint(str(tmp_path / "base.pt"))["model"]


def test_a_language_is_no_option(workspace: Workspace, tmp_path: Path) -> None:
    """A pair of languages, named by a checkpoint and its data, is handed on to other processes."""
    evil = "--user-dir=evil"
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "__init__.py").write_text(f"open('{MARK}', 'w')\n")
    (tmp_path / "data").mkdir()
    for path in Path(workspace.data).glob("*.*"):
        name = path.name.replace("xx-yy", f"{evil}-yy").replace(".xx.", f".{evil}.")
        shutil.copy(path, tmp_path / "data" / name)
        shutil.copy(path, tmp_path / "data" / name.replace("valid", "test"))
    state = harmless_state(workspace.bases["transformer"])
    state["cfg"]["task"].update(source_lang=evil, target_lang="yy", data="data")
    torch.save(state, tmp_path / "model.pt")
    flags = ["--objective", "sbleu", "--beam", "2", "--workers", "1", "--out", "out"]
    done = run_forked("fairseq-tg", "run", "--data", "data", "--base", "model.pt", *flags, cwd=tmp_path)
    assert done.returncode == 1 and "are no names of languages" in done.stderr, done.stderr
    assert not (tmp_path / MARK).exists()


def test_an_option_of_the_architecture_is_one_word(workspace: Workspace) -> None:
    record, _ = read_base(workspace.bases["transformer"])
    record.options["activation_fn"] = "--user-dir"
    flags = architecture_flags(record)
    assert "--activation-fn=--user-dir" in flags and all(flag.startswith("--") for flag in flags)


@pytest.mark.parametrize("newer", [True, False])
def test_torchscript_is_no_checkpoint(tmp_path: Path, monkeypatch: Any, newer: bool) -> None:
    """Older versions of torch.load run it."""
    module = torch.jit.script(torch.nn.Linear(2, 2))
    module.save(str(tmp_path / "jit.pt"))
    with zipfile.ZipFile(tmp_path / "jit.pt") as packed, zipfile.ZipFile(tmp_path / "stored.pt", "w") as stored:
        for record in packed.infolist():
            stored.writestr(record.filename, packed.read(record))
    with pytest.raises(UserError, match=r"'.*stored.pt' is refused: its pickle asks for torch.jit.load"):
        load_checkpoint(str(tmp_path / "stored.pt"))
    monkeypatch.setattr(data_only, "TORCH_READS_DATA_ONLY", newer)
    with open(tmp_path / "stored.pt", "rb") as file, pytest.raises(Exception, match=r"torch.jit.load is not allowed"):
        load_data(file)


def test_an_archive_is_one_by_its_beginning(workspace: Workspace, tmp_path: Path) -> None:
    """Python's zipfile looks for the end, where a comment can hide it; torch does not."""
    with zipfile.ZipFile(workspace.bases["transformer"]) as old, zipfile.ZipFile(tmp_path / "x.pt", "w", 8) as new:
        for record in old.infolist():
            new.writestr(record.filename, old.read(record))
        new.comment = b"PK\5\6" + bytes(17)
    assert not zipfile.is_zipfile(tmp_path / "x.pt")
    with pytest.raises(UserError, match=r"x.pt' is no fairseq checkpoint, or a damaged one"):
        load_checkpoint(str(tmp_path / "x.pt"))


def test_what_names_have_in_common_leads_nowhere(tmp_path: Path, monkeypatch: Any) -> None:
    """fairseq moves what has that name to where the archive was."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "mine").write_text("mine")
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as file:
        for name in ("..a", "..b"):
            file.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(UserError, match=r"model.tar.gz' is refused: its names lead elsewhere"):
        hub_utils.from_pretrained(str(tmp_path / "model.tar.gz"))
    assert (tmp_path / "tmp" / "mine").read_text() == "mine"


def test_links_in_a_corpus_are_not_written_through(workspace: Workspace, tmp_path: Path) -> None:
    victim, out = tmp_path / "victim", tmp_path / "corpus"
    victim.write_text("mine")
    for shard in ("0/2", "1/2"):
        build(workspace, workspace.data, out, "--kbest-shard", shard)
    for name in ("bin", "idx"):
        (out / f"train.xx-yy.xx.{name}.tmp").symlink_to(victim)
    merge([str(out)], str(out))
    assert victim.read_text() == "mine"
    (tmp_path / "log").symlink_to(victim)
    run_all([Command("a command", ["echo", "said"], tmp_path / "log")], 1, lambda: None)
    assert victim.read_text() == "mine" and (tmp_path / "log").read_text() == "said\n"


def test_the_log_of_a_training_is_no_link(workspace: Workspace, tmp_path: Path) -> None:
    """fairseq adds to it, wherever it leads."""
    (tmp_path / "victim").write_text("mine")
    (tmp_path / training.TRAIN_LOG).symlink_to(tmp_path / "victim")
    flags = [
        "--task",
        "tg_translation",
        "--arch",
        "tg_transformer",
        "--base-checkpoint",
        workspace.bases["transformer"],
    ]
    flags += ["--criterion", "actor_cross_entropy", "--optimizer", "adam", "--max-tokens", "400", "--max-update", "1"]
    training._run(Path(workspace.data), tmp_path, [*flags, "--cpu", "--disable-validation"], 1, 1)
    assert (tmp_path / "victim").read_text() == "mine" and "num_updates" in (tmp_path / training.TRAIN_LOG).read_text()


def test_directories_that_are_links_are_not_written_into(workspace: Workspace, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "blocks").symlink_to(elsewhere)
    with pytest.raises(UserError, match="blocks' is a link"):
        build(workspace, workspace.data, tmp_path / "corpus")
    (tmp_path / "stage").symlink_to(elsewhere)
    with pytest.raises(UserError, match="stage' is a link"), Stage(tmp_path / "stage", {}).doing([]):
        pass
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match="lock' is a link"):
        take_lock(tmp_path / "lock", "held")
    assert not list(elsewhere.iterdir()) and (tmp_path / "victim").read_text() == "mine"


def test_a_stamp_without_outputs_is_of_nothing_done(tmp_path: Path) -> None:
    (tmp_path / "stage.json").write_text('{"settings": {"a": 1}, "outputs": {}}')
    assert not Stage(tmp_path, {"a": 1}).is_done()


@pytest.mark.parametrize(
    "change",
    [
        {"actor_layers": "${oc.env:HOME}"},
        {"actor": "${oc.env:HOME}"},
        {"actor": None},
        {"actor": ["gate"]},
        {"actor_hidden": True},
        {"actor_site_rank": "x"},
        {"arch": 5},
    ],
)
def test_metadata_of_actors_are_plain_values(workspace: Workspace, tmp_path: Path, change: Any) -> None:
    path = tmp_path / "a.safetensors"
    export_actor(workspace.train("transformer", tmp_path / "tg", "--max-update", "1"), str(path))
    metadata, tensors = read_actor_file(str(path))
    save_file(tensors, path, {METADATA_KEY: json.dumps({**asdict(metadata), **change})})
    message = "asks for something of this machine" if "$" in str(change) else f"its {next(iter(change))} is"
    with pytest.raises(UserError, match=message):
        read_actor_file(str(path))


def test_actors_that_are_not_all_there(workspace: Workspace, tmp_path: Path) -> None:
    """A file whose fingerprint fits what it has, which is not what it is to have."""
    run_tg("compile", workspace.bases["transformer"], tmp_path / "base.tg", "--data", workspace.data, "--no-subword")
    for sites, missing in (("attention", "decoder.layers.1."), ("maps", "encoder.layers.0.fc1."), ("all", "_actor.")):
        tg = workspace.train("transformer", tmp_path / sites, "--actor-sites", sites, "--max-update", "1")
        whole, less = str(tmp_path / f"{sites}.safetensors"), str(tmp_path / f"{sites}-less.safetensors")
        export_actor(tg, whole)
        metadata, tensors = read_actor_file(whole)
        left = {name: tensor for name, tensor in tensors.items() if missing not in name}
        assert len(left) < len(tensors)
        write_actor_file(less, replace(metadata, fingerprint=fingerprint(left)), left)
        for paths in ([whole, less], [less, whole]):
            with pytest.raises(UserError, match=r"are of another shape or base|are not those that it says it has"):
                average_actors(paths, str(tmp_path / "mean.safetensors"))
        assert Translator.load(str(tmp_path / "base.tg"), actors={"a": whole}).actors == ["a"]
        with pytest.raises(ValueError, match="are not those that it says it has"):
            Translator.load(str(tmp_path / "base.tg"), actors={"a": less})


def test_a_small_file_is_not_a_large_table(workspace: Workspace) -> None:
    raw = layout_to_json(extract(workspace.base_model("transformer"))[0])
    raw.update(dim=4096, encoder_dim=4096, source_positions=2**17, target_positions=2**17)
    with pytest.raises(ValueError, match=r"encoder.positions of 131072 x 4096"):
        layout_from_json(raw)


def test_a_language_without_its_symbol() -> None:
    text = model_file.TextOptions("de", "en", languages="de,en", language_symbol="__{}__", target_symbol="tgt")
    with pytest.raises(ValueError, match="the model's dictionary has no '__de__': compile it again"):
        find_marks(text, {"<s>": 0, "__en__": 1}, "de", "en")


@pytest.mark.parametrize("place", [BEHIND, BEHIND_BOS])
def test_a_model_of_one_pair_of_many_is_of_that_pair(place: str) -> None:
    """As mBART-25's are: the symbols of others are in the dictionary, and nothing was learned of them."""
    symbols = {"languages": "de,en,fr", "language_symbol": "[{}]", "target_symbol": "tgt", "language_place": place}
    text = model_file.TextOptions("de", "en", **symbols)
    numbers = {"[de]": 7, "[en]": 8, "[fr]": 9}
    assert find_marks(text, numbers, 2) == find_marks(text, numbers, 2, "de", "en")
    for pair in (("fr", "en"), ("de", "fr"), ("en", "de")):
        with pytest.raises(ValueError, match="this model translates from de to en, not '"):
            find_marks(text, numbers, 2, *pair)


def test_a_small_actor_is_not_a_large_matrix(workspace: Workspace, tmp_path: Path) -> None:
    """What is added to a base's map has the map's size, or is not made."""
    tg = workspace.train("transformer", tmp_path / "tg", "--actor-sites", "maps", "--max-update", "1")
    run_tg("compile", workspace.bases["transformer"], tmp_path / "base.tg")
    run_tg("actor", "export", tg, tmp_path / "a.safetensors")
    metadata, tensors = read_actor_file(str(tmp_path / "a.safetensors"))
    at = "decoder.layers.0.fc1.actor.net.action"
    assert Translator.load(str(tmp_path / "base.tg"), actors={"a": str(tmp_path / "a.safetensors")}).actors == ["a"]
    tensors[f"{at}.up.0.weight"], tensors[f"{at}.down.weight"] = torch.zeros(10**6, 1), torch.zeros(1, 10**6)
    write_actor_file(str(tmp_path / "b.safetensors"), replace(metadata, fingerprint=fingerprint(tensors)), tensors)
    with pytest.raises(ValueError, match=r"actions of \(1000000, 1\) and \(1, 1000000\) beside a map of"):
        Translator.load(str(tmp_path / "base.tg"), actors={"b": str(tmp_path / "b.safetensors")})
