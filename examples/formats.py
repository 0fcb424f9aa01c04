"""Readers of the formats that translation corpora are distributed in: one sentence a line comes out. Usage:

python formats.py segments FILE OUT                  XML and SGML test sets (IWSLT, WMT): <seg id="1">...</seg>
python formats.py tags SOURCE TARGET OUT_SOURCE OUT_TARGET     IWSLT's train.tags: lines of text among lines of tags
"""

from __future__ import annotations

import argparse
import html
import re
from pathlib import Path
from typing import List

SEGMENT = re.compile(r"<seg\b([^>]*)>(.*?)</seg\s*>", re.IGNORECASE | re.DOTALL)
NUMBER = re.compile(r"""\bid\s*=\s*["']?(\d+)""", re.IGNORECASE)
TAGGED = re.compile(r"\s*<(/?doc|url|title|/?description|keywords|talkid|reviewer|translator|speaker)\b", re.IGNORECASE)


def read_segments(text: str, name: str) -> List[str]:
    """The segments of a test set, in order. SGML is no XML (it has bare ampersands), so neither is parsed as such."""
    found = []
    for document in re.split(r"<doc\b", text, flags=re.IGNORECASE)[1:] or [text]:
        for expected, (attributes, content) in enumerate(SEGMENT.findall(document), start=1):
            number = NUMBER.search(attributes)
            if number is None or int(number.group(1)) != expected:
                raise SystemExit(
                    f"formats.py: error: '{name}': segment {expected} of a document has {attributes.strip()!r}"
                )
            found.append(" ".join(html.unescape(content).split()))
    if not found:
        raise SystemExit(f"formats.py: error: '{name}' has no segments: is it XML or SGML with <seg> elements?")
    return found


def read_tagged(text: str) -> List[str]:
    """The lines of text of a train.tags file. They are escaped like XML."""
    return [html.unescape(line).strip() for line in text.splitlines() if not TAGGED.match(line)]


def write(path: Path, lines: List[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    segments = commands.add_parser("segments")
    segments.add_argument("file", type=Path)
    segments.add_argument("out", type=Path)
    tags = commands.add_parser("tags")
    for name in ("source", "target", "out_source", "out_target"):
        tags.add_argument(name, type=Path)
    args = parser.parse_args()
    if args.command == "segments":
        write(args.out, read_segments(args.file.read_text(encoding="utf-8"), args.file.name))
        return
    sides = [read_tagged(path.read_text(encoding="utf-8")) for path in (args.source, args.target)]
    if len(sides[0]) != len(sides[1]):
        raise SystemExit(
            f"formats.py: error: {len(sides[0])} lines in '{args.source}', {len(sides[1])} in '{args.target}'"
        )
    pairs = [pair for pair in zip(*sides) if all(pair)]
    for index, path in enumerate((args.out_source, args.out_target)):
        write(path, [pair[index] for pair in pairs])


if __name__ == "__main__":
    main()
