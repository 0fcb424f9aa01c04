"""The engine on a machine that this one is not: under an emulator, if there is one (Debian's qemu-user-static)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import List

import pytest

from tests.conftest import REPO

PROGRAM = REPO / "tests" / "native" / "search.cpp"
ARM = ("aarch64-linux-gnu-g++", "qemu-aarch64-static")


def found_by(compiler: str, out: Path, *emulator: str) -> List[List[str]]:
    flags = ["-std=c++17", "-O1", "-fopenmp", "-Wno-psabi", "-static"]
    subprocess.run([compiler, *flags, str(PROGRAM), "-o", str(out)], check=True, timeout=300)
    done = subprocess.run([*emulator, str(out)], capture_output=True, text=True, check=True, timeout=120)
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.skipif(not all(map(shutil.which, (*ARM, "g++"))), reason=f"needs g++, {' and '.join(ARM)}")
def test_arm_finds_what_this_machine_finds(tmp_path: Path) -> None:
    here = found_by("g++", tmp_path / "here")
    there = found_by(ARM[0], tmp_path / "there", ARM[1])
    assert len(here) == 72 and len({tuple(line[3:]) for line in here}) > 20
    assert [line[:2] + line[3:] for line in there] == [line[:2] + line[3:] for line in here]
    assert [float(line[2]) for line in there] == pytest.approx([float(line[2]) for line in here], abs=3e-3)
