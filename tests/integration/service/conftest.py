"""A model, and a server of it that nothing is to be logged by."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import pytest

from fairseq_tg.compiled import Translator
from tests.conftest import Workspace
from tests.service import Server, make_model


@pytest.fixture(scope="package")
def model(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("served"), workspace, 2.0)


@pytest.fixture(scope="package")
def server(model: Path) -> Iterator[Server]:
    running = Server(model, "--threads", 2, "--cors", "https://a.example", "--queue", 10**6)
    yield running
    assert running.stop() == 0
    assert running.process.stderr is not None and running.process.stderr.read() == ""  # nothing was logged


@pytest.fixture(scope="package")
def translator(model: Path) -> Translator:
    return Translator.load(str(model))
