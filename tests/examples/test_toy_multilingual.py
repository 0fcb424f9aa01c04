"""The toy model of three languages, smaller: its example runs, and an actor of one pair helps that pair."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPO


def test_an_actor_of_one_pair_helps_that_pair(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = ["bash", REPO / "examples/toy_multilingual/run.sh", tmp_path, "1", "1200", "12"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    greedy, beam, tg = (float(score) for score in re.findall(r"BLEU = ([\d.]+)", done.stdout))
    assert greedy + 1 < tg and greedy < beam, done.stdout
