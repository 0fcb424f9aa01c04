"""Training on several ranks without GPUs: processes on this machine, or tasks of a Slurm job.

On a CPU, fairseq-train alone starts no process at all for a world of two and ends with status 0, and takes the size of
the world from the number of GPUs. Here every rank is started with its place in the world, and if one fails, all do.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List

from fairseq_tg.errors import UserError
from fairseq_tg.launch.slurm import Requeued, executor, wait_for

#: What the launcher decides; of a flag that is given twice fairseq takes the last, and ours are last
OWN_FLAGS = ("--distributed-world-size", "--distributed-rank", "--distributed-init-method", "--distributed-backend")


@dataclass
class World:
    """How many ranks there are, and where the first of them listens."""

    size: int
    address: str  # host:port
    threads: int  # of each rank

    def command(self, flags: List[str], rank: int) -> List[str]:
        plugin = ["--user-dir", str(Path(__file__).parent)]
        place = ["--distributed-world-size", str(self.size), "--distributed-rank", str(rank)]
        place += ["--distributed-init-method", f"tcp://{self.address}", "--distributed-no-spawn"]
        # fairseq would send a checkpoint from rank to rank as a pickle, which torch refuses to read
        place += [
            "--distributed-backend",
            "gloo",
            "--ddp-backend",
            "legacy_ddp",
            "--load-checkpoint-on-all-dp-ranks",
            "--cpu",
        ]
        return [sys.executable, "-m", "fairseq_cli.train", *plugin, *flags, *(place if self.size > 1 else ["--cpu"])]

    def environment(self) -> Dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": str(self.threads)}


def train_locally(flags: List[str], ranks: int, threads: int) -> None:
    """Run fairseq-train in as many processes as there are ranks; if one ends badly, all end, and it is named."""
    _check(flags, ranks)
    world = World(ranks, f"localhost:{_free_port()}", threads)
    processes: List[subprocess.Popen] = []
    try:
        for rank in range(ranks):
            processes.append(subprocess.Popen(world.command(flags, rank), env=world.environment()))
        while any(process.poll() is None for process in processes) and not any(p.poll() for p in processes):
            time.sleep(0.1)
    finally:
        _end(processes)
    for rank, process in enumerate(processes):
        if process.returncode and process.returncode != -signal.SIGTERM:  # the others were told to end
            raise UserError(f"rank {rank} of {ranks} {_describe(process.returncode)}: run the same command to go on")


def train_on_slurm(
    flags: List[str], ranks: int, threads: int, logs: str, parameters: Dict[str, Any], cluster: str = "slurm"
) -> None:
    """Submit one job with a task for each rank, and wait for it. Preempted or out of time, it is queued again."""
    _check(flags, ranks)
    nodes = int(parameters.get("slurm_nodes", 1))
    if ranks % nodes:
        raise UserError(f"--ranks {ranks} on {nodes} nodes: give a multiple of the nodes")
    parameters = {**parameters, "tasks_per_node": ranks // nodes}
    wait_for([executor(logs, "fairseq-tg-train", threads, parameters, cluster).submit(RankJob(flags, threads))], logs)


@dataclass
class RankJob(Requeued):
    """What every task of a job runs: its own rank. Queued again, it goes on from the last checkpoint."""

    flags: List[str]
    threads: int

    def __call__(self) -> None:
        import submitit

        job = submitit.JobEnvironment()
        # All tasks know the job's number, and no other job on the first node has it
        port = 20000 + int(job.job_id.split("_")[0]) % 20000
        world = World(job.num_tasks, f"{job.hostnames[0]}:{port}", self.threads)
        subprocess.run(world.command(self.flags, job.global_rank), env=world.environment(), check=True)


def _check(flags: List[str], ranks: int) -> None:
    if ranks < 1:
        raise UserError(f"--ranks {ranks}: give at least 1")
    for flag in flags:
        if flag.split("=")[0] in OWN_FLAGS:
            raise UserError(f"{flag}: leave it out, --ranks sets it")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


def _end(processes: List[subprocess.Popen]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _describe(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"failed with status {status}"
