"""The names of what is compared."""

from __future__ import annotations

import pytest

from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.lineup import label_files


def test_labels_tell_checkpoints_apart() -> None:
    assert label_files("tg", ["x/y.pt"]) == {"tg": "x/y.pt"} and label_files("tg", []) == {}
    assert label_files("tg", ["x/a.pt", "x/b.pt"]) == {"tg:a": "x/a.pt", "tg:b": "x/b.pt"}
    assert label_files("cont.", ["x/best.pt", "y/best.pt"]) == {"cont.:x": "x/best.pt", "cont.:y": "y/best.pt"}
    runs = ["run-1/actor/best.pt", "run-2/actor/best.pt"]
    assert label_files("tg", runs) == {"tg:run-1": runs[0], "tg:run-2": runs[1]}
    with pytest.raises(UserError, match=r"the same name: x/a\.pt, x/a\.pt; rename them"):
        label_files("tg", ["x/a.pt", "x/a.pt"])
    assert label_files("tg", ["x/a:b.pt", "y/a-b.pt"]) == {"tg:x": "x/a:b.pt", "tg:y": "y/a-b.pt"}
    with pytest.raises(UserError, match="the checkpoints have the same name"):  # of whom files of one name are made
        label_files("tg", ["a:b/best.pt", "a-b/best.pt"])
    # names of files are shown: they have no control over a terminal, and may be no text at all
    paths = ["x/\x1b[31mred.pt", "x/\udcff.pt"]
    assert label_files("tg", paths) == {r"tg:\x1b[31mred": paths[0], r"tg:\udcff": paths[1]}
