"""Inline tags of a sentence, put around those words of its translation that came from the words they were around."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from html import escape
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from fairseq_tg.compiled.alignment import units

#: How deep elements may lie in each other and still find their words; those further in stay where they are
DEEPEST = 50
#: Elements that are part of a sentence
_INLINE = """a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark q s samp small span
    strike strong sub sup time tt u var wbr"""
INLINE = frozenset(_INLINE.split())
#: Elements that have no end tag
VOID = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr")
)
#: Elements whose start tag begins text without tags, or text that stays as it is, however it ends
_NEVER_EMPTY = ("script", "style", "textarea", "pre")
_IN_QUOTES = re.compile(r"""(=\s*)("[^"]*"|'[^']*')""")
_ENDS_IN_VALUE = re.compile(r"""=\s*[^\s"'>][^\s>]*>$""")  # without quotes
_NAME = re.compile(r"</?([a-zA-Z][^\s/>]*)")


class Tag(NamedTuple):
    place: int  # in a text
    text: str
    whole: bool = False  # an element from its start tag to its end, which is kept as it is


def tag_name(tag: str) -> str:
    """In small letters; nothing for a comment or a declaration."""
    found = _NAME.match(tag)
    return found.group(1).lower() if found else ""


def without_values(tag: str) -> str:
    """A tag whose values in quotes are empty."""
    return _IN_QUOTES.sub(r'\1""', tag)


def is_closing(tag: str) -> bool:
    return tag.startswith("</")


def is_self_closed(tag: str) -> bool:
    """Whether it ends with a slash of its own: in <a href=/x/> that is the value's."""
    ends = tag.endswith("/>") and not _ENDS_IN_VALUE.search(without_values(tag))
    return ends and tag_name(tag) not in _NEVER_EMPTY


def is_opening(tag: str) -> bool:
    """Whether an end tag is to come."""
    return not (is_closing(tag) or is_self_closed(tag) or tag_name(tag) in (*VOID, ""))


def escape_text(text: str) -> str:
    """A text as it stands between tags."""
    return escape(text, quote=False)


def with_tags(text: str, tags: Sequence[Tag]) -> str:
    """A text with tags at their places."""
    pieces, at = [], 0
    for tag in tags:
        pieces += [escape_text(text[at : tag.place]), tag.text]
        at = tag.place
    return "".join([*pieces, escape_text(text[at:])])


@dataclass(eq=False)
class Element:
    """A pair of tags around units of a source; one that is not in the sentence is empty. Or something at one place."""

    open: str
    start: int
    end: int = 0
    close: str = ""
    from_first: bool = False  # its start tag came before the sentence, or before what is around it
    to_last: bool = False  # its end tag comes later
    spaces: Tuple[bool, bool] = (False, False)  # of something at one place: before and behind it
    is_point: bool = False
    children: List[Element] = field(default_factory=list)

    def inside(self) -> Iterator[Element]:
        for child in self.children:
            yield child
            yield from child.inside()


class TaggedSentence:
    """A sentence with its tags, whose places are within it or at its ends."""

    def __init__(self, text: str, tags: Sequence[Tag]) -> None:
        self._spans = units(text)
        self._root = self._elements(text, tags)

    @property
    def needs_alignment(self) -> bool:
        """Whether a tag stands between two words."""
        return any(0 < place < len(self._spans) for item in self._root.inside() for place in (item.start, item.end))

    def _elements(self, text: str, tags: Sequence[Tag]) -> Element:
        starts, ends = [start for start, _ in self._spans], [end for _, end in self._spans]
        root = Element("", 0, len(ends))
        around = [root]  # the open elements
        deeper: List[str] = []  # names of those too far in
        closed = 0  # elements that began before the sentence
        for place, tag, whole in tags:
            top, name, before = around[-1], tag_name(tag), bisect_right(ends, place)
            is_point = whole or not name or name in VOID or is_self_closed(tag)
            if not is_point and not is_closing(tag) and len(around) > DEEPEST:
                deeper.append(name)
                is_point = True
            elif is_closing(tag) and name in deeper:
                del deeper[len(deeper) - 1 - deeper[::-1].index(name) :]
                is_point = True
            if is_point:
                visible = whole or name == "img"
                spaces = (visible and text[:place][-1:].isspace(), visible and text[place : place + 1].isspace())
                top.children.append(Element(tag, before, before, spaces=spaces, is_point=True))
            elif not is_closing(tag):
                around.append(Element(tag, before, len(ends), to_last=True))
                top.children.append(around[-1])
            else:
                end = bisect_left(starts, place)
                found = [item for item in around if item.open and tag_name(item.open) == name]
                if found:
                    while around[-1] is not found[-1]:
                        around.pop().end = end  # what is crossed goes to the end of what is around it
                    item = around.pop()
                    item.end, item.close, item.to_last = end, tag, False
                elif closed < DEEPEST:
                    top.children = [Element("", top.start, end, tag, from_first=True, children=top.children)]
                    closed += 1
                else:
                    top.children.append(Element(tag, before, before, is_point=True))
        return root

    def filled(self, translation: str, alignment: Optional[np.ndarray]) -> str:
        """The translation with the tags; without an alignment, words are taken to be in the source's order."""
        spans = units(translation)
        if alignment is None:
            alignment = _in_order(len(spans), len(self._spans))
        writer = _Writer(translation, spans)
        sums = np.concatenate([np.zeros((len(spans), 1)), np.cumsum(alignment, axis=1)], axis=1)
        self._place(self._root, 0, len(spans), sums, writer)
        return writer.finished()

    def _place(self, parent: Element, low: int, high: int, sums: np.ndarray, writer: _Writer) -> None:
        """sums: of each unit of the translation, how much came from before each of the source."""
        placed = [(self._range(child, parent, low, high, sums), child) for child in parent.children]
        # What began before is first and what ends later is last, whatever the alignment says: tags stay nested
        placed.sort(key=lambda item: (not item[1].from_first, item[1].to_last, item[0]))
        at = low
        for (start, end), child in placed:
            start = max(start, at)
            at = max(end, start)
            if child.is_point:
                writer.point(start, child)
                continue
            writer.open(start, child.open)
            self._place(child, start, at, sums, writer)
            writer.close(at, child.close)

    @staticmethod
    def _range(child: Element, parent: Element, low: int, high: int, sums: np.ndarray) -> Tuple[int, int]:
        """Which units of the translation, of those from low to high, an element is put around."""
        if child.from_first:
            return low, _boundary(child.end, parent, low, high, sums)
        if child.to_last:
            return _boundary(child.start, parent, low, high, sums), high
        if child.start >= child.end:
            start = _boundary(child.start, parent, low, high, sums)
            return start, start
        if low == high or (child.start, child.end) == (parent.start, parent.end):
            return low, high
        # the run of units with the most that came from within, less what came from without; of one unit at least
        from_within = sums[low:high, child.end] - sums[low:high, child.start]
        gained = np.concatenate([[0.0], np.cumsum(from_within - 0.5)])
        last = int(np.argmax(gained[1:] - np.minimum.accumulate(gained[:-1])))
        return low + int(np.argmin(gained[: last + 1])), low + last + 1


def _boundary(place: int, parent: Element, low: int, high: int, sums: np.ndarray) -> int:
    """Where most of what came from before a place of the source is before, and most of the rest behind."""
    if place <= parent.start:
        return low
    if place >= parent.end:
        return high
    before = sums[low:high, place]
    return low + int(np.argmin(np.concatenate([[0.0], np.cumsum(1 - 2 * before)])))


def _in_order(here: int, there: int) -> np.ndarray:
    """Each unit of a translation from where it would be in the source if both went on evenly."""
    edges, others = np.arange(here + 1) * max(there, 1), np.arange(there + 1) * max(here, 1)
    overlap = np.minimum(edges[1:, None], others[1:]) - np.maximum(edges[:-1, None], others[:-1])
    return np.maximum(overlap, 0) / max(there, 1)


class _Writer:
    """A text that is written from its begin to its end, with tags between."""

    def __init__(self, text: str, spans: Sequence[Tuple[int, int]]) -> None:
        self._text, self._spans = text, spans
        self._pieces: List[str] = []
        self._at = 0

    def _go(self, place: int) -> None:
        if place > self._at:
            self._pieces.append(escape_text(self._text[self._at : place]))
            self._at = place

    def _before(self, unit: int) -> int:
        return self._spans[unit][0] if unit < len(self._spans) else len(self._text)

    def _behind(self, unit: int) -> int:
        """The end of the unit before."""
        return self._spans[unit - 1][1] if unit else 0

    def open(self, unit: int, tag: str) -> None:
        if tag:
            self._go(self._before(unit))
            self._pieces.append(tag)

    def close(self, unit: int, tag: str) -> None:
        if tag:
            self._go(self._behind(unit))
            self._pieces.append(tag)

    def point(self, unit: int, item: Element) -> None:
        before, behind = item.spaces
        gap = self._before(unit) - self._behind(unit) if 0 < unit < len(self._spans) else 0
        self._go(self._before(unit) if before and not behind else self._behind(unit))
        self._pieces += [" " * (before and behind and unit > 0), item.open]
        self._pieces += [" " * (before and behind and unit < len(self._spans) and not gap)]

    def finished(self) -> str:
        self._go(len(self._text))
        return "".join(self._pieces)
