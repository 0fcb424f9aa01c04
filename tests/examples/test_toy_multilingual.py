"""The toy model of three languages: its example runs, and an actor of one pair helps that pair. (With --thorough.)"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPO


def test_an_actor_of_one_pair_helps_that_pair(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if not request.config.getoption("--thorough"):
        pytest.skip("takes minutes")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = ["bash", REPO / "examples/toy_multilingual/run.sh", tmp_path, "1"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment, timeout=1800)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    greedy, beam, tg = (report["scores"]["values"][name]["BLEU"] for name in ("greedy", "beam 4", "tg"))
    assert greedy + 1 < tg and greedy < beam, done.stdout
    assert report["scores"]["p_values"]["greedy"]["tg"]["BLEU"] < 0.05
