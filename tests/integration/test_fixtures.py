"""Files that earlier versions wrote are read, and translate to the same tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict

import pytest

from tests.conftest import FAMILIES, Workspace, hypotheses
from tests.fixtures.make import BEAMS, OLD, translate

FIXTURES = sorted(path.parent for path in (Path(__file__).parents[1] / "fixtures").glob("*/expected.json"))


@pytest.fixture(params=FIXTURES, ids=lambda path: path.name)
def fixture(request: pytest.FixtureRequest) -> Path:
    return request.param


def expected(fixture: Path) -> Dict[str, Any]:
    return json.loads((fixture / "expected.json").read_text())


def test_both_generations_are_there() -> None:
    assert [path.name for path in FIXTURES] == ["fairseq-0.12.2", "fairseq-0.12.3"]


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpoints_and_actor_files(fixture: Path, family: str) -> None:
    workspace, wanted = Workspace(str(fixture), {}), expected(fixture)
    base, tg = fixture / f"{family}.pt", fixture / f"tg_{family}.pt"
    assert translate(workspace, base) == wanted[base.name]
    assert translate(workspace, tg) == wanted[tg.name]
    assert translate(workspace, base, "--actor-weights", str(fixture / f"{family}.safetensors")) == wanted[tg.name]


def test_a_checkpoint_with_args(fixture: Path, tmp_path: Path) -> None:
    workspace, wanted = Workspace(str(fixture), {"transformer": str(fixture / OLD)}), expected(fixture)
    assert translate(workspace, fixture / OLD) == wanted["transformer.pt"]
    actors = ("--actor-weights", str(fixture / "transformer.safetensors"))
    assert translate(workspace, fixture / OLD, *actors) == wanted["tg_transformer.pt"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_compiled_model(fixture: Path, family: str) -> None:
    from fairseq.data import Dictionary, data_utils

    from fairseq_tg.compiled.translator import Translator

    dictionary = Dictionary.load(str(fixture / "dict.xx.txt"))
    sources = data_utils.load_indexed_dataset(str(fixture / "valid.xx-yy.xx"))
    lines = [dictionary.string(sources[i]) for i in range(len(sources))]
    found = Translator.load(str(fixture / f"{family}.tg"), max_len_b=20).translate(lines)
    assert dict(enumerate(found)) == {int(i): text for i, text in expected(fixture)[f"tg_{family}.pt"]["1"].items()}


def test_beams_differ(fixture: Path) -> None:
    """The expectations tell greedy from beam search, and base from tg model."""
    wanted = expected(fixture)
    assert all(set(found) == set(BEAMS) for found in wanted.values())
    assert hypotheses("H-0\t-1.0\ta b") == {0: "a b"}
    assert any(found["1"] != found["4"] for found in wanted.values())
