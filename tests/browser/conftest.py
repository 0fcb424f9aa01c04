"""A real browser: Debian's Chromium, without a window, driven by Selenium."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.webdriver import WebDriver

from tests.service import Server, make_model_alone, serving

#: Nothing of what a browser does on its own is wanted here
FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --hide-scrollbars --window-size=1280,1400"""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_alone(tmp_path_factory.mktemp("model"))


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
