"""Align the help pages of LibreOffice in two languages: the same file and the same paragraph id, the same text.

Writes train, valid and test in both languages, and valid1 and test1 of subjects that the training set has not got.
Pages are kept together: all paragraphs of a page are in one split, which its directory or a hash of its path decides,
so that it does not depend on the languages or on other pages. No sentence, in either language, is in the corpus twice.
Usage:

    python align.py HELP_DIRECTORY de en OUT        (HELP_DIRECTORY has de/ and en-US/)
"""

from __future__ import annotations

import argparse
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Set, Tuple

SPLITS = {"test": 0.04, "valid": 0.04}  # shares of pages; the rest is for training
FAR = {"text/sbasic/": "test1", "text/smath/": "valid1", "text/schart/": "valid1"}  # programming; formulas, charts
FEWEST, MOST, RATIO = 3, 40, 3.0  # words of a sentence, and how many times as many the other may have
VOID = {"br", "img", "input", "meta", "link", "hr", "col", "source", "wbr", "area", "base", "embed", "track"}


class Paragraphs(HTMLParser):
    """The text of every element whose id is that of a paragraph or heading."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: Dict[str, str] = {}
        self._id: Optional[str] = None
        self._depth = 0
        self._text: List[str] = []

    def handle_starttag(self, tag: str, attrs: List[Tuple[str, Optional[str]]]) -> None:
        if tag in VOID:
            self._text.append(" ")
            return
        if self._id is not None:
            self._depth += 1
            return
        name = dict(attrs).get("id") or ""
        if re.fullmatch(r"(par|hd)_id\d+", name):
            self._id, self._depth, self._text = name, 0, []

    def handle_endtag(self, tag: str) -> None:
        if self._id is None or tag in VOID:
            return
        if self._depth:
            self._depth -= 1
            return
        text = " ".join("".join(self._text).split())
        if text and self._id not in self.found:
            self.found[self._id] = text
        self._id = None

    def handle_data(self, data: str) -> None:
        if self._id is not None:
            self._text.append(data)


def read_page(path: Path) -> Dict[str, str]:
    parser = Paragraphs()
    parser.feed(path.read_text(encoding="utf-8", errors="replace"))
    return parser.found


def split_of(page: str) -> str:
    """The split of a page: its directory's if that is one a domain away, else by a hash of its path."""
    for directory, split in FAR.items():
        if page.startswith(directory):
            return split
    place = int(hashlib.sha256(page.encode()).hexdigest()[:8], 16) / 16**8
    for name, share in SPLITS.items():
        if place < share:
            return name
        place -= share
    return "train"


def fits(source: str, target: str) -> bool:
    lengths = sorted((len(source.split()), len(target.split())))
    return lengths[0] >= FEWEST and lengths[1] <= MOST and lengths[1] <= RATIO * lengths[0] and source != target


def pairs(source: Path, target: Path) -> Iterator[Tuple[str, str, str]]:
    """Pages and the paragraphs they have in both languages, in the order of their paths."""
    for path in sorted(source.rglob("*.html")):
        page = path.relative_to(source)
        if (target / page).is_file():
            theirs = read_page(target / page)
            for name, text in read_page(path).items():
                if name in theirs:
                    yield str(page), text, theirs[name]


def align(source: Path, target: Path) -> Dict[str, List[Tuple[str, str]]]:
    """The splits. What is in two pages stays in the split that is tested on, so that no test sentence is trained on."""
    by_split: Dict[str, List[Tuple[str, str]]] = {n: [] for n in (*SPLITS, *FAR.values(), "train")}
    for page, text, other in pairs(source, target):
        if fits(text, other):
            by_split[split_of(page)].append((text, other))
    seen: Tuple[Set[str], Set[str]] = (set(), set())
    for split, items in by_split.items():
        kept = []
        for pair in items:
            if pair[0] not in seen[0] and pair[1] not in seen[1]:
                kept.append(pair)
                seen[0].add(pair[0])
                seen[1].add(pair[1])
        by_split[split] = kept
    return by_split


def directory(help_directory: Path, language: str) -> Path:
    found = help_directory / ("en-US" if language == "en" else language)
    if not found.is_dir():
        raise SystemExit(f"align.py: error: no help pages in '{found}': fetch the package of '{language}' first")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("help_directory", type=Path)
    parser.add_argument("source", help="language, as de")
    parser.add_argument("target", help="language, as en")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    splits = align(directory(args.help_directory, args.source), directory(args.help_directory, args.target))
    args.out.mkdir(parents=True, exist_ok=True)
    for split, items in splits.items():
        for index, language in enumerate((args.source, args.target)):
            text = "".join(f"{pair[index]}\n" for pair in items)
            (args.out / f"{split}.{language}").write_text(text, encoding="utf-8")
        print(f"{split}: {len(items):,} pairs")


if __name__ == "__main__":
    main()
