"""A command line as jobs of a Slurm cluster.

Whether a job is alive Slurm alone says, asked with squeue, which needs no accounting: a process that was ended by
SIGTERM has failed, or has been preempted and is in the queue again. The jobs outlive the process that submitted them.
Started again, it finds them by their name and waits for them.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List

from fairseq_tg.errors import UserError
from fairseq_tg.files import make_directory
from fairseq_tg.launch.processes import failure

#: What a job runs. Slurm queues it again when it is preempted or has lost its machine. Shortly before its time is out
#: (USR2), or when Slurm has ended the command but not the job (143: SIGTERM), it queues itself again; not for ever.
SCRIPT = """#!/bin/bash
me=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID  # one of the tasks has the whole array's SLURM_JOB_ID
again() {{ [ "${{SLURM_RESTART_COUNT:-0}}" -lt 100 ] && scontrol requeue $me && sleep 60; }}
rm -f {logs}/$me.status
export OMP_NUM_THREADS={threads} FIRST_NODE=$(hostname)
trap again USR2
srun --kill-on-bad-exit=1 --cpus-per-task={threads} bash -c {command} &
while wait $!; status=$?; kill -0 $! 2> /dev/null; do :; done
[ $status = 143 ] && sleep 5 && again  # a job that was cancelled does not live that long
echo $status > {logs}/$me.status
exit $status
"""
#: States that a job does not leave; all others are on the way to one of them
ENDED = {
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"),
    *("DEADLINE", "REVOKED"),
}


@dataclass
class Job:
    """A command line that Slurm runs as an array of jobs.

    Args:
        name: what it does.
        logs: directory for what the jobs print.
        words: the command line.
        place: more words of it, in which Slurm's variables say which task of the array and which rank of it this is.
        threads: of a process.
        options: of sbatch, without the dashes.
        size: of the array.
    """

    name: str
    logs: Path
    words: List[str]
    place: List[str]
    threads: int
    options: Dict[str, str]
    size: int = 1

    def run(self, progress: Callable[[], str] = str) -> None:
        """Submit it, unless it is in the queue already, and wait until all of it has ended well, or some has not.

        Args:
            progress: says how far it is.
        """
        logs = self.logs.resolve()
        command = f"exec {shlex.join(self.words)} {' '.join(self.place)}"
        script = SCRIPT.format(logs=shlex.quote(str(logs)), threads=self.threads, command=shlex.quote(command))
        here, what = (hashlib.sha256(text.encode()).hexdigest()[:8] for text in (str(logs), f"{self.size}{script}"))
        alive = {name: job for job, state, name in _queue() if state not in ENDED and f"-{here}-" in name}
        name = f"fairseq-tg-{self.name}-{here}-{what}"
        if any(other != name for other in alive):
            number = next(iter(alive.values())).split("_")[0]
            raise UserError(
                f"job {number} is at work for '{self.logs}' with another command: wait, or end it with scancel {number}"
            )
        number = alive[name].split("_")[0] if alive else self._submit(script, name)
        try:
            self._wait(number, progress)
        except KeyboardInterrupt:
            raise UserError(
                f"job {number} goes on: run the same command to wait for it again, or end it with scancel {number}"
            ) from None

    def _submit(self, script: str, name: str) -> str:
        make_directory(self.logs)
        options = dict(self.options)
        at_once = options.pop("array-parallelism", str(self.size))
        own = {
            "signal": "B:USR2@30",  # seconds before the end; Slurm may be half a minute early
            "cpus-per-task": str(self.threads),
            **options,
            "job-name": name,
            "array": f"0-{self.size - 1}%{at_once}",
            "output": f"{self.logs.resolve()}/%A_%a.log",
            "open-mode": "append",
        }
        flags = [f"--{option}={value}" for option, value in own.items()]
        return _ask("sbatch", "--parsable", "--requeue", *flags, text=script).split(";")[0].strip()

    def _wait(self, number: str, progress: Callable[[], str]) -> None:
        tasks = [f"{number}_{task}" for task in range(self.size)]
        said, said_at, begun = "", 0.0, time.monotonic()
        while True:
            now = time.monotonic()
            try:
                known = {job: state for job, state, _ in _queue()}
                states = {task: known.get(task) or self._forgotten(task) for task in tasks}
                counts = Counter(state.lower().replace("_", " ") for state in states.values())
                line = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
            except UserError as error:  # it comes back; the jobs go on without it
                states, line = {}, error.args[0]
            if line != said or now - said_at > 60:
                print(f"job {number}: {line}{progress()}", file=sys.stderr, flush=True)
                said, said_at = line, now
            if states and ENDED.issuperset(states.values()):
                break
            time.sleep(min(15, 1 + (now - begun) / 30))
        for task, state in states.items():
            if state != "COMPLETED":
                how = "failed" if state == "FAILED" else f"ended as {state}"
                raise failure(f"job {task}", how, self.logs / f"{task}.log")

    def _forgotten(self, task: str) -> str:
        """How a job ended that Slurm no longer knows, by what it left."""
        status = self.logs / f"{task}.status"
        return "COMPLETED" if status.exists() and status.read_text().strip() == "0" else "FAILED"


def _queue() -> List[List[str]]:
    """Id, state and name of this user's jobs, also of those that have ended a short while ago."""
    shown = _ask("squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i %T %j")
    return [line.split(" ", 2) for line in shown.splitlines()]


def _ask(*command: str, text: str = "") -> str:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True)
    except FileNotFoundError:
        raise UserError(f"there is no {command[0]} here: leave out --slurm, or run this where Slurm is") from None
    if done.returncode:
        raise UserError(f"{command[0]} failed: {done.stderr.strip() or done.returncode}")
    return done.stdout
