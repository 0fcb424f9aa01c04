"""Sections as text and as a page."""

from __future__ import annotations

import json
from pathlib import Path

from fairseq_tg.evaluation.options import ReportOptions
from fairseq_tg.evaluation.tables import Section, as_html, as_text, settings, write

TABLE = Section(
    "Speed", ["it <pays>"], ["system", "tok/s"], [["greedy", "1,000"], ["tg", "90"]], ["by us"], ["plot", "other"]
)
WORDS = Section(lead=["Sentence 3"], rows=[["tg", [("a", False), ("<new>", True)]]], page_only=True)


def test_text_has_columns_and_what_is_not_for_the_page_alone() -> None:
    lines = ["Speed", "system  tok/s", "greedy  1,000", "tg         90", "it <pays>", "by us", "", "the end", ""]
    assert as_text([TABLE, WORDS, Section(notes=["the end"])]).split("\n") == lines


def test_a_page_has_everything_escaped_and_its_figures_inside() -> None:
    page = as_html("A & B", [TABLE, WORDS], {"plot": b"png"})
    assert "<h1>A &amp; B</h1>" in page and "<h2>Speed</h2>" in page and "<b>it &lt;pays&gt;</b>" in page
    assert '<tr class="tg"><td>tg</td><td>90</td></tr>' in page and "<tr><td>greedy</td>" in page
    assert "<td>a <mark>&lt;new&gt;</mark></td>" in page and "by us</p>" in page
    assert page.count("<img") == 1 and 'src="data:image/png;base64,cG5n"' in page


def test_settings_have_no_paths() -> None:
    found = settings(ReportOptions(data="/d/bin", base="/d/base.pt", out="/d/out/", actor=("/d/x/a.pt", "b.pt")))
    assert (found["data"], found["base"], found["out"], found["actors"]) == ("bin", "base.pt", "out", ["a.pt", "b.pt"])
    assert found["oracle_beam"] == 35 and "actor" not in found and "/" not in json.dumps(found)


def test_files_are_text_json_and_images(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "\u00e4\n", "a.json": {"b": [1]}, "a.png": b"\x89", "none.png": None})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a.txt": "\u00e4\n".encode(), "a.json": b'{\n  "b": [\n    1\n  ]\n}\n', "a.png": b"\x89"
    }  # fmt: skip
