"""Nothing that is read is replaced by what is made of it, and a corpus is what one command makes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, List

import pytest

from fairseq_tg.errors import UserError
from tests.conftest import run_tg
from tests.integration.corpora import BASE, build, files


@pytest.fixture(scope="module")
def made(workspace: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, two tg checkpoints of it, an actor file and a compiled model."""
    out = tmp_path_factory.mktemp("made")
    shutil.copy(workspace.bases["lstm"], out / "base.pt")
    for number in (1, 2):
        tg = workspace.train("lstm", out / "train", "--max-update", "1", "--seed", number, "--no-epoch-checkpoints")
        shutil.move(tg, out / f"tg{number}.pt")
    run_tg("actor", "export", out / "tg1.pt", out / "a.safetensors")
    run_tg("compile", out / "tg1.pt", out / "model.tg", "--data", workspace.data, "--no-subword")
    return out


@pytest.mark.parametrize(
    "command, message",
    [
        ("actor import base.pt a.safetensors base.pt", "'base.pt' is read, and would be replaced"),
        ("actor import base.pt a.safetensors ./a.safetensors", "would be replaced"),
        ("actor import base.pt a.safetensors link.pt", "'link.pt' is read, and would be replaced"),
        ("actor export tg1.pt tg1.pt", "'tg1.pt' is read, and would be replaced"),
        ("actor average tg1.pt tg2.pt", r"a mean is of at least two: .* as in tg1.pt tg2.pt mean.pt"),
        ("actor average tg1.pt a.safetensors tg2.pt", "'tg2.pt' is there already: give a new name"),
        ("compile base.pt base.pt --data {data} --no-subword", "'base.pt' is read, and would be replaced"),
        ("compile base.pt a.safetensors --actor-weights a.safetensors --data {data} --no-subword", "would be replaced"),
        ("compile base.pt lists.gz --shortlist lists.gz --data {data} --no-subword", "would be replaced"),
        ("explain model.tg w1 --svg model.tg", "'model.tg' is read, and would be replaced"),
    ],
)
def test_inputs_are_not_replaced(
    workspace: Any, made: Path, monkeypatch: pytest.MonkeyPatch, command: str, message: str
) -> None:
    monkeypatch.chdir(made)
    if not Path("link.pt").exists():
        os.link("base.pt", "link.pt")
    Path("lists.gz").touch()
    before = files(made)
    with pytest.raises(UserError, match=message):
        run_tg(*command.format(data=workspace.data).split())
    assert files(made) == before


def test_a_checkpoint_whose_name_is_no_text(made: Path, tmp_path: Path) -> None:
    """Which torch cannot map a file by."""
    odd = os.fsdecode(os.fsencode(tmp_path / "b") + b"\xff.pt")
    shutil.copy(made / "tg1.pt", odd)
    run_tg("actor", "export", odd, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (made / "a.safetensors").read_bytes()


# Corpora


def test_limits_are_a_part_of_the_recipe(workspace: Any, data: str, tmp_path: Path) -> None:
    out = tmp_path / "x"
    first, second = ("--kbest-shard", "0/2"), ("--kbest-shard", "1/2")
    short = ("--max-source-positions", "4", "--max-target-positions", "1024")
    build(workspace, data, out, *first)
    before = files(out)
    with pytest.raises(UserError, match=r"begun with other settings: limits was null, is \[4, 1024\]"):
        build(workspace, data, out, *second, *short)
    assert files(out) == before
    build(workspace, data, tmp_path / "y", *first, *short)
    with pytest.raises(UserError, match="begun with other settings: limits was"):
        build(workspace, data, tmp_path / "y")
    build(workspace, data, tmp_path / "z", "--kbest-jsonl", *short)
    with pytest.raises(UserError, match="were made with other settings: limits was"):
        build(workspace, data, tmp_path / "w", "--kbest-from", tmp_path / "z")


def test_sources_are_not_cut(workspace: Any, data: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--truncate-source would pair whole sources with translations of their begin"):
        build(workspace, data, tmp_path / "x", "--truncate-source")
    assert not (tmp_path / "x").exists()


def test_an_objective_that_has_changed_meanwhile(
    workspace: Any, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for number, sign in enumerate(("", "-")):
        # (of one name the interpreter would give the first, as in one process it may)
        (tmp_path / f"own{number}.py").write_text(f"def f(hypothesis, reference):\n    return {sign}len(hypothesis)\n")
    signatures: List[str] = []
    for number in (0, 1):
        _, manifest = build(workspace, data, tmp_path / f"x{number}", "--objective", f"own{number}:f")
        signatures.append(manifest["recipe"]["signature"].removeprefix(f"own{number}:f|user-defined|"))
    assert len(set(signatures)) == 2 and {len(signature) for signature in signatures} == {16}


# Searches


@pytest.mark.parametrize(
    "more, message",
    [
        (["--beam", "0"], "--beam 0: give at least 1"),
        (["--lenpen", "nan"], "--lenpen nan: give a number"),
        (["--max-len-a", "inf"], "--max-len-a inf: give a number"),
        (["--max-tokens", "3"], "give more --max-tokens"),
        (["--max-source-positions", "3"], "a sentence is too long for the model: .*--skip-invalid-size-inputs"),
        (["--num-shards", "3", "--shard-id", "7"], "--shard-id 7 of 3 shards: give one from 0 to 2"),
    ],
)
def test_searches_that_cannot_be(workspace: Any, more: List[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        workspace.generate(workspace.bases[BASE], *more)
    assert "\n" not in str(error.value)
