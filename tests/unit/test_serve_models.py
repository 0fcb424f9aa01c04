"""The models that are served, and their languages."""

from __future__ import annotations

import time
from typing import Any, cast

from fairseq_tg.serve.models import Models


def test_the_languages_of_a_model_of_many_are_told_at_once() -> None:
    """200 have 39,800 pairs, which are gone through once: nothing else is answered meanwhile."""
    codes = sorted(f"l{number}" for number in range(200))
    models = object.__new__(Models)
    models._by_pair = {(a, b): cast(Any, None) for a in codes for b in codes if a != b}
    models._known = frozenset(codes)
    began = time.process_time()
    assert models.languages() == [{"code": code, "name": code, "targets": codes} for code in codes]
    assert time.process_time() - began < 0.3
