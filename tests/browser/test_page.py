"""The page at /, as a reader uses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from fairseq_tg.compiled.model_file import read, write
from tests.service import CODE, Server

AXE = Path(os.environ.get("TG_AXE", ".venv/axe/node_modules/axe-core/axe.min.js"))


def explained(model: Path, sentence: str) -> Dict[str, Any]:
    command = [sys.executable, "-c", CODE, "explain", str(model), sentence, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def wait(browser: WebDriver, condition: Any) -> Any:
    return WebDriverWait(browser, 30).until(condition)


def set_media(browser: WebDriver, scheme: str, width: int) -> None:
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": 1400, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@pytest.fixture
def page(browser: WebDriver, server: Server) -> Iterator[WebDriver]:
    """The page, loaded."""
    set_media(browser, "light", 1280)
    browser.get(server.url)
    wait(browser, lambda page: page.find_element(By.ID, "count").text)
    yield browser
    problems = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert all("status of 4" in entry["message"] for entry in problems), problems


def translate(page: WebDriver, text: str) -> None:
    field = page.find_element(By.ID, "text")
    field.clear()
    field.send_keys(text)
    field.send_keys(Keys.CONTROL, Keys.ENTER)
    wait(page, lambda page: page.find_element(By.ID, "acting").is_displayed())


def test_four_translations_marks_and_strip_are_those_of_explain(page: WebDriver, model: Path, sentence: str) -> None:
    translate(page, sentence)
    expected = explained(model, sentence)
    cards = page.find_elements(By.CSS_SELECTOR, ".system")
    assert [card.get_attribute("data-system") for card in cards] == list(expected["translations"])
    for card, found in zip(cards, expected["translations"].values()):
        assert card.find_element(By.CSS_SELECTOR, ".output").text == found["text"]
        marks = [mark.text for mark in card.find_elements(By.CSS_SELECTOR, ".output mark")]
        assert marks == [word for word, differs in found["words"] if differs]
        time, score = (item.text for item in card.find_elements(By.TAG_NAME, "dd"))
        assert time.endswith(" ms") and score.replace("\u2212", "-") == f"{found['score']:.3f}"
    assert page.find_elements(By.CSS_SELECTOR, ".output mark")  # or nothing of it was tested

    actions = expected["actions"]
    tokens = page.find_elements(By.CSS_SELECTOR, ".token")
    assert len(tokens) == len(actions["steps"])
    most = max(value for step in actions["steps"] for value in step["actions"])
    for token, step in zip(tokens, actions["steps"]):
        head = token.find_element(By.CSS_SELECTOR, "[role=columnheader]")
        assert head.text == ("end" if step["token"] == "</s>" else step["token"])
        script = "return [...arguments[0].querySelectorAll('.cell')].map((cell) => cell.style.getPropertyValue('--a'))"
        assert [float(shade) for shade in page.execute_script(script, token)] == pytest.approx(
            [v / most for v in step["actions"]], abs=1e-4
        )
        assert ("changed" in token.get_attribute("class").split()) == (step["base"][0][0] != step["token"])


def test_the_strip_is_read_as_it_is_drawn(page: WebDriver, sentence: str) -> None:
    """A row for each place, in which the tokens are the columns."""
    translate(page, sentence)
    script = """return [...document.querySelectorAll('[role=grid] [role=row]')].map((row) =>
        [row.textContent, ...row.getAttribute('aria-owns').split(' ').map((id) => document.getElementById(id))])"""
    (_, *heads), *rows = page.execute_script(script)
    tokens = page.find_elements(By.CSS_SELECTOR, ".token")
    assert [head.text for head in heads] == [token.text for token in tokens]
    assert [name for name, *_ in rows] == ["layer 1", "layer 2"]
    for (name, *cells), place in zip(rows, (0, 1)):
        assert cells == [token.find_elements(By.CSS_SELECTOR, ".cell")[place] for token in tokens]
        assert all(name in cell.get_attribute("aria-label") for cell in cells)
        tops = {cell.location["y"] for cell in cells}
        assert len(tops) == len({head.location["y"] for head in heads})  # one for each line of tokens


def test_shading_is_there_without_a_page_s_own_colours(page: WebDriver, sentence: str) -> None:
    features = [{"name": "forced-colors", "value": "active"}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    translate(page, sentence)
    cells = page.find_elements(By.CSS_SELECTOR, ".cell")
    assert len({cell.value_of_css_property("background-color") for cell in cells}) > 1


def details(page: WebDriver) -> List[List[str]]:
    """The token and place that are described, the likeliest tokens of the base and of tg."""
    where = page.find_element(By.CSS_SELECTOR, ".where").text
    lists = page.find_elements(By.CSS_SELECTOR, ".next")
    return [
        [where],
        *([item.text.lstrip("·") for item in found.find_elements(By.CSS_SELECTOR, ".name")] for found in lists),
    ]


def test_hovering_shows_the_details_of_a_box(page: WebDriver, model: Path, sentence: str) -> None:
    translate(page, sentence)
    actions = explained(model, sentence)["actions"]
    for index in range(min(3, len(actions["steps"]))):
        step = actions["steps"][index]
        for place, name in enumerate(actions["places"]):
            cell = page.find_elements(By.CSS_SELECTOR, ".token")[index].find_elements(By.CSS_SELECTOR, ".cell")[place]
            ActionChains(page).move_to_element(cell).perform()
            where, base, tg = details(page)
            assert name in where[0]
            names = [["end" if token == "</s>" else token for token, _ in step[kind]] for kind in ("base", "tg")]
            assert [base, tg] == names
            weights = [
                float(s.get_attribute("data-weight")) for s in page.find_elements(By.CSS_SELECTOR, ".source span")
            ]
            given = dict(step["attention"][actions["place_layers"][place]])
            assert weights == pytest.approx([given.get(i, 0.0) for i in range(len(actions["source"]))], abs=1e-3)


def test_it_works_without_a_mouse(page: WebDriver, model: Path, sentence: str) -> None:
    field = page.find_element(By.ID, "text")
    field.send_keys(sentence, Keys.TAB)
    assert page.switch_to.active_element.get_attribute("id") == "go"
    page.switch_to.active_element.send_keys(Keys.ENTER)
    wait(page, lambda page: page.find_element(By.ID, "acting").is_displayed())
    page.find_element(By.ID, "text").send_keys(Keys.TAB)
    for _ in range(10):
        if "cell" in (page.switch_to.active_element.get_attribute("class") or ""):
            break
        page.switch_to.active_element.send_keys(Keys.TAB)
    active = page.switch_to.active_element
    assert active.get_attribute("role") == "gridcell" and active.get_attribute("aria-label")
    active.send_keys(Keys.HOME)
    page.switch_to.active_element.send_keys(Keys.ARROW_UP, Keys.ARROW_UP, Keys.ARROW_UP)
    first = details(page)[0][0]
    assert "layer 1" in first
    page.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert "layer 2" in details(page)[0][0]
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    second = explained(model, sentence)["actions"]["steps"][1]["token"]
    assert details(page)[0][0].startswith("end" if second == "</s>" else second)
    assert len(page.find_elements(By.CSS_SELECTOR, '.cell[tabindex="0"]')) == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 768, 360])
def test_it_fits_every_window_and_has_no_barriers(
    page: WebDriver, pictures: Path, sentence: str, width: int, scheme: str
) -> None:
    set_media(page, scheme, width)
    translate(page, sentence)
    page.save_screenshot(str(pictures / f"page-{width}-{scheme}.png"))
    assert page.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert AXE.exists(), f"no axe-core at {AXE}: npm install axe-core, or make test-browser"
    page.execute_script(AXE.read_text())
    found = page.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    violations = [(item["id"], [node["html"] for node in item["nodes"]]) for item in found["violations"]]
    assert not violations and len(found["passes"]) > 10


def test_languages_are_chosen_from_two_lists(browser: WebDriver, model: Path, tmp_path: Path, sentence: str) -> None:
    paths = [model]
    for source, target in (("de", "fr"), ("de", "en")):
        paths.append(tmp_path / f"{source}-{target}.tg")
        compiled = read(str(model))
        write(str(paths[-1]), replace(compiled, text=replace(compiled.text, source_lang=source, target_lang=target)))
    server = Server(*paths)
    try:
        browser.get(server.url)
        wait(browser, lambda page: page.find_element(By.ID, "source").is_displayed())

        def offered(name: str) -> List[str]:
            return [option.text for option in Select(browser.find_element(By.ID, name)).options]

        assert (offered("source"), offered("target")) == (["German", "xx"], ["English", "French"])
        Select(browser.find_element(By.ID, "target")).select_by_visible_text("French")
        assert "de-fr: German to French" in browser.find_element(By.ID, "model").text
        translate(browser, sentence)
        assert browser.find_element(By.CSS_SELECTOR, ".output").get_attribute("lang") == "fr"
        Select(browser.find_element(By.ID, "source")).select_by_visible_text("xx")
        assert offered("target") == ["yy"] and browser.find_element(By.ID, "text-label").text == "Text in xx"
    finally:
        assert server.stop() == 0


def test_an_error_of_the_server_is_shown(page: WebDriver, sentence: str) -> None:
    field = page.find_element(By.ID, "text")
    field.send_keys(Keys.CONTROL, Keys.ENTER)
    assert page.find_element(By.ID, "error").text == "There is no text to translate."
    page.execute_script("arguments[0].value = 'w1 '.repeat(200)", field)
    page.find_element(By.ID, "go").click()
    wait(page, lambda page: "exceeds text limit (300)" in page.find_element(By.ID, "error").text)
    assert not page.find_element(By.ID, "results").is_displayed() and page.find_element(By.ID, "go").is_enabled()
    translate(page, sentence)
    assert page.find_element(By.ID, "error").text == ""


def test_a_server_that_has_gone_is_said_to_have(page: WebDriver) -> None:
    page.execute_cdp_cmd("Network.enable", {})
    offline = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    page.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": True, **offline})
    try:
        page.find_element(By.ID, "text").send_keys("w1", Keys.CONTROL, Keys.ENTER)
        wait(page, lambda page: page.find_element(By.ID, "error").text == "There is no answer from the server.")
    finally:
        page.execute_cdp_cmd(
            "Network.emulateNetworkConditions",
            {"offline": False, **offline, "downloadThroughput": -1, "uploadThroughput": -1},
        )
        page.get_log("browser")


def test_text_is_never_markup(page: WebDriver) -> None:
    translate(page, "<img src=x onerror=alert(1)> w1")
    assert not page.find_elements(By.CSS_SELECTOR, "main img")
