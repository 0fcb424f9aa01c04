"""The engine's libraries as they were built, with all that a compiler does to make them fast."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPO

TESTS = REPO / "tests" / "engine"
GUARD = REPO / "tests" / "native" / "guard.cpp"
SELECTION = "test_actors and (gate or rnn) and 0 or test_products_in_parallel"


def test_nothing_is_read_behind_the_end_of_a_block(tmp_path: Path) -> None:
    guard = tmp_path / "guard.so"
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", str(GUARD), "-o", str(guard)], check=True, timeout=120)
    command = [sys.executable, "-m", "pytest", str(TESTS), "--confcutdir", str(TESTS), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-k", SELECTION], capture_output=True, text=True, env={**os.environ, "LD_PRELOAD": str(guard)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
