"""What went wrong when somebody tried things that no other list of tests has: each is one line, or simply works."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Tuple

import pytest
from fairseq.data import Dictionary

from fairseq_tg import cli
from fairseq_tg.errors import UserError
from fairseq_tg.recipe.options import Recipe
from fairseq_tg.recipe.run import open_base
from fairseq_tg.subwords import guess_subwords
from tests.conftest import IN_PROCESS, TRANSFORMER, Workspace, heed_interrupts, hypotheses, run, run_tg
from tests.integration.corpora import build, lists

PROGRAM = Path(sys.executable).parent / "fairseq-tg"


@pytest.fixture(scope="module")
def compiled(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compiled") / "model.tg"
    run_tg("compile", workspace.bases["transformer"], out, "--data", workspace.data, "--no-subword")
    return out


@pytest.mark.parametrize(
    "command, status, message",
    [
        ("echo w1 | {tg} translate {model} > /dev/full", 1, "cannot write: No space left on device"),
        ("{tg} explain {model} w1 > /dev/full", 1, "cannot write: No space left on device"),
        ("{tg} explain {model} w1 | true", 0, ""),
        ("echo w1 | {tg} translate {model} >&-", 1, "standard input or output is closed"),
        ("{tg} translate {model} <&-", 1, "standard input or output is closed"),
        ("{tg} explain {model} w1 >&-", 1, "standard output is closed"),
        ("{tg} explain {model} w1 --svg /dev/stdout", 1, "cannot write '/dev/stdout': it is no file"),
        ("{tg} explain {model} w1 --svg /dev/null", 1, "cannot write '/dev/null': it is no file"),
        ("mkfifo {model}.pipe; {tg} explain {model} w1 --svg {model}.pipe", 1, "it is no file"),
        ("{tg} explain {model} w1 --svg {model}.none/a.svg", 1, "there is no directory"),
        ("PYTHONIOENCODING=ascii {tg} explain {model} 'w1 \u00e4' --json | python -m json.tool", 0, ""),
        ("PYTHONIOENCODING=ascii {tg} explain {model} 'w1 \u00e4'", 0, ""),
        ("ulimit -f 0; TMPDIR=/nonexistent {tg} serve {model} --port 0", 1, "there must be room for it in TMPDIR"),
    ],
)
def test_outputs_and_places_that_fail(compiled: Path, command: str, status: int, message: str) -> None:
    line = command.format(tg=PROGRAM, model=compiled)
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if line]
    assert done.returncode == status and len(said) == bool(message)
    assert all(line.startswith("fairseq_tg: error: ") and message in line for line in said)


@pytest.mark.parametrize(
    "name, content",
    [
        ("dict.xx.txt", b"w1 5\nw2\n"),
        ("dict.xx.txt", b"w1 5\nw1 5\n"),
        ("dict.xx.txt", b"w1 many\n"),
        ("dict.xx.txt", b"\xff\xfe 5\n"),
        ("valid.xx-yy.xx.idx", b""),
        ("valid.xx-yy.xx.idx", b"nonsense" * 20),
        ("valid.xx-yy.xx.bin", b"\x01"),
    ],
)
def test_damaged_data_is_one_line(workspace: Workspace, tmp_path: Path, name: str, content: bytes) -> None:
    shutil.copytree(workspace.data, tmp_path / "bin")
    (tmp_path / "bin" / name).write_bytes(content)
    with pytest.raises(UserError, match=r"is damaged .*: binarize the data again|cannot read"):
        run_tg(
            *(
                "report",
                "--data",
                tmp_path / "bin",
                "--base",
                workspace.bases["transformer"],
                "--out",
                tmp_path / "out",
            ),
            *("--subset", "valid", "--oracle-beam", "0"),
        )


@pytest.mark.parametrize("kind", ["cached", "lazy"])
def test_data_of_older_formats(workspace: Workspace, tmp_path: Path, kind: str) -> None:
    """fairseq still reads them; so do a corpus build and a report."""
    texts = write_texts(workspace, tmp_path)
    dictionaries = ["--srcdict", f"{workspace.data}/dict.xx.txt", "--tgtdict", f"{workspace.data}/dict.yy.txt"]
    made = {}
    for name in (kind, "mmap"):
        run(
            *("fairseq-preprocess", "-s", "xx", "-t", "yy", *dictionaries, "--trainpref", texts, "--validpref", texts),
            *("--destdir", tmp_path / name, "--dataset-impl", name, "--workers", "1"),
        )
        build(workspace, str(tmp_path / name), tmp_path / f"{name}-corpus", "--kbest-jsonl")
        made[name] = lists(tmp_path / f"{name}-corpus")
    assert made[kind] == made["mmap"] and len(made[kind]) == 3
    report = ("report", "--data", tmp_path / kind, "--base", workspace.bases["transformer"], "--subset", "valid")
    assert "BLEU" in run_tg(*report, "--out", tmp_path / "report", "--oracle-beam", "0")
    with pytest.raises(UserError, match="a corpus is built from binarized data"):
        run(
            *("fairseq-preprocess", "-s", "xx", "-t", "yy", *dictionaries, "--trainpref", texts, "--validpref", texts),
            *("--destdir", tmp_path / "raw", "--dataset-impl", "raw", "--workers", "1"),
        )
        build(workspace, str(tmp_path / "raw"), tmp_path / "raw-corpus", "--dataset-impl", "raw")


def write_texts(workspace: Workspace, directory: Path) -> Path:
    for lang in ("xx", "yy"):
        words = Dictionary.load(f"{workspace.data}/dict.{lang}.txt").symbols[4:8]
        (directory / f"text.{lang}").write_text("".join(f"{word} {words[0]}\n" for word in words[:3]))
    return directory / "text"


#: A command as launchers start them: it says who it is and what it was told, and sleeps, whatever it is asked to do
SLEEPER = """
import json, os, pathlib, signal, time
def main():
    for number in map(int, os.environ.get("DEAF_TO", "").split()):
        signal.signal(number, signal.SIG_IGN)
    pathlib.Path("environment.new").write_text(json.dumps(dict(os.environ)))
    pathlib.Path("pid.new").write_text(str(os.getpid()))
    os.rename("environment.new", "environment")
    os.rename("pid.new", "pid")
    time.sleep(60)
"""
LAUNCHER = """
from fairseq_tg.errors import report_in_one_line
report_in_one_line()
from fairseq_tg.launch.processes import Command, python, run_all
run_all([Command("a command", python("sleeper", "main", "sleeper"))], 1)
"""


def launch(directory: Path, **environment: str) -> Tuple[subprocess.Popen, int]:
    """A launcher, and the number of the process that it has started."""
    (directory / "sleeper.py").write_text(SLEEPER)
    path = os.pathsep.join([str(directory), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER],
        **{"cwd": directory, "stderr": subprocess.PIPE, "text": True, "preexec_fn": heed_interrupts},
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
    deadline = time.monotonic() + 30
    while not (directory / "pid").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    return process, int((directory / "pid").read_text())


def assert_ends(pid: int) -> None:
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_hung_up_launcher_leaves_no_process_behind(tmp_path: Path) -> None:
    process, command = launch(tmp_path)
    process.send_signal(signal.SIGHUP)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1 and "interrupted: run the same command to go on" in errors
    assert_ends(command)


def test_a_killed_launcher_leaves_no_process_behind(tmp_path: Path) -> None:
    """Its lock is free at once: started again, there would be two trainings in one directory."""
    process, command = launch(tmp_path)
    process.kill()
    process.communicate(timeout=30)
    assert_ends(command)


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_launcher_that_is_told_twice_ends_at_once(tmp_path: Path, second: signal.Signals) -> None:
    process, command = launch(tmp_path, DEAF_TO=f"{signal.SIGTERM} {signal.SIGINT}")
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None  # it waits for a command that is deaf
    process.send_signal(second)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1 and time.monotonic() - began < 8
    assert errors.splitlines() == ["fairseq_tg: error: interrupted: run the same command to go on"]
    assert_ends(command)


def test_a_launcher_within_another_has_a_world_of_its_own(tmp_path: Path) -> None:
    """Inside torchrun or a job of Kubernetes, with several GPUs: a training would wait for ranks that never come."""
    outer = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "WORLD_SIZE": "4", "RANK": "0", "LOCAL_RANK": "0"}
    process, _ = launch(tmp_path, **outer)
    process.terminate()
    process.communicate(timeout=30)
    told = json.loads((tmp_path / "environment").read_text())
    assert not outer.keys() & told.keys() and told["OMP_NUM_THREADS"] == "1"


def test_a_report_has_the_norms_of_a_training_whatever_is_to_be_logged(tmp_path: Path) -> None:
    process, _ = launch(tmp_path, LOGLEVEL="ERROR")  # with which fairseq would write no log of the training
    process.terminate()
    process.communicate(timeout=30)
    assert "LOGLEVEL" not in json.loads((tmp_path / "environment").read_text())


def test_an_interrupt_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it comes: in the middle of a report, say, or while torch is imported."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "read_options", interrupt)
    with pytest.raises(UserError, match="interrupted: run the same command to go on"):
        run_tg("run", "--data", "data", "--base", "base.pt", "--out", "out")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS], ids=errno.errorcode.get)
def test_a_place_that_is_not_ours_is_one_line(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A log of a shard, say, when a run is started again by somebody else. (Root, who may do anything, sees none.)"""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), b"out/pseudo-bin.logs/shard-0-of-1.log")

    monkeypatch.setattr(cli, "read_options", refuse)
    message = (
        f"'out/pseudo-bin.logs/shard-0-of-1.log': {os.strerror(number)}; give a place where you may read and write"
    )
    with pytest.raises(UserError, match=message):
        run_tg("run", "--data", "data", "--base", "base.pt", "--out", "out")


def test_averages_in_training_are_refused_by_name(workspace: Workspace, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--store-ema is not for actors"):
        workspace.train("transformer", tmp_path / "tg", "--store-ema")
    assert not (tmp_path / "tg" / "checkpoint_last.pt").exists()


def test_paths_that_begin_with_a_dash_are_no_options(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-bin").symlink_to(workspace.data)
    Path("-base.pt").symlink_to(workspace.bases["transformer"])
    recipe = open_base(Recipe(data="-bin", base="-base.pt", out="-out"))[0]
    assert [recipe.data, recipe.base, recipe.out] == [str(tmp_path / name) for name in ("-bin", "-base.pt", "-out")]


def test_a_base_without_attention_is_refused_before_its_corpus(workspace: Workspace, tmp_path: Path) -> None:
    base = tmp_path / "base" / "checkpoint_last.pt"
    sizes = ["--encoder-embed-dim", "8", "--decoder-embed-dim", "8", "--no-cross-attention"]
    run(
        *(
            "fairseq-train",
            workspace.data,
            "--task",
            "translation",
            *TRANSFORMER.split(),
            *sizes,
            "--optimizer",
            "adam",
        ),
        *("--max-update", "1", "--max-tokens", "200", "--save-dir", base.parent, "--log-format", "none", *IN_PROCESS),
    )
    assert hypotheses(workspace.generate(str(base), "--beam", "2"))
    with pytest.raises(UserError, match="has no encoder-decoder attention: there is no place for an actor"):
        open_base(Recipe(data=workspace.data, base=str(base), out=str(tmp_path / "out")))


def test_characters_of_sentencepiece_are_subwords() -> None:
    assert guess_subwords(["<s>", "\u2581", *"abcdefghijklmnopqrstuvwxyz"]) == "sentencepiece"
    assert guess_subwords([*"abcdefghijklmnopqrstuvwxyz"]) is None
