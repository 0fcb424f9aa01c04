"""What the tests of corpora share: building one through fairseq-generate, and reading it."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

from fairseq import options
from fairseq.data import Dictionary, data_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_tg.corpus.directory import CorpusDirectory
from tests.conftest import FORK, IN_PROCESS, USER_DIR, run

BEAM = 4
BASE = "fconv"  # the tiny base that has learnt the most


SLOW = "tests.integration.corpora:slow_objective"


def slow_objective(hypothesis: str, reference: str) -> float:
    """Takes a while, so that a kill finds the build at work."""
    time.sleep(float(os.environ.get("SLOW_OBJECTIVE", "0.006")))
    return -abs(len(hypothesis) - len(reference))


def flags(workspace, data: str, out: Any, *more: Any) -> List[str]:
    return [
        *(data, "--user-dir", USER_DIR, "--task", "tg_translation", "--path", workspace.bases[BASE], "--gen-subset"),
        *("train", "--beam", str(BEAM), "--max-len-b", "20", "--kbest-dir", str(out), "--kbest-block", "6"),
        *("--batch-size", "4", *IN_PROCESS, *map(str, more)),
    ]


def build(workspace, data: str, out: Any, *more: Any) -> Tuple[str, Dict[str, Any]]:
    printed = run("fairseq-generate", *flags(workspace, data, out, *more))
    return printed, CorpusDirectory(str(out)).manifest or {}


def root_of(workspace, data: str, out: Any) -> Any:
    """All options of a command that builds a corpus, as fairseq-generate has them."""
    args = options.parse_args_and_arch(options.get_generation_parser(), flags(workspace, data, out))
    return convert_namespace_to_omegaconf(args)


def pairs(path: Any) -> List[Tuple[str, str]]:
    """The training split of a data directory, as text."""
    sides = []
    for lang in ("xx", "yy"):
        dictionary = Dictionary.load(f"{path}/dict.{lang}.txt")
        dataset = data_utils.load_indexed_dataset(f"{path}/train.xx-yy.{lang}")
        sides.append([dictionary.string(dataset[i]) for i in range(len(dataset))])
    return list(zip(*sides))


def files(path: Any) -> Dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(Path(path).iterdir()) if p.is_file()}


def without_command(manifest: bytes) -> bytes:
    """A manifest without the command, which names the program and the directory, and without its hash."""
    return json.dumps({k: v for k, v in json.loads(manifest).items() if k not in ("command", "sha256")}).encode()


def exit_code(function: Any, *args: Any) -> int:
    """Run a function in a process of its own, as one that holds a lock ends."""
    process = FORK.Process(target=function, args=args)
    process.start()
    process.join()
    return process.exitcode


def lists(path: Path) -> List[Dict[str, Any]]:
    with gzip.open(path / "kbest.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]
