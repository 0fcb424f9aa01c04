"""Jobs of a Slurm cluster, through submitit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Dict, Sequence

from fairseq_tg.errors import UserError


def executor(logs: str, name: str, threads: int, parameters: Dict[str, Any], cluster: str = "slurm") -> Any:
    """Of jobs that are queued again when they are preempted or run out of time.

    Args:
        logs: directory for what the jobs print.
        threads: CPUs of a task.
        parameters: of submitit, those for Slurm with its prefix, as slurm_partition.
        cluster: `local` runs the jobs as processes here.
    """
    try:
        import submitit
    except ImportError:
        raise UserError("--slurm needs submitit: pip install 'fairseq_tg[cluster]'") from None
    made = submitit.AutoExecutor(folder=logs, cluster=cluster, slurm_max_num_timeout=100)
    made.update_parameters(name=name, cpus_per_task=threads, **parameters)
    return made


def wait_for(jobs: Sequence[Any], logs: str) -> None:
    """Until all jobs have ended well, or one has not."""
    for job in jobs:
        try:
            job.results()
        except Exception as error:
            last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise UserError(f"job {job.job_id} failed: {last} (see '{logs}'); run this again") from None


class Requeued(ABC):
    """A job that, when Slurm is about to take its machine away, is queued again as it is."""

    @abstractmethod
    def __call__(self) -> None:
        """Do the work, or what is left of it."""

    def checkpoint(self) -> Any:
        import submitit

        return submitit.helpers.DelayedSubmission(self)
