"""The shards of one build, run side by side on this machine or as jobs of a Slurm cluster, and merged at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

from tqdm import tqdm

from fairseq_tg.corpus.assemble import merge
from fairseq_tg.corpus.directory import CorpusDirectory
from fairseq_tg.errors import UserError
from fairseq_tg.files import make_directory
from fairseq_tg.launch.slurm import Requeued, executor, wait_for


@dataclass
class ShardJob(Requeued):
    """One shard, as a process; called again after it was preempted, it goes on where it was."""

    flags: List[str]  # of fairseq-generate
    shard: int
    shards: int
    threads: int

    def command(self) -> List[str]:
        plugin = ["--user-dir", str(Path(__file__).parents[1]), "--task", "tg_translation"]
        shard = ["--quiet", "--kbest-shard", f"{self.shard}/{self.shards}"]
        # Of a flag that is given twice the last one counts: the user's own go behind the plugin's
        return [sys.executable, "-m", "fairseq_cli.generate", *plugin, *self.flags, *shard]

    def environment(self) -> Dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": str(self.threads)}

    def __call__(self) -> None:
        subprocess.run(self.command(), env=self.environment(), check=True)


def build_locally(flags: List[str], directory: str, shards: int, threads: Optional[int] = None) -> Dict[str, Any]:
    """Run a process for each shard, with a share of the cores by default; show the progress of them all, and merge."""
    threads = threads or max(1, (os.cpu_count() or 1) // shards)
    jobs = [ShardJob(flags, shard, shards, threads) for shard in range(shards)]
    logs = Path(f"{directory}.logs")
    make_directory(logs)
    names = [logs / f"shard-{job.shard}-of-{shards}.log" for job in jobs]
    processes = []
    try:
        for job, name in zip(jobs, names):
            with open(name, "w") as log:
                processes.append(
                    subprocess.Popen(job.command(), env=job.environment(), stdout=log, stderr=subprocess.STDOUT)
                )
        _watch(processes, CorpusDirectory(directory))
        failed = [name for process, name in zip(processes, names) if process.poll()]
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if failed:
        last = (failed[0].read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        reason = last.replace("fairseq_tg: error: ", "")
        raise UserError(f"a shard failed: {reason} (see '{failed[0]}'); run this again")
    return _complete(directory)


def build_on_slurm(
    flags: List[str], directory: str, shards: int, threads: int, parameters: Dict[str, Any], cluster: str = "slurm"
) -> Dict[str, Any]:
    """Submit a job array, wait for it, and merge. Jobs that are preempted or time out are queued again, and go on."""
    logs = f"{directory}.logs"
    jobs_here = executor(logs, "fairseq-tg-corpus", threads, parameters, cluster)
    with jobs_here.batch():
        jobs = [jobs_here.submit(ShardJob(flags, shard, shards, threads)) for shard in range(shards)]
    wait_for(jobs, logs)
    return _complete(directory)


def _complete(directory: str) -> Dict[str, Any]:
    corpus = CorpusDirectory(directory)
    manifest = corpus.manifest
    if manifest is not None and corpus.complete:
        return manifest
    return merge([directory], directory)


def _watch(processes: List[subprocess.Popen], directory: CorpusDirectory) -> None:
    """A bar over the blocks of all shards, until all processes have ended or one has failed."""
    with tqdm(unit="sent", desc="all shards") as bar:
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                return
            manifest = directory.manifest
            if manifest is not None:
                recipe = manifest["recipe"]
                bar.total = recipe["sentences"]
                done = len(directory.blocks.numbers()) * recipe["block_size"]
                bar.n = max(bar.n, min(done, bar.total))  # blocks go when the split is written
                bar.refresh()
            time.sleep(0.5)
        if not any(process.poll() for process in processes):
            bar.n = bar.total or 0
            bar.refresh()
