"""Training on several ranks: processes of this machine. (As tasks of a Slurm job: tests/slurm.)"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest
import torch

from fairseq_tg.loading.checkpoints import load_checkpoint, split_tensors
from tests.conftest import Workspace, run_forked, run_process
from tests.forks import Forked, words_of

BASE = "transformer"


def actors(checkpoint: Path) -> Dict[str, torch.Tensor]:
    return split_tensors(load_checkpoint(str(checkpoint))["model"])[1]


def flags(workspace: Workspace, out: Path, *more: Any) -> List[Any]:
    return workspace.train_flags(BASE, "--save-dir", out, "--max-epoch", "10", *more)


@pytest.fixture(scope="module")
def undisturbed(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of two ranks that nothing happened to."""
    out = tmp_path_factory.mktemp("undisturbed")
    done = run_process("fairseq-tg", "train", "--ranks", "2", "--", *flags(workspace, out))
    assert done.returncode == 0, done.stderr
    return out


def test_two_ranks_train_what_one_trains_with_their_batches(workspace, undisturbed, tmp_path):
    workspace.train(BASE, tmp_path, *flags(workspace, tmp_path, "--max-epoch", "2", "--update-freq", "2")[1:])
    ours, alone = (actors(out / "checkpoint2.pt") for out in (undisturbed, tmp_path))
    assert ours.keys() == alone.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, alone[name], rtol=0, atol=1e-5)


def ranks_of(launcher: subprocess.Popen) -> List[int]:
    return list(map(int, Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()))


def last_line(process: subprocess.Popen) -> str:
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    return errors.splitlines()[-1]


def test_a_killed_rank_ends_the_job_which_then_goes_on_exactly(workspace, undisturbed, tmp_path):
    command = ["train", "--ranks", "2", "--", *flags(workspace, tmp_path)]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = Forked(words_of("fairseq-tg", *command), text=True, **pipes)
    while not (tmp_path / "checkpoint_last.pt").exists() and process.poll() is None:
        time.sleep(0.02)
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    assert last_line(process) == ("fairseq_tg: error: rank 1 of 2 was killed by SIGKILL: run the same command to go on")
    assert not (tmp_path / "checkpoint10.pt").exists()
    done = run_forked("fairseq-tg", *command)
    assert done.returncode == 0, done.stderr
    ours, theirs = (actors(out / "checkpoint_last.pt") for out in (tmp_path, undisturbed))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


#: A launcher of ranks that do nothing but say that they are there: how they end is not for fairseq to say
IDLE = """
import sys
from fairseq_tg import cli
from fairseq_tg.launch import ranks

def idle(*words):
    assert "torch" not in sys.modules, "it takes nothing of fairseq to wait for ranks"
    return [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]

ranks.fairseq = idle
cli.main(["train", "--ranks", "2", "--", "data", "--save-dir", "checkpoints"])
"""


@pytest.fixture
def idle() -> Iterator[Tuple[subprocess.Popen, List[int]]]:
    """A launcher, and its ranks."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", IDLE], text=True, **pipes) as process:
        for _ in range(2):
            process.stdout.readline()
        yield process, ranks_of(process)


def test_a_rank_that_was_told_to_end_has_failed(idle):
    """Schedulers send SIGTERM; and so do we, to those that are left when one has failed by itself."""
    process, ranks = idle
    os.kill(ranks[0], signal.SIGTERM)
    assert last_line(process).endswith("rank 0 of 2 was killed by SIGTERM: run the same command to go on")


def test_a_launcher_that_was_told_to_end_ends_its_ranks(idle):
    process, ranks = idle
    process.terminate()
    assert last_line(process).endswith("interrupted: run the same command to go on")
    assert len(ranks) == 2 and not any(Path(f"/proc/{rank}").exists() for rank in ranks)
