"""A real browser: Debian's Chromium, without a window, driven by Selenium."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from typing import Iterator, Optional

import pytest
import torch
from selenium import webdriver
from selenium.webdriver.chrome.webdriver import WebDriver

from fairseq_tg.compiled import Translator
from fairseq_tg.compiled.compile import compile_model
from fairseq_tg.compiled.explain import explain
from fairseq_tg.compiled.options import Compilation
from tests.conftest import make_workspace, stir
from tests.service import Server, serving

#: Nothing of what a browser does on its own is wanted here
FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --hide-scrollbars --window-size=1280,1400"""


def changed_sentence(model: Path) -> Optional[str]:
    """A sentence that tg translates otherwise than greedy does, if there is one."""
    translator = Translator.load(str(model))
    for first, second in itertools.product(range(9), range(9)):
        text = f"w{first} w2 w{second} w4 w1"
        found = explain(translator, text).translations
        if found["tg"].text != found["greedy"].text and len(found["tg"].tokens) > 3:
            return text
    return None


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose actors change something: not all random ones do."""
    directory = tmp_path_factory.mktemp("model")
    path = directory / "model.tg"
    workspace = make_workspace(directory, ["transformer"])
    for seed in range(20):
        torch.manual_seed(seed)
        actors = stir(workspace.actor_model("transformer"), 2.0)
        compile_model(actors, workspace.task(), Compilation("", str(path)))
        if changed_sentence(path):
            return path
    raise AssertionError("the actors change nothing")


@pytest.fixture(scope="session")
def sentence(model: Path) -> str:
    found = changed_sentence(model)
    assert found
    return found


@pytest.fixture(scope="session")
def server(model: Path) -> Iterator[Server]:
    with serving(model, "--max-characters", 300) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[WebDriver]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert chromium and driver, "the browser tests need Debian's packages chromium and chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield running
    running.quit()


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where screenshots go, to be looked at."""
    directory = Path(os.environ.get("TG_SCREENSHOTS", "work-screenshots"))
    directory.mkdir(parents=True, exist_ok=True)
    return directory
