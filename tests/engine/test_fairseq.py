"""The engine finds what fairseq's generator found, on models of random shapes, with random searches and batches."""

from __future__ import annotations

from pathlib import Path
from typing import List

from fairseq_tg.compiled.engine import Engine
from tests.engine.cases import Case, assert_as_fairseq


def test_what_fairseq_found(library: Path, cases: List[Case]) -> None:
    for case in cases:
        assert_as_fairseq(case, Engine(case.layout, case.tensors, library))


def test_what_fairseq_found_on_several_threads(library: Path, cases: List[Case]) -> None:
    for case in cases:
        assert_as_fairseq(case, Engine(case.layout, case.tensors, library), threads=3)
