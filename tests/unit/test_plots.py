"""Figures, whatever matplotlib is told by the environment and the current directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Dict

import pytest

from fairseq_tg.evaluation.measure import Spread
from fairseq_tg.evaluation.plots import Point, quality_and_speed
from fairseq_tg.recipe import ablation
from tests.conftest import run_tg

CODE = """
import sys
from fairseq_tg.evaluation.plots import dots
sys.stdout.buffer.write(dots([("a", 1.0), ("b", 2.0)], 1.5, "BLEU", "kind") or b"none")
"""


def draw(directory: Path, **environment: str) -> bytes:
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, cwd=directory, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "settings, environment",
    [
        (b"", {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}),  # Jupyter's, for all that a notebook starts
        (b"", {"MPLBACKEND": "nonsense"}),
        (b"text.usetex: True\ntext.latex.preamble: \\input{secrets}\nsavefig.dpi: 3\n", {}),
        (b"backend: module://evil\nfont.size: 40\n", {}),
    ],
)
def test_a_figure_is_drawn_as_it_is(tmp_path: Path, settings: bytes, environment: Dict[str, str]) -> None:
    pytest.importorskip("matplotlib")
    plain = draw(tmp_path)
    assert plain.startswith(b"\x89PNG")
    (tmp_path / "evil.py").write_text("open('run', 'w')")
    (tmp_path / "matplotlibrc").write_bytes(settings)
    assert draw(tmp_path, **environment) == plain and not (tmp_path / "run").exists()


def test_settings_that_cannot_be_read_cost_the_figures_alone(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_bytes(b"\xff\xfe")
    assert draw(tmp_path) == b"none"


@pytest.mark.parametrize("name", ["tg:$^$", r"tg:\$", "tg:a_$b$"])
def test_a_name_is_no_formula(name: str) -> None:
    pytest.importorskip("matplotlib")
    figure = quality_and_speed([Point(name, "fast", Spread(2.0, 1.0, 3.0), 40.0)], "BLEU")
    assert figure is not None and figure.startswith(b"\x89PNG")


def test_a_command_names_the_figures_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without matplotlib there are none."""
    monkeypatch.setattr(ablation, "ablate", lambda recipe: (None, "the table\n"))
    flags = ["ablate", "actor", "--data", "bin", "--base", "base.pt", "--out", tmp_path]
    figure = tmp_path / "ablation-actor.png"
    assert run_tg(*flags) == "the table\n"
    figure.touch()
    assert run_tg(*flags) == f"the table\n{figure}\n"
