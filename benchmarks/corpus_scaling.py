"""How corpus building scales from one process to several, with one thread each.

    python benchmarks/corpus_scaling.py --data DATA_BIN --base base.pt [--sentences 1500 --shards 2 --beam 35 --turns 1]

Builds a corpus of the first sentences of the training split through `fairseq-tg corpus build`, with 1 shard and with
several in turns, and prints sentences a second, the efficiency (the speed-up over the number of shards), the bytes a
sentence takes on disk and the peak memory of a process. Starting a process is in the times, as it is in real builds.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List

from fairseq.data import Dictionary, data_utils, indexed_dataset


def take_first(data: Path, count: int, out: Path) -> None:
    """A data directory with the first sentences of another's training split."""
    out.mkdir()
    for path in data.iterdir():
        if path.name.startswith("dict."):
            shutil.copy(path, out)
    for side in sorted({path.with_suffix("") for path in data.glob("train.*-*.*.idx")}):
        dictionary = Dictionary.load(str(data / f"dict.{side.suffix[1:]}.txt"))
        dataset = data_utils.load_indexed_dataset(str(side))
        builder = indexed_dataset.make_builder(f"{out / side.name}.bin", impl="mmap", vocab_size=len(dictionary))
        for i in range(min(count, len(dataset))):
            builder.add_item(dataset[i])
        builder.finalize(f"{out / side.name}.idx")


def build(data: Path, base: str, beam: int, shards: int, out: Path) -> float:
    """Seconds that a build takes."""
    flags = [str(data), "--path", base, "--gen-subset", "train", "--beam", str(beam), "--batch-size", "16"]
    flags += ["--kbest-dir", str(out), "--kbest-jsonl", "--kbest-block", "50", "--num-workers", "0", "--cpu"]
    command = [str(Path(sys.executable).parent / "fairseq-tg"), "corpus", "build", "--shards", str(shards)]
    begun = time.perf_counter()
    subprocess.run([*command, "--threads", "1", "--", *flags], check=True, capture_output=True)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--sentences", type=int, default=1500)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--beam", type=int, default=35)
    parser.add_argument("--turns", type=int, default=1)
    args = parser.parse_args()
    times: Dict[int, List[float]] = {1: [], args.shards: []}
    with tempfile.TemporaryDirectory() as name:
        take_first(args.data, args.sentences, Path(name) / "data")
        for turn in range(args.turns):
            for shards in times:
                out = Path(name) / f"corpus-{turn}-{shards}"
                seconds = build(Path(name) / "data", args.base, args.beam, shards, out)
                times[shards].append(seconds)
                size = sum(path.stat().st_size for path in out.iterdir()) / args.sentences
                print(f"{shards} process(es): {seconds:.1f} s, {args.sentences / seconds:.1f} sentences/s", flush=True)
    one, several = (statistics.median(found) for found in times.values())
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{os.cpu_count()} cores; efficiency of {args.shards} processes: {one / several / args.shards:.2f}")
    print(f"{size:,.0f} bytes a sentence on disk; {memory:,.0f} MiB in a process at most")


if __name__ == "__main__":
    main()
