"""HTML cut into what is kept as it is and the blocks of text between."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import unescape
from typing import Iterator, List, Tuple, Union

from fairseq_tg.serve.tags import INLINE, Tag, is_closing, is_opening, tag_name

#: Elements whose text is no text to translate
KEPT = frozenset(("script", "style", "code", "pre", "kbd", "samp", "textarea", "svg", "math", "head", "template"))
_ATTRIBUTE = re.compile(r"""[\s"'/]([^\s"'<>/=]+)\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+)""")


_BEGINS_TAG = re.compile("</?[a-zA-Z]")


@dataclass
class Block:
    """Text that belongs together, unescaped, and the tags within it."""

    text: str = ""
    tags: List[Tag] = field(default_factory=list)


def split_html(page: str) -> List[Union[str, Block]]:
    """What stays as it is, and blocks. An element within a sentence that is not translated is as one tag of it."""
    pieces: List[Union[str, Block]] = []
    block = Block()
    kept: List[str] = []  # the open elements, from the outermost that is kept on
    kept_inline = ""  # the source of an element that is kept within a sentence

    def end_block() -> None:
        nonlocal block
        if block.text or block.tags:
            pieces.append(block)
            block = Block()

    def add_tag(tag: str, whole: bool = False) -> None:
        block.tags.append(Tag(len(block.text), tag, whole))

    for part, is_tag in _parts(page):
        name = tag_name(part) if is_tag else ""
        if kept:
            if is_closing(part) and name in kept:
                del kept[len(kept) - 1 - kept[::-1].index(name) :]
            elif is_tag and is_opening(part):
                kept.append(name)
            if kept_inline:
                kept_inline += part
                if not kept:
                    add_tag(kept_inline, whole=True)
                    kept_inline = ""
            else:
                pieces.append(part)
        elif not is_tag:
            block.text += unescape(part)
        elif is_opening(part) and (name in KEPT or _is_not_translated(part)):
            kept.append(name)
            if name in INLINE:
                kept_inline = part
            else:
                end_block()
                pieces.append(part)
        elif name in INLINE or part.startswith("<!--"):
            add_tag(part)
        else:
            end_block()
            pieces.append(part)
    if kept_inline:  # without an end
        add_tag(kept_inline, whole=True)
    end_block()
    return pieces


def _is_not_translated(tag: str) -> bool:
    """Whether an attribute of it says so."""
    attributes = {name.lower(): value.strip("\"'").lower() for name, value in reversed(_ATTRIBUTE.findall(tag))}
    return attributes.get("translate") == "no" or "notranslate" in attributes.get("class", "").split()


def _parts(page: str) -> Iterator[Tuple[str, bool]]:
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
        name = tag_name(page[start:end])
        if name in ("script", "style", "textarea") and page[start + 1] != "/":
            # up to its end tag these have no tags
            close = re.compile(f"</{name}(?=[\\s/>])", re.IGNORECASE).search(page, end)
            at = close.start() if close else len(page)
    if text_from < len(page):
        yield page[text_from:], False


def _tag_end(page: str, start: int) -> int:
    """Where a tag or comment that begins there ends; `start` if none begins there, -1 if it has no end."""
    following = page[start + 1 : start + 2]
    if page.startswith("<!--", start):
        end = _behind(page, "-->", start + 4)
        return len(page) if end < 0 else end  # as browsers have it
    if following in ("!", "?"):
        return _behind(page, ">", start)
    if not _BEGINS_TAG.match(page, start):
        return start
    quote, at_value = "", False  # a value in quotes, which begins behind an equals sign alone
    for at in range(start + 1, len(page)):
        character = page[at]
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and at_value:
            quote = character
        elif character == ">":
            return at + 1
        at_value = character == "=" or (at_value and character.isspace())
    return -1


def _behind(page: str, mark: str, start: int) -> int:
    found = page.find(mark, start)
    return found if found < 0 else found + len(mark)
