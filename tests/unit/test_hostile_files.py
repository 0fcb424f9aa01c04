"""What an attacker may send beside checkpoints: actor files, corpora, archives, names. All of it is refused."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest
import torch
from fairseq import hub_utils
from safetensors.torch import save_file

from fairseq_tg.compiled.translator import Translator
from fairseq_tg.corpus.blocks import LONGEST_LINE, BlockStore, read_sentences
from fairseq_tg.corpus.directory import CorpusDirectory
from fairseq_tg.errors import UserError
from fairseq_tg.launch.processes import fairseq as fairseq_command
from fairseq_tg.models.actor_files import METADATA_KEY, read_actor_file
from tests.conftest import REPO, USER_DIR, Workspace, run, run_tg
from tests.unit.test_hostile_checkpoints import MARK


def test_names_of_data_files_are_no_commands(workspace: Workspace, tmp_path: Path, monkeypatch: Any) -> None:
    """fairseq finds the languages out from the names of files, and the kind of data; one kind it reads with a shell."""
    monkeypatch.chdir(tmp_path)
    source = f"$(touch {MARK})"
    data = tmp_path / "data"
    data.mkdir()
    for language in (source, "yy"):
        shutil.copy(f"{workspace.data}/dict.yy.txt", data / f"dict.{language}.txt")
    for end in ("idx", "bin"):
        shutil.copy(f"{workspace.data}/valid.xx-yy.xx.{end}", data / f"test.{source}-yy.{source}.{end}")
    (data / f"test.{source}-yy.yy.fasta").write_text(">x\nABC\n")
    flags = ["--path", workspace.bases["transformer"], "--user-dir", USER_DIR, "--task", "tg_translation", "--cpu"]
    with contextlib.suppress(Exception):  # what there is, is no text
        run("fairseq-generate", data, *flags)
    assert not os.path.exists(MARK)


@pytest.mark.parametrize("size", [1 << 62, 1 << 40, 200_000_000, (1 << 64) - 1])
def test_oversized_headers(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", size) + b"{" * 100)
    with pytest.raises(UserError, match=r"a.safetensors' is no actor file"):
        read_actor_file(str(path))
    with pytest.raises(ValueError, match="is no compiled model"):
        Translator.load(str(path))


METADATA: Dict[str, Any] = {
    "arch": "tg_transformer", "actor": "ff", "actor_hidden": 0, "actor_rank": 0, "actor_layers": None,
    "base_fingerprint": "0", "fingerprint": "0", "format": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        json.dumps({**METADATA, "actor_hidden": 10**12}),
        json.dumps({**METADATA, "actor_rank": -5}),
        json.dumps({**METADATA, "actor_hidden": "os:system"}),
        json.dumps({**METADATA, "surprise": 1}),
    ],
)
def test_metadata_of_actor_files(tmp_path: Path, text: str) -> None:
    save_file({"decoder.actor.x": torch.zeros(3)}, tmp_path / "a.safetensors", {METADATA_KEY: text})
    with pytest.raises(UserError, match=r"a.safetensors'"):
        read_actor_file(str(tmp_path / "a.safetensors"))


def write_manifest(directory: Path, **changes: Any) -> None:
    recipe = {"languages": ["xx", "yy"], "subset": "train", "sentences": 1, "block_size": 1, "objective": "sbleu"}
    manifest = {"format": 2, "status": "building", "command": "", "data": str(directory), "recipe": recipe}
    for name, value in changes.items():
        (recipe if name in recipe else manifest)[name] = value
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    directory.mkdir(exist_ok=True)
    (directory / "manifest.json").write_text(json.dumps({**manifest, "sha256": digest}))


@pytest.mark.parametrize(
    "changes",
    [
        {"languages": ["../../../etc/x", "yy"]},
        {"languages": ["xx", "/tmp/yy"]},
        {"languages": [".", ".."]},
        {"languages": [5, None]},
        {"languages": "abc"},
        {"subset": "../train"},
        {"subset": ""},
        {"sentences": "1e9"},
        {"block_size": -1},
        {"block_size": 0},
        {"status": "done"},
        {"status": "complete"},
        {"recipe": []},
    ],
)
def test_manifests(tmp_path: Path, changes: Dict[str, Any]) -> None:
    write_manifest(tmp_path / "evil", **changes)
    for command in (["status", tmp_path / "evil"], ["merge", tmp_path / "evil", "--out", tmp_path / "out"]):
        with pytest.raises(UserError, match=r"evil/manifest.json' is damaged"):
            run_tg("corpus", *command)
    assert [path.name for path in tmp_path.iterdir()] == ["evil"]


@pytest.mark.parametrize("counts", [{}, {"pairs": "x", "source_sentences": [], "skipped": []}])
def test_counts_of_a_complete_corpus(tmp_path: Path, counts: Dict[str, Any]) -> None:
    write_manifest(tmp_path / "evil", status="complete", counts=counts, means={}, skipped=[], files={})
    with pytest.raises(UserError, match=r"evil/manifest.json' is damaged"):
        run_tg("corpus", "status", tmp_path / "evil")


def test_files_outside_of_a_corpus_are_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    digest = hashlib.sha256(b"x").hexdigest()
    complete = {"counts": {}, "means": {}, "skipped": [], "files": {"../secret": digest}}
    write_manifest(tmp_path / "evil", status="complete", **complete)
    with pytest.raises(UserError, match=r"evil/secret' is missing or damaged"):
        CorpusDirectory(str(tmp_path / "evil")).check_files()


def test_a_function_named_in_a_file_is_never_run(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil_objective.py").write_text(f"open('{MARK}', 'w')\ndef score(h, r): return 0.0\n")
    write_manifest(tmp_path / "corpus", objective="evil_objective:score")
    assert "mean evil_objective:score" in run_tg("corpus", "status", tmp_path / "corpus")
    with pytest.raises(UserError, match="are missing"):
        run_tg("corpus", "merge", tmp_path / "corpus", "--out", tmp_path / "out")
    assert not os.path.exists(MARK) and "evil_objective" not in sys.modules


def test_words_of_a_file_have_no_control_over_a_terminal(tmp_path: Path) -> None:
    write_manifest(tmp_path / "corpus", command="\x1b]0;x\x07", objective="\x1b[2J")
    shown = run_tg("corpus", "status", tmp_path / "corpus")
    assert "\\x1b]0;x\\x07" in shown and "\\x1b[2J" in shown and "\x1b" not in shown
    write_manifest(tmp_path / "evil", languages=["\x1b[2J", "yy"])
    with pytest.raises(UserError, match=r"evil/manifest.json' is damaged") as raised:
        run_tg("corpus", "status", tmp_path / "evil")
    assert "\x1b" not in str(raised.value)


def test_bombs_in_lists(tmp_path: Path) -> None:
    """A line that grows without end, and JSON that is nested without end."""
    with gzip.open(tmp_path / "long.gz", "wb") as file:
        for _ in range(1 + LONGEST_LINE // (1 << 20)):
            file.write(b" " * (1 << 20))
    assert (tmp_path / "long.gz").stat().st_size < 1 << 20
    (tmp_path / "deep.gz").write_bytes(gzip.compress(b"[" * 100_000 + b"\n"))
    for name, problem in (("long.gz", "a line is longer than"), ("deep.gz", "nested too deeply")):
        with pytest.raises(UserError, match=rf"{name}' is no list of k-best translations.*{problem}"):
            list(read_sentences(tmp_path / name))


def test_bombs_in_blocks(tmp_path: Path) -> None:
    store = BlockStore(tmp_path)
    data = gzip.compress(b" " * (LONGEST_LINE + 1))
    (tmp_path / "000000.jsonl.gz").write_bytes(data)
    summary = {"sha256": hashlib.sha256(data).hexdigest(), "tally": {}}
    (tmp_path / "000000.json").write_text(json.dumps(summary))
    with pytest.raises(UserError, match="a line is longer than"):
        store.read(0)


@pytest.mark.parametrize("kind", ["up", "root", "link", "hard link", "device"])
def test_the_hub_unpacks_files_into_their_directory(tmp_path: Path, kind: str) -> None:
    """fairseq would also move what an archive names from the root of the machine to where the archive was."""
    import tarfile

    (tmp_path / "mine").write_text("mine")
    archive = tmp_path / "deep" / "model.tar.gz"
    archive.parent.mkdir()
    name = {"up": "model/../../mine", "root": str(tmp_path / "mine")}.get(kind, "model/a")
    member = tarfile.TarInfo(name)
    member.type = {"link": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE, "device": tarfile.CHRTYPE}.get(
        kind, tarfile.REGTYPE
    )
    member.linkname = str(tmp_path / "mine") if "link" in kind else ""
    with tarfile.open(archive, "w:gz") as file:
        file.addfile(member, io.BytesIO())
    with pytest.raises(UserError, match=rf"model.tar.gz' is refused: its '{re.escape(name)}'"):
        hub_utils.from_pretrained(str(archive))
    assert (tmp_path / "mine").read_text() == "mine" and archive.is_file()


def test_the_hub_unpacks_a_model(workspace: Workspace, tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as file:
        file.add(workspace.bases["transformer"], "model/model.pt")
        for language in ("xx", "yy"):
            file.add(f"{workspace.data}/dict.{language}.txt", f"model/dict.{language}.txt")
    made = hub_utils.from_pretrained(str(tmp_path / "model.tar.gz"), source_lang="xx", target_lang="yy")
    assert len(made["models"]) == 1


def test_processes_import_nothing_from_the_current_directory(tmp_path: Path) -> None:
    """Who works in a directory that was sent to him runs nothing that is in it."""
    for name in ("numpy", "torch", "fairseq", "json", "fairseq_tg", "fairseq_cli"):
        (tmp_path / f"{name}.py").write_text(f"open('{MARK}', 'w')\n")
    done = subprocess.run(fairseq_command("generate", "--help"), cwd=tmp_path, capture_output=True, text=True)
    assert not done.returncode and "usage: fairseq-generate" in done.stdout, done.stderr
    assert not (tmp_path / MARK).exists()


def test_archives_stay_in_their_directory(tmp_path: Path) -> None:
    """The examples unpack what was downloaded with tar, which leaves out the beginning of paths that lead outside."""
    import tarfile

    archives, work = tmp_path / "archives", tmp_path / "deep" / "work"
    archives.mkdir()
    with tarfile.open(archives / "training-parallel-x.tgz", "w:gz") as archive:
        for name in ("../../escaped", "/tmp/fairseq_tg_escaped"):
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"x"))
    script = REPO / "examples" / "steps" / "extract_wmt.sh"
    done = subprocess.run(["bash", script, archives, work, "de", "en", "v", "t"], capture_output=True, text=True)
    assert done.returncode != 0
    assert not os.path.exists("/tmp/fairseq_tg_escaped") and not list(tmp_path.glob("*escaped*"))
    assert not list((tmp_path / "deep").glob("*escaped*"))
