"""fairseq-tg on a real Slurm: whatever happens to jobs, machines and the launcher, the same bytes come out.

With no second command by the user, unless it is the user's own command that was ended.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
import torch

from fairseq_tg.corpus.directory import CorpusDirectory
from fairseq_tg.loading.checkpoints import load_checkpoint
from tests.conftest import IN_PROCESS, REPO, Workspace, heed_interrupts
from tests.documented import documented
from tests.integration.corpora import BASE, BEAM, build, files, without_command
from tests.slurm.conftest import Cluster, wait_for

SHARDS = 4
HELD = "tests.slurm.held:held_objective"
#: Of the launcher: its own, nothing of Slurm
LINE = r"job \d+: \d+ [a-z ]+(, \d+ [a-z ]+)*(; [\d,]+ of [\d,]+ sentences)?"


@pytest.fixture(scope="module")
def undisturbed(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Dict[str, bytes]:
    """The same corpus, built in one process without Slurm."""
    out = tmp_path_factory.mktemp("undisturbed") / "corpus"
    build(workspace, workspace.data, out, "--objective", HELD, "--kbest-jsonl")
    return contents(out)


def contents(corpus: Path) -> Dict[str, bytes]:
    found = files(corpus)
    return {**found, "manifest.json": without_command(found["manifest.json"])}


class Launcher:
    """A command of fairseq-tg under way, with what it says in a file."""

    def __init__(self, cluster: Cluster, out: Path, *words: Any) -> None:
        self.cluster, self.out = cluster, out
        self.errors, self.hold = Path(f"{out}.errors"), Path(f"{out}.hold")
        environment = {**os.environ, "HOLD": str(self.hold)}
        program = str(Path(sys.executable).parent / "fairseq-tg")
        with open(self.errors, "w") as errors, open(f"{out}.output", "w") as output:
            self.process = subprocess.Popen(
                [program, *map(str, words)],
                stdout=output,
                stderr=errors,
                env=environment,
                cwd=REPO,
                preexec_fn=heed_interrupts,
            )
        cluster.launchers.append(self.process)

    @property
    def job(self) -> str:
        """The number of the job that it waits for."""
        wait_for(lambda: self.process.poll() is not None or re.search(r"^job \d+:", self.said(), re.M))
        found = re.search(r"^job (\d+):", self.said(), re.M)
        assert found, self.said()
        return found[1]

    def said(self) -> str:
        return self.errors.read_text()

    def reach_middle(self) -> Launcher:
        """Until every shard has begun, and waits to be let go on by `finish`."""
        blocks = CorpusDirectory(str(self.out)).blocks
        wait_for(lambda: self.process.poll() is not None or len(blocks.numbers()) >= 2 * SHARDS)
        assert self.process.poll() is None, self.said()
        return self

    def finish(self) -> Tuple[int, List[str]]:
        """Let it go on; its status and the lines it said."""
        self.hold.unlink(missing_ok=True)
        end = time.monotonic() + 900
        while self.process.poll() is None and time.monotonic() < end:
            self.cluster.hurry()
            time.sleep(0.5)
        self.process.kill()
        return self.process.wait(), self.said().splitlines()

    def ends(self, task: int = 0) -> int:
        """How often Slurm has ended a job of it, to begin it again."""
        log = Path(f"{self.out}.logs/{self.job}_{task}.log").read_text(errors="replace")  # a bar, ended in mid-letter
        return len(re.findall(r"\*\*\* JOB \d+ .* DUE TO JOB REQUEUE", log))


def launch(cluster: Cluster, workspace: Workspace, out: Path, *options: str) -> Launcher:
    """A build that comes to its middle."""
    own = {"64": SHARDS, "data-bin": workspace.data, "base.pt": workspace.bases[BASE], "pseudo-bin": out, "35": BEAM}
    words = documented("docs/scaling.md", "fairseq-tg corpus build", {**own, "16": 4})[1:]
    end = words.index("--")
    words[end:end] = options
    Path(f"{out}.hold").touch()
    return Launcher(cluster, out, *words, "--max-len-b", "20", "--kbest-block", "6", "--objective", HELD, "--cpu")


def assert_good(launcher: Launcher, undisturbed: Dict[str, bytes]) -> None:
    status, lines = launcher.finish()
    assert status == 0, lines
    assert all(re.fullmatch(LINE, line) for line in lines), lines
    assert contents(launcher.out) == undisturbed


def test_requeued_and_told_to_end(cluster, workspace, undisturbed, tmp_path):
    """Preemption does what scontrol requeue does; a signal of Slurm reaches the command and not the job."""
    launcher = launch(cluster, workspace, tmp_path / "corpus").reach_middle()
    cluster.control("requeue", f"{launcher.job}_0")
    subprocess.run(["scancel", "--signal=TERM", f"{launcher.job}_1"], check=True)
    assert_good(launcher, undisturbed)
    assert [launcher.ends(task) for task in range(SHARDS)] == [1, 1, 0, 0]


def test_out_of_time(cluster, workspace, undisturbed, tmp_path):
    """One job's end comes nearer in the middle; it has itself queued again. (Slurm looks every 30 seconds.)"""
    launcher = launch(cluster, workspace, tmp_path / "corpus", "--slurm-option", "time=60").reach_middle()
    job = f"{launcher.job}_2"
    end = datetime.now() + timedelta(seconds=50)
    cluster.control("update", f"JobId={job}", f"EndTime={end:%Y-%m-%dT%H:%M:%S}")
    wait_for(lambda: cluster.queue()[job] == "PENDING")
    assert datetime.now() < end
    cluster.control("update", f"JobId={job}", "TimeLimit=60")
    assert_good(launcher, undisturbed)
    assert [launcher.ends(task) for task in range(SHARDS)] == [0, 0, 1, 0]


def test_a_launcher_that_was_cancelled_waits_again_for_its_jobs(cluster, workspace, undisturbed, tmp_path):
    first = launch(cluster, workspace, tmp_path / "corpus").reach_middle()
    number = first.job
    first.process.send_signal(signal.SIGINT)
    assert first.process.wait(60) == 1
    last = first.said().splitlines()[-1]
    assert last.startswith(f"fairseq_tg: error: job {number} goes on: run the same command to wait for it again")
    other = launch(cluster, workspace, tmp_path / "corpus", "--shards", "2")
    assert other.process.wait(300) == 1
    assert f"job {number} is at work for" in other.said() and "with another command" in other.said()
    again = launch(cluster, workspace, tmp_path / "corpus")
    assert again.job == number
    again.process.kill()  # as when the machine it runs on is started anew
    third = launch(cluster, workspace, tmp_path / "corpus")
    assert third.job == number
    assert_good(third, undisturbed)
    submitted = sorted((tmp_path / "corpus.logs").iterdir())
    assert launch(cluster, workspace, tmp_path / "corpus").finish() == (0, [])
    assert sorted((tmp_path / "corpus.logs").iterdir()) == submitted  # it was finished


def test_slurmd_is_killed_and_the_machine_is_lost(cluster, workspace, undisturbed, tmp_path):
    launcher = launch(cluster, workspace, tmp_path / "corpus").reach_middle()
    cluster.kill_slurmd()  # the jobs live on without it
    cluster.start_slurmd()
    assert cluster.machine() == "mixed"
    assert set(cluster.queue().values()) == {"RUNNING"}
    cluster.lose_machine()
    cluster.start_slurmd()
    assert_good(launcher, undisturbed)


def actors(out: Path) -> Dict[str, torch.Tensor]:
    return load_checkpoint(str(out / "checkpoint_last.pt"))["model"]


def test_training_that_is_requeued_goes_on(cluster, workspace, tmp_path):
    """Two ranks; the weights are those of two processes here, bit by bit."""

    def train(out: Path, on_slurm: bool = False) -> Launcher:
        own = {"pseudo-bin": workspace.data, "base.pt": workspace.bases[BASE], "checkpoints": out, "4000": 200}
        sizes = {"32": 2, "4": 1, "nodes=4": "nodes=1", "64": 4, "tg_transformer": f"tg_{BASE}"}
        words = documented("docs/scaling.md", "fairseq-tg train", {**own, **sizes})[1:]
        if not on_slurm:
            del words[words.index("--slurm") : words.index("--")]
        more = ["--max-epoch", "60", "--no-epoch-checkpoints", "--log-format", "none", *IN_PROCESS]
        return Launcher(cluster, out, *words, *more)

    launcher = train(tmp_path / "requeued", on_slurm=True)
    wait_for((tmp_path / "requeued" / "checkpoint_last.pt").exists)
    cluster.control("requeue", f"{launcher.job}_0")
    status, lines = launcher.finish()
    assert status == 0 and all(re.fullmatch(LINE, line) for line in lines), lines
    assert launcher.ends() == 1
    local = train(tmp_path / "local")
    assert local.finish()[0] == 0, local.said()
    ours, theirs = actors(tmp_path / "requeued"), actors(tmp_path / "local")
    assert ours.keys() == theirs.keys() and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_failures_are_named_in_one_line(cluster, workspace, tmp_path):
    bad = Launcher(
        cluster,
        tmp_path / "bad",
        *f"corpus build --shards 2 --slurm -- {workspace.data} --gen-subset train --path".split(),
        workspace.bases[BASE],
        "--kbest-dir",
        tmp_path / "bad",
        "--beam",
        "999",
    )
    status, lines = bad.finish()
    assert status == 1 and re.match(r"fairseq_tg: error: job \d+_0 failed: --beam 999 is too large", lines[-1]), lines
    nowhere = launch(cluster, workspace, tmp_path / "nowhere", "--slurm-option", "partition=nowhere")
    status, lines = nowhere.finish()
    assert status == 1 and len(lines) == 1 and "sbatch failed: " in lines[0] and "invalid partition" in lines[0]
    cancelled = launch(cluster, workspace, tmp_path / "cancelled").reach_middle()
    subprocess.run(["scancel", cancelled.job], check=True)
    status, lines = cancelled.finish()
    assert status == 1 and f"job {cancelled.job}_0 ended as CANCELLED" in lines[-1], lines
