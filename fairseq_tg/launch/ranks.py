"""Training on several ranks without GPUs: processes on this machine, or tasks of a Slurm job.

On a CPU, fairseq-train alone starts no process at all for a world of two and ends with status 0, and takes the size of
the world from the number of GPUs. Here every rank is started with its place in the world, and if one fails, all do.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Dict, List

from fairseq_tg.errors import UserError
from fairseq_tg.launch.processes import Command, fairseq, run_all
from fairseq_tg.launch.slurm import Job

#: What the launcher decides; of a flag that is given twice fairseq takes the last, and ours are last
OWN_FLAGS = ("--distributed-world-size", "--distributed-rank", "--distributed-init-method", "--distributed-backend")


def train_locally(flags: List[str], ranks: int, threads: int) -> None:
    """Run fairseq-train in as many processes as there are ranks; if one ends badly, all end, and it is named."""
    address = f"localhost:{_free_port()}"
    words = [[*_train(flags), *_place(rank, ranks, address)] for rank in range(ranks)]
    run_all([Command(f"rank {rank} of {ranks}", words[rank]) for rank in range(ranks)], threads)


def train_on_slurm(flags: List[str], ranks: int, threads: int, logs: str, options: Dict[str, str]) -> None:
    """Submit one job with a task for each rank, and wait for it. Preempted or out of time, it is queued again.

    Args:
        logs: directory for what the job prints.
        options: of sbatch.
    """
    nodes = options.get("nodes", "1")
    if not nodes.isdigit() or ranks % int(nodes):
        raise UserError(f"--ranks {ranks} on {nodes} nodes: give a multiple of the nodes")
    options = {**options, "nodes": nodes, "ntasks-per-node": str(ranks // int(nodes))}
    # All ranks know the job's number, and no other job on the first node has it
    place = _place("$SLURM_PROCID", ranks, "$FIRST_NODE:$((20000 + SLURM_JOB_ID % 20000))")
    Job("train", Path(logs), _train(flags), place, threads, options).run()


def _train(flags: List[str]) -> List[str]:
    for flag in flags:
        if flag.split("=")[0] in OWN_FLAGS:
            raise UserError(f"{flag}: leave it out, --ranks sets it")
    return fairseq("train", *flags, "--cpu")


def _place(rank: Any, ranks: int, address: str) -> List[str]:
    if ranks == 1:
        return []
    place = ["--distributed-world-size", str(ranks), "--distributed-rank", str(rank)]
    place += ["--distributed-init-method", f"tcp://{address}", "--distributed-no-spawn"]
    # fairseq would send a checkpoint from rank to rank as a pickle, which torch refuses to read
    place += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp", "--load-checkpoint-on-all-dp-ranks"]
    return place


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])
