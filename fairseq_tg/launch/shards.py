"""The shards of one build, run side by side on this machine or as jobs of a Slurm cluster, and merged at the end."""

from __future__ import annotations

import os
import re
import statistics
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from tqdm import tqdm

from fairseq_tg.corpus.assemble import merge
from fairseq_tg.corpus.directory import CorpusDirectory
from fairseq_tg.files import make_directory, refuse_link
from fairseq_tg.launch.processes import Command, fairseq, run_all
from fairseq_tg.launch.slurm import Job
from fairseq_tg.locks import take_lock

#: What a build says of the objective in its progress bar
MEANS = re.compile(r"rank 1 (-?[\d.]+), chosen (-?[\d.]+)")


def build_locally(flags: List[str], directory: str, shards: int, threads: Optional[int] = None) -> Dict[str, Any]:
    """Run a process for each shard, with a share of the cores by default; show the progress of them all, and merge."""
    corpus = CorpusDirectory(directory)
    if not _is_finished(corpus, flags):
        logs = Path(f"{directory}.logs")
        refuse_link(logs)
        make_directory(logs)
        names = [f"shard {shard} of {shards}" for shard in range(shards)]
        commands = [
            Command(name, [*_generate(flags), *_place(shard, shards)], logs / f"{name.replace(' ', '-')}.log")
            for shard, name in enumerate(names)
        ]
        with tqdm(unit="sent", desc="all shards") as bar:

            def show() -> None:
                done, bar.total = _progress(corpus)
                bar.n = max(done, bar.n)  # blocks go when the split is written
                bar.set_postfix_str(_means([command.log for command in commands if command.log]))

            # Whose logs are being written, nobody else removes
            with take_lock(logs / ".lock", f"another process is building '{corpus.path}': wait for it"):
                run_all(commands, threads or max(1, (os.cpu_count() or 1) // shards), show)
    return _complete(corpus)


def build_on_slurm(
    flags: List[str], directory: str, shards: int, threads: int, options: Dict[str, str]
) -> Dict[str, Any]:
    """Submit a job array, wait for it, and merge. Jobs that are preempted or time out are queued again, and go on.

    Args:
        options: of sbatch.
    """
    corpus = CorpusDirectory(directory)
    if not _is_finished(corpus, flags):
        logs, place = Path(f"{directory}.logs"), _place("$SLURM_ARRAY_TASK_ID", shards)
        refuse_link(logs)
        job = Job("corpus", logs, _generate(flags), place, threads, {**options, "ntasks": "1"}, shards)
        job.run(lambda: "; {:,} of {:,} sentences".format(*_progress(corpus)) if corpus.manifest else "")
    return _complete(corpus)


def _generate(flags: List[str]) -> List[str]:
    return fairseq("generate", "--task", "tg_translation", *flags, "--quiet")


def _place(shard: Any, shards: int) -> List[str]:
    return ["--kbest-shard", f"{shard}/{shards}"]


def _progress(corpus: CorpusDirectory) -> Tuple[int, int]:
    """Sentences that are done, and all."""
    manifest = corpus.manifest
    if manifest is None:
        return 0, 0
    recipe = manifest["recipe"]
    if manifest["status"] == "complete":
        return recipe["sentences"], recipe["sentences"]
    return min(len(corpus.blocks.numbers()) * recipe["block_size"], recipe["sentences"]), recipe["sentences"]


def _means(logs: Sequence[Path]) -> str:
    """Of the objective, over the shards, as they last said; one is as large as another."""
    said = [MEANS.findall(_end_of(log)) for log in logs if log.exists()]
    last = [[float(mean) for mean in means[-1]] for means in said if means]
    return "rank 1 {:.2f}, chosen {:.2f}".format(*map(statistics.fmean, zip(*last))) if last else ""


def _end_of(log: Path) -> str:
    with open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - 1000))
        return file.read().decode(errors="replace")


def _is_finished(corpus: CorpusDirectory, flags: List[str]) -> bool:
    """Whether there is nothing to do; refuses a corpus of other settings, or with damaged files.

    fairseq-generate finds that out before it searches: in this process, so that no other has to be started for it.
    A recipe depends on what the command makes of its flags, its model and its data: only the command itself gives the
    same, it looks for --user-dir in sys.argv, and between the batches that it asks for and its search it does not ask
    whether there is anything to do, so that `TGTask` ends it.
    """
    if not corpus.complete:
        return False
    from fairseq_cli.generate import cli_main

    before = sys.argv
    sys.argv = [*_generate(flags)[2:], *_place(0, 1)]
    try:
        with open(os.devnull, "w") as silence, redirect_stdout(silence):
            cli_main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.argv = before
    return True


def _complete(corpus: CorpusDirectory) -> Dict[str, Any]:
    manifest = corpus.manifest  # complete if it was finished, or has one shard
    return manifest if manifest and corpus.complete else merge([str(corpus.path)], str(corpus.path))
