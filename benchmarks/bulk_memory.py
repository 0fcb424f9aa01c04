"""The most memory that `fairseq-tg translate` takes of files of any length.

    python benchmarks/bulk_memory.py model.tg LINES [--counts 1000 10000 100000] [--batch-size 32] [--threads 1] [...]

LINES is a text, which is repeated to as many lines as are asked for; what follows is passed on to the command. Of every
count there is the peak (ru_maxrss) of a process of its own, its seconds, and whether as many lines came out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List


def translate(model: str, lines: Path, flags: List[str]) -> Dict[str, Any]:
    program = str(Path(sys.executable).parent / "fairseq-tg")
    began = time.perf_counter()
    with open(lines, "rb") as source, tempfile.TemporaryFile() as target:
        process = subprocess.Popen([program, "translate", model, *flags], stdin=source, stdout=target)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        target.seek(0)
        came_out = sum(1 for _ in target)
    return {
        "status": process.returncode,
        "lines_out": came_out,
        "peak_mib": round(usage.ru_maxrss / 1024, 1),
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("lines", type=Path)
    parser.add_argument("--counts", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--batch-size", default="32")
    parser.add_argument("--threads", default="1")
    args, more = parser.parse_known_args()
    flags = ["--batch-size", args.batch_size, "--threads", args.threads, *more]
    text = args.lines.read_bytes().splitlines(keepends=True)
    results = {}
    with tempfile.TemporaryDirectory() as directory:
        for count in args.counts:
            path = Path(directory) / "lines"
            with open(path, "wb") as file:
                file.writelines(itertools.islice(itertools.cycle(text), count))
            results[count] = translate(args.model, path, flags)
    print(json.dumps({"flags": flags, "lines": results}, indent=1))


if __name__ == "__main__":
    main()
