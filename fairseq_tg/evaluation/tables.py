"""What is written of results: sections with tables, as text and as one HTML page that needs no other file."""

from __future__ import annotations

import json
import platform
import sys
from base64 import b64encode
from dataclasses import asdict, dataclass, field
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple, Union

from fairseq_tg import __version__
from fairseq_tg.files import replacing

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
tr.tg td { background: #eef7ee; }
.words td { text-align: left; } mark { background: #ffe9a8; } .note { color: #666; font-size: .9em; }
img { max-width: 100%; }
"""

#: Text, or its words, each with whether it is to be marked
Cell = Union[str, List[Tuple[str, bool]]]


@dataclass(frozen=True)
class Section:
    """A part of what is reported: sentences that say it, a table, notes on the table, and names of figures."""

    title: str = ""
    lead: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    notes: Sequence[str] = ()
    figures: Sequence[str] = ()
    page_only: bool = False  # too long for a terminal
    links: Mapping[str, str] = field(default_factory=dict)  # files beside the page, by what the reader finds there

    def as_text(self) -> List[str]:
        title = [self.title] if self.title and self.rows else []
        return [*title, *columns(self.header, self.rows), *self.lead, *self.notes]

    def as_html(self, figures: Mapping[str, bytes]) -> List[str]:
        body = [f"<h2>{escape(self.title)}</h2>"] if self.title else []
        body += [f"<p><b>{escape(line)}</b></p>" for line in self.lead]
        if self.rows:
            head = "<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in self.header) + "</tr>" if self.header else ""
            kind = "" if self.header else ' class="words"'
            body.append(f"<table{kind}>{head}" + "\n".join(map(_html_row, self.rows)) + "</table>")
        body += [f'<p class="note">{escape(note)}</p>' for note in self.notes]
        body += [f'<p><a href="{escape(file)}">{escape(text)}</a></p>' for text, file in self.links.items()]
        shown = {name: b64encode(figures[name]).decode() for name in self.figures if name in figures}
        return body + [
            f'<p><img alt="{escape(name)}" src="data:image/png;base64,{png}"></p>' for name, png in shown.items()
        ]


def _html_row(row: Sequence[Cell]) -> str:
    def cell(content: Cell) -> str:
        if isinstance(content, str):
            return escape(content)
        return " ".join(f"<mark>{escape(word)}</mark>" if marked else escape(word) for word, marked in content)

    kind = ' class="tg"' if str(row[0]).startswith("tg") else ""
    return f"<tr{kind}>" + "".join(f"<td>{cell(content)}</td>" for content in row) + "</tr>"


def as_text(sections: Sequence[Section]) -> str:
    return "\n\n".join("\n".join(section.as_text()) for section in sections if not section.page_only) + "\n"


def as_html(title: str, sections: Sequence[Section], figures: Mapping[str, bytes]) -> str:
    body = "\n".join(line for section in sections for line in section.as_html(figures))
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n<h1>{escape(title)}</h1>\n{body}\n</html>\n"
    )


def columns(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> List[str]:
    """Text in columns, numbers to the right."""
    if not rows:
        return []
    table = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in table if i < len(row)) for i in range(len(header))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 or cell.startswith("/ ") else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in table
    ]


def settings(options: Any) -> Dict[str, Any]:
    """Options as they are reported: files by their names only."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        return Path(value).name if isinstance(value, str) else value

    return {"actors" if name == "actor" else name: plain(value) for name, value in asdict(options).items()}


def versions() -> Dict[str, str]:
    """Of everything that the numbers may depend on."""
    found = {"fairseq_tg": __version__, "python": platform.python_version()}
    for name in ("torch", "fairseq", "fairseq-fixed", "ctranslate2", "sacrebleu"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def in_words(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in found.items())


def write(out: Path, files: Mapping[str, Union[str, bytes, Dict[str, Any], None]]) -> None:
    """Write files by their names, whole or not at all: text, images (none without matplotlib), and JSON."""
    for name, content in files.items():
        if content is None:
            continue
        text = json.dumps(content, indent=2) + "\n" if isinstance(content, dict) else content
        with replacing(str(out / name)) as temporary:
            Path(temporary).write_bytes(text.encode() if isinstance(text, str) else text)


class Progress:
    """One line on the terminal that says what is being done."""

    def __call__(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        self("")
