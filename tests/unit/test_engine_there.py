"""Which native engine there is, and what a machine without it, or without a Unix, is told and can do."""

from __future__ import annotations

import ctypes.util
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_tg import __version__, cli
from fairseq_tg.compiled import library as engine
from tests.conftest import REPO

FIXTURE = REPO / "tests" / "fixtures" / "fairseq-0.12.3"


def version(capsys: pytest.CaptureFixture) -> str:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code in (None, 0)
    return capsys.readouterr().out


def test_a_library_of_another_version_is_not_used() -> None:
    """Its structures would be others, and its results any."""
    with pytest.raises(engine.EngineError, match="not built for this version"):
        engine.load_library(Path(ctypes.util.find_library("m") or "libm.so.6"))


def test_the_version_names_the_engine(capsys: pytest.CaptureFixture) -> None:
    name = {engine.AVX512: "avx512", engine.AVX2: "avx2", engine.GENERIC: "generic"}[engine.best_library()]
    assert version(capsys) == f"fairseq_tg {__version__}, native engine: {name}\n"


def test_the_version_says_why_there_is_no_engine(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engine, "library_path", lambda name: tmp_path / f"{name}.so")
    remedy = "install fairseq_tg again where there is a C++ compiler"
    expected = f"fairseq_tg {__version__}, native engine: not built (it is not there); {remedy}\n"
    assert version(capsys) == expected
    monkeypatch.setattr(engine, "build_failure", lambda name: "command 'g++' failed")
    assert version(capsys) == expected.replace("it is not there", "command 'g++' failed")


@pytest.mark.parametrize(
    "built, machine, said",
    [
        ("", "avx2", "generic (avx2: no -mavx2)"),
        ("", "avx512 avx2", "generic (avx512: no -mavx512f; avx2: no -mavx2)"),
        ("avx2", "avx512 avx2", "avx2 (avx512: no -mavx512f)"),
        ("avx2", "avx2", "avx2"),
        ("", "", "generic"),
    ],
)
def test_the_version_says_why_there_is_no_better_engine(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, built: str, machine: str, said: str
) -> None:
    own, names = engine.library_path(engine.GENERIC), {engine.AVX512: "avx512", engine.AVX2: "avx2"}
    there = [engine.GENERIC, *(name for name, title in names.items() if title in built.split())]
    monkeypatch.setattr(engine, "library_path", lambda name: own if name in there else tmp_path / name)
    monkeypatch.setattr(engine, "runs_here", lambda name: names[name] in machine.split(), raising=False)
    notes = {engine.AVX512: "no -mavx512f", engine.AVX2: "no -mavx2"}
    monkeypatch.setattr(engine, "build_failure", lambda name: "" if name in there else notes[name])
    assert version(capsys) == f"fairseq_tg {__version__}, native engine: {said}\n"


def test_a_build_that_fails_installs_the_rest_and_leaves_a_note(tmp_path: Path) -> None:
    """Where there is no compiler; what `--version` then says is above."""
    words = ["setup.py", "-q", "build_ext", "--build-lib", tmp_path, "--build-temp", tmp_path / "temp"]
    no_compiler = {**os.environ, "CC": "false", "CXX": "false"}
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, cwd=REPO, env=no_compiler)
    assert done.returncode == 0, done.stderr
    made = tmp_path / "fairseq_tg" / "compiled"
    for name in (engine.GENERIC, engine.AVX2) if platform.machine() == "x86_64" else (engine.GENERIC,):
        assert "false" in (made / f"{name}.failed").read_text() and not list(made.glob(f"{name}.*.so"))


@pytest.mark.parametrize("missing", [[], ["fcntl"]], ids=["Unix", "elsewhere"])
def test_a_compiled_model_needs_neither_torch_nor_fairseq_nor_a_unix(missing: list) -> None:
    """Windows has no fcntl."""
    code = f"""
import sys
sys.modules.update(dict.fromkeys({["torch", "fairseq", *missing]}))
import fairseq_tg.compiled as compiled
print(compiled.Translator.load({str(FIXTURE / "transformer.tg")!r}).translate(["w1 w2"]))
from fairseq_tg.cli import main
main(["--version"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=REPO)
    assert done.returncode == 0, done.stderr
    translation, found = done.stdout.splitlines()
    assert translation.startswith("['W") and found.startswith(f"fairseq_tg {__version__}, native engine: ")
