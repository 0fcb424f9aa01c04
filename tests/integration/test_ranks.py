"""Training on several ranks: processes of this machine. (As tasks of a Slurm job: tests/slurm.)"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
import torch

from fairseq_tg.loading.checkpoints import load_checkpoint, split_tensors
from tests.conftest import Workspace, run_process

BASE = "transformer"


def actors(directory: Path) -> Dict[str, torch.Tensor]:
    return split_tensors(load_checkpoint(str(directory / "checkpoint_last.pt"))["model"])[1]


def flags(workspace: Workspace, out: Path, *more: Any) -> List[Any]:
    return workspace.train_flags(BASE, "--save-dir", out, "--max-epoch", "2", "--no-epoch-checkpoints", *more)


@pytest.fixture(scope="module")
def alone(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Dict[str, torch.Tensor]:
    """The actors of one rank that takes two batches for an update."""
    out = tmp_path_factory.mktemp("alone")
    workspace.train(BASE, out, *flags(workspace, out, "--update-freq", "2")[1:])
    return actors(out)


def assert_close(ours: Dict[str, torch.Tensor], theirs: Dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-5)


def test_two_ranks_train_what_one_trains_with_their_batches(workspace, alone, tmp_path):
    done = run_process("fairseq-tg", "train", "--ranks", "2", "--", *flags(workspace, tmp_path))
    assert done.returncode == 0, done.stderr
    assert_close(actors(tmp_path), alone)


def start(workspace: Workspace, out: Path) -> Tuple[subprocess.Popen, List[int]]:
    """A long training on two ranks that has a checkpoint already: its launcher, and its ranks."""
    command = flags(workspace, out, "--max-epoch", "40")
    launcher = [str(Path(sys.executable).parent / "fairseq-tg"), "train", "--ranks", "2", "--", *map(str, command)]
    process = subprocess.Popen(launcher, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while not (out / "checkpoint_last.pt").exists() and process.poll() is None:
        time.sleep(0.02)
    return process, list(map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()))


def last_line(process: subprocess.Popen) -> str:
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    return errors.splitlines()[-1]


def test_a_killed_rank_ends_the_job_which_then_goes_on_exactly(workspace, tmp_path):
    process, ranks = start(workspace, tmp_path / "killed")
    os.kill(ranks[1], signal.SIGKILL)
    assert last_line(process) == ("fairseq_tg: error: rank 1 of 2 was killed by SIGKILL: run the same command to go on")
    for out in ("killed", "undisturbed"):
        done = run_process(
            "fairseq-tg", "train", "--ranks", "2", "--", *flags(workspace, tmp_path / out, "--max-epoch", "40")
        )
        assert done.returncode == 0, done.stderr
    ours, theirs = (actors(tmp_path / out) for out in ("killed", "undisturbed"))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_a_rank_that_was_told_to_end_has_failed(workspace, tmp_path):
    """Schedulers send SIGTERM; and so do we, to those that are left when one has failed by itself."""
    process, ranks = start(workspace, tmp_path)
    os.kill(ranks[0], signal.SIGTERM)
    assert last_line(process).endswith("rank 0 of 2 was killed by SIGTERM: run the same command to go on")


def test_a_launcher_that_was_told_to_end_ends_its_ranks(workspace, tmp_path):
    process, ranks = start(workspace, tmp_path)
    process.terminate()
    assert last_line(process).endswith("interrupted: run the same command to go on")
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
