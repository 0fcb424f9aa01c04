"""HTML cut into what is kept as it is and what is translated."""

from __future__ import annotations

import re
from html import escape, unescape
from typing import Iterator, List

from fairseq_tg.serve.sentences import Piece

#: Elements whose text is no text to translate
KEPT = frozenset(("script", "style", "code", "pre", "kbd", "samp", "textarea", "svg", "math", "head", "template"))
#: Elements that have no end tag
VOID = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr")
)
_NAME = re.compile(r"</?([a-zA-Z][^\s/>]*)")
_NO_TRANSLATION = re.compile(
    r"""\s(?:translate\s*=\s*["']?no\b|class\s*=\s*["'][^"']*\bnotranslate\b)""", re.IGNORECASE
)


def split_html(page: str) -> List[Piece]:
    """Its tags, comments and text, one after another; text is unescaped."""
    pieces: List[Piece] = []
    kept: List[str] = []  # the open elements, from the outermost that is kept on
    for part, is_tag in _parts(page):
        if not is_tag:
            # In the text of a script, & is an & already
            pieces.append((part, False) if kept else (unescape(part), True))
            continue
        pieces.append((part, False))
        found = _NAME.match(part)
        if not found:
            continue  # a comment or a declaration
        name = found.group(1).lower()
        if part.startswith("</"):
            if name in kept:
                del kept[len(kept) - 1 - kept[::-1].index(name) :]
        elif name not in VOID and not part.endswith("/>") and (kept or name in KEPT or _NO_TRANSLATION.search(part)):
            kept.append(name)
    return pieces


def escape_text(text: str) -> str:
    """A translation as it stands between tags."""
    return escape(text, quote=False)


def _parts(page: str) -> Iterator[Piece]:
    """Runs of text (False) and tags (True). What looks like a tag and does not end is text."""
    text_from = at = 0
    while True:
        start = page.find("<", at)
        if start < 0:
            break
        end = _tag_end(page, start)
        if end < 0:
            break  # nor does any later one
        if end == start:  # a less-than sign
            at = start + 1
            continue
        if start > text_from:
            yield page[text_from:start], False
        yield page[start:end], True
        text_from = at = end
        found = _NAME.match(page, start, end)
        if found and found.group(1).lower() in ("script", "style", "textarea") and page[start + 1] != "/":
            # up to its end tag these have no tags
            close = re.compile(f"</{found.group(1)}(?=[\\s/>])", re.IGNORECASE).search(page, end)
            at = close.start() if close else len(page)
    if text_from < len(page):
        yield page[text_from:], False


def _tag_end(page: str, start: int) -> int:
    """Where a tag or comment that begins there ends; `start` if none begins there, -1 if it has no end."""
    following = page[start + 1 : start + 2]
    if page.startswith("<!--", start):
        return _behind(page, "-->", start + 4)
    if following in ("!", "?"):
        return _behind(page, ">", start)
    if not (following.isalpha() or (following == "/" and page[start + 2 : start + 3].isalpha())):
        return start
    quote = ""
    for at in range(start + 1, len(page)):
        character = page[at]
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == ">":
            return at + 1
    return -1


def _behind(page: str, mark: str, start: int) -> int:
    found = page.find(mark, start)
    return found if found < 0 else found + len(mark)
