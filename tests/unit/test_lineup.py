"""The names of what is compared."""

from __future__ import annotations

import pytest

from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.lineup import label_actors


def test_labels_tell_checkpoints_apart() -> None:
    assert label_actors(["x/y.pt"]) == {"tg": "x/y.pt"} and label_actors([]) == {}
    assert label_actors(["x/a.pt", "x/b.pt"]) == {"tg:a": "x/a.pt", "tg:b": "x/b.pt"}
    assert label_actors(["x/best.pt", "y/best.pt"]) == {"tg:x": "x/best.pt", "tg:y": "y/best.pt"}
    with pytest.raises(UserError, match=r"the same name: x/a\.pt, x/a\.pt; rename them"):
        label_actors(["x/a.pt", "x/a.pt"])
