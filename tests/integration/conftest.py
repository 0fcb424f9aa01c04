"""A data set with sentences of all kinds, and a corpus built of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import run, write_corpus
from tests.integration.corpora import build
from tests.multilingual import World, make_world


@pytest.fixture(scope="session")
def data(workspace, tmp_path_factory) -> str:
    """Sentences of all kinds, in the dictionaries of the bases: empty ones and a long one among them."""
    directory = tmp_path_factory.mktemp("data")
    write_corpus(directory, {"train": 37, "valid": 5})
    source = (directory / "train.xx").read_text().splitlines()
    target = (directory / "train.yy").read_text().splitlines()
    source[3], target[8], source[20] = "", "", " ".join(["w1"] * 1100)
    (directory / "train.xx").write_text("\n".join(source) + "\n")
    (directory / "train.yy").write_text("\n".join(target) + "\n")
    dictionaries = ["--srcdict", f"{workspace.data}/dict.xx.txt", "--tgtdict", f"{workspace.data}/dict.yy.txt"]
    prefixes = ["--trainpref", directory / "train", "--validpref", directory / "valid"]
    destination = ["--destdir", directory / "bin", "--workers", "1"]
    run("fairseq-preprocess", "-s", "xx", "-t", "yy", *prefixes, *dictionaries, *destination)
    return str(directory / "bin")


@pytest.fixture(scope="session")
def world(shared: Path) -> World:
    """Three languages, and bases of them."""
    return make_world(shared / "world")


@pytest.fixture(scope="session")
def whole(workspace, data, tmp_path_factory) -> Path:
    """A corpus built in one go, with its k-best lists."""
    out = tmp_path_factory.mktemp("whole") / "corpus"
    build(workspace, data, out, "--kbest-jsonl")
    return out
