"""A Slurm cluster of one machine, of this test run's own: make test-slurm."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest

from tests.conftest import Workspace, make_workspace
from tests.integration.corpora import BASE

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "srun", "scontrol", "scancel")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
KillWait=5
MinJobAge=2
MessageTimeout=2
BatchStartTimeout=1
SlurmdParameters=config_overrides
NodeName={host} CPUs=8
PartitionName=cpu Nodes={host} Default=YES
"""


def wait_for(condition: Callable[[], Any], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.2)


class Cluster:
    """The daemons, and what an administrator does."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.daemons: Dict[str, subprocess.Popen] = {}
        self.launchers: List[subprocess.Popen] = []
        for name in ("state", "spool"):
            (directory / name).mkdir()
        key = directory / "munge.key"
        key.write_bytes(secrets.token_bytes(64))
        key.chmod(0o600)
        user = subprocess.check_output(["id", "-un"], text=True).strip()
        text = CONFIGURATION.format(directory=directory, host=socket.gethostname(), ports=_free_ports(2), user=user)
        (directory / "slurm.conf").write_text(text)
        os.environ["SLURM_CONF"] = str(directory / "slurm.conf")

    def start(self) -> None:
        paths = {"key": "munge.key", "pid": "munged.pid", "log": "munged.log", "seed": "munge.seed"}
        files = [f"--{kind}-file={self.directory}/{name}" for kind, name in paths.items()]
        socket_path = self.directory / "munge.socket"
        self._start("munged", "--foreground", "--force", f"--socket={socket_path}", *files)
        wait_for(socket_path.exists, 20)
        self._start("slurmctld", "-D")
        self.start_slurmd()
        wait_for(lambda: self.machine() == "idle", 60)

    def _start(self, program: str, *flags: str) -> None:
        with open(self.directory / f"{program}.out", "a") as out:
            command = [find(program), *flags]
            self.daemons[program] = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    def start_slurmd(self) -> None:
        """Until it has told slurmctld which jobs it has; one that is this young would not be missed yet."""
        time.sleep(4)  # over the two timeouts
        before = self._slurmd_started()
        self._start("slurmd", "-D")
        wait_for(lambda: self._slurmd_started() not in (before, "", "None"), 60)

    def _slurmd_started(self) -> str:
        """When the slurmd began that slurmctld knows."""
        shown = subprocess.run(["scontrol", "show", "node"], capture_output=True, text=True).stdout
        return "".join(re.findall(r"SlurmdStartTime=(\S+)", shown))

    def kill_slurmd(self) -> None:
        if "slurmd" in self.daemons:
            self.daemons["slurmd"].kill()
            self.daemons["slurmd"].wait()

    def lose_machine(self) -> None:
        """What is left of a machine that has lost its power: nothing."""
        self.kill_slurmd()
        mine = f"SLURM_CONF={self.directory}/slurm.conf".encode()
        lost = set()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
                if mine in environment and any(word.startswith(b"SLURM_JOB_ID=") for word in environment):
                    parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                    lost |= {int(process.name), *([int(parent)] if _name(parent) == "slurmstepd" else [])}
            except OSError:
                continue  # it has just ended
        for how in (signal.SIGSTOP, signal.SIGKILL):  # at once: none lives to tell how another ended
            for number in lost:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, how)

    def machine(self) -> str:
        """Its state; a machine that does not answer has an asterisk."""
        return subprocess.run(["sinfo", "-h", "-N", "-o%T"], capture_output=True, text=True).stdout.strip()

    def queue(self) -> Dict[str, str]:
        """The states of all jobs that have not ended, by their ids."""
        lines = subprocess.check_output(["squeue", "-hr", "-o%i %T"], text=True).splitlines()
        return dict(line.split() for line in lines)

    def control(self, *words: str) -> None:
        subprocess.run(["scontrol", *words], check=True)

    def hurry(self) -> None:
        """Let jobs that were queued again begin now: Slurm lets them wait for two minutes."""
        waiting = subprocess.check_output(["squeue", "-hr", "-tPD", "-o%i %r"], text=True).splitlines()
        for job, reason in (line.split(" ", 1) for line in waiting):
            if reason == "BeginTime":
                subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])

    def end(self) -> None:
        self.lose_machine()
        for process in (*self.launchers, *self.daemons.values()):
            process.kill()
            process.wait()


def _free_ports(count: int) -> List[int]:
    listeners = [socket.socket() for _ in range(count)]
    for listener in listeners:
        listener.bind(("localhost", 0))
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def _name(process: str) -> str:
    return Path(f"/proc/{process}/comm").read_text().strip()


def find(program: str) -> str:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin") or ""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    missing = [program for program in PROGRAMS if not find(program)]
    if missing:
        pytest.exit(f"no {', '.join(missing)} here: apt-get install slurm-wlm munge (their services need not run)", 1)
    with tempfile.TemporaryDirectory(prefix="slurm-") as directory:  # a socket's path is short
        made = Cluster(Path(directory))
        try:
            made.start()
            yield made
        finally:
            made.end()


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """With the one base that is needed here."""
    return make_workspace(tmp_path_factory.mktemp("workspace"), [BASE])
