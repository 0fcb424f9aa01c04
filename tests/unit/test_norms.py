"""Norms from a training's log."""

from __future__ import annotations

import json
from pathlib import Path

from fairseq_tg.evaluation.norms import read_norms


def test_norms_are_read_from_a_log(tmp_path: Path) -> None:
    names = ("num_updates", "action_norm", "state_norm", "context_norm")
    rows = ((10, 0.5, 9, 3), (20, 0.7, 9, 3), (10, 0.6, 9, 3))
    entries = [{f"valid_{name}": str(value) for name, value in zip(names, row)} for row in rows]
    lines = [f"2026 | INFO | valid | {json.dumps(entry)}" for entry in entries]
    (tmp_path / "log").write_text("\n".join(["nothing", '{"valid_action_norm": "cut', *lines]))
    norms = read_norms(tmp_path / "log")
    assert [(at.updates, at.action) for at in norms] == [(10, 0.6), (20, 0.7)]
    assert read_norms(tmp_path / "none") == []
