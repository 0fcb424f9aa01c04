"""Aligning help pages: paragraphs by id, pages in one split, nothing twice."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPO

SCRIPT = REPO / "examples" / "libreoffice_help" / "align.py"


@pytest.fixture(scope="module")
def align() -> Any:
    spec = importlib.util.spec_from_file_location("align", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(*paragraphs: str) -> str:
    return "<html><head><meta charset='utf-8'><title>t</title></head><body>" + "\n".join(paragraphs) + "</body></html>"


def paragraph(number: int, text: str) -> str:
    return f'<p id="par_id{number}" class="paragraph">{text}</p>'


def test_text_is_read_whole_and_without_markup(align: Any, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        page(
            paragraph(1, 'Open <span class="x">the <b>file</b></span>&nbsp;now &amp; then<br>again.'),
            '<h1 id="hd_id2"><a href="#">A heading</a> here</h1>',
            '<p id="bm_id3">a bookmark</p><p>no id at all</p>',
            '<div id="par_id4"><p>inside of a division</p></div>',
            paragraph(5, ""),
        )
    )
    assert align.read_page(tmp_path / "a.html") == {
        "par_id1": "Open the file now & then again.",
        "hd_id2": "A heading here",
        "par_id4": "inside of a division",
    }


#: Of some pages; all others' is in the training set
SUBJECTS = {3: "sbasic", 4: "sbasic", 5: "smath", 6: "schart"}


def write_help(directory: Path) -> None:
    for language, word in (("de", "Hund"), ("en-US", "dog")):
        for number in range(200):
            path = directory / language / "text" / SUBJECTS.get(number, "swriter") / f"page{number}.html"
            path.parent.mkdir(parents=True, exist_ok=True)
            common = paragraph(9, f"this {word} stands on every page")
            path.write_text(page(paragraph(1, f"a {word} number {number} runs"), paragraph(2, "kurz"), common))
    (directory / "de" / "text" / "alone.html").write_text(page(paragraph(1, "nur auf Deutsch zu lesen")))


def test_pages_are_in_one_split_and_sentences_once(align: Any, tmp_path: Path) -> None:
    write_help(tmp_path)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), "de", "en", str(tmp_path / "out")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = {
        split: [(tmp_path / "out" / f"{split}.{language}").read_text().splitlines() for language in ("de", "en")]
        for split in ("train", "valid", "valid1", "test", "test1")
    }
    assert all(len(source) == len(target) > 0 for source, target in lines.values())
    everything = [line for sides in lines.values() for line in sides[0]]
    assert len(everything) == len(set(everything)) == 201  # each page's own, and the common one
    assert "this Hund stands on every page" in lines["test"][0]
    for split, (source, target) in lines.items():
        for ours, theirs in zip(source, target):
            assert ours.replace("Hund", "dog") == theirs
            if "number" in ours:
                number = int(ours.split()[3])
                assert align.split_of(f"text/{SUBJECTS.get(number, 'swriter')}/page{number}.html") == split
    assert [len(lines[split][0]) for split in ("valid1", "test1")] == [2, 2]


def test_a_language_that_was_not_fetched_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), "fi", "en", "out"], capture_output=True, text=True
    )
    assert done.returncode == 1 and "fetch the package of 'fi' first" in done.stderr and "Traceback" not in done.stderr
