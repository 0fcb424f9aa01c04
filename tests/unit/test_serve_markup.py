"""HTML, whose tags are kept and go with their words."""

from __future__ import annotations

from collections import Counter
from html import unescape
from typing import Any, List, Optional, Tuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_tg.compiled.alignment import units
from fairseq_tg.serve.drafts import Draft
from fairseq_tg.serve.markup import _parts
from fairseq_tg.serve.tags import is_closing, is_opening, tag_name

NAMES = ("b", "i", "a", "p", "code", "q")

TAGS = [
    *(f"<{name}>" for name in NAMES),
    *(f"</{name}>" for name in NAMES),
    "<img src='>'>",
    "<br>",
    "<!-- x -->",
    "<b/>",
]


def tags_and_text(page: str) -> Tuple[List[str], str]:
    """Its tags and comments, and the rest of it without spaces."""
    parts = list(_parts(page))
    text = unescape("".join(part for part, is_tag in parts if not is_tag))
    return [part for part, is_tag in parts if is_tag], "".join(text.split())


def is_balanced(page: str) -> bool:
    names: List[str] = []
    for tag in tags_and_text(page)[0]:
        if is_opening(tag):
            names.append(tag_name(tag))
        elif is_closing(tag) and (not names or names.pop() != tag_name(tag)):
            return False
    return not names


@given(st.text(alphabet="aB<>&;/!-\"'= ?", max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_html_breaks_it(page: str) -> None:
    draft = Draft.of(page, html=True)
    filled = draft.fill(draft.sentences.__getitem__)
    assert sorted(tags_and_text(filled)[0]) == sorted(tags_and_text(page)[0])
    assert tags_and_text(filled)[1] == tags_and_text(page)[1]


@given(st.lists(st.sampled_from([*TAGS, " ", ". ", "Aa", "bb ", "c&lt;d ", "\n"]), max_size=25), st.randoms())
@settings(max_examples=500, deadline=None)
def test_tags_are_there_once_whatever_the_translation(parts: List[str], random: Any) -> None:
    page = "".join(parts)
    draft = Draft.of(page, html=True)
    texts = [" ".join(random.choice(["Xx", "y,", "z<"]) for _ in range(random.randint(0, 6))) for _ in draft.sentences]

    def alignment(number: int) -> np.ndarray:
        shape = len(units(texts[number])), len(units(draft.sentences[number]))
        found = np.random.default_rng(random.randint(0, 9999)).random(shape) ** 4 + 1e-9
        return found / found.sum(axis=1, keepdims=True)

    filled = draft.fill(texts.__getitem__, random.choice([alignment, lambda number: None]))
    assert sorted(tags_and_text(filled)[0]) == sorted(tags_and_text(page)[0])
    assert not Counter("".join("".join(texts).split())) - Counter(tags_and_text(filled)[1])
    if is_balanced(page):
        assert is_balanced(filled), (page, filled)


@pytest.mark.parametrize(
    "page, sentences, translations, order, expected",
    [  # the translation's words in the order of the source's: 2 0 is that the first came from the third
        ("Ein <b>Hund</b> läuft.", ["Ein Hund läuft."], ["Runs a dog."], [2, 0, 1, 3], "Runs a <b>dog</b>."),
        ("<p><b>Ein Hund.</b></p>", ["Ein Hund."], ["Dogs"], None, "<p><b>Dogs</b></p>"),
        ("<b>a</b> <i>b</i>", ["a b"], ["B A"], [1, 0], "<i>B</i> <b>A</b>"),
        ("<b>a <i>b</i></b> c", ["a b c"], ["C B A"], [2, 1, 0], "C <b><i>B</i> A</b>"),
        ("A <b>aa. B</b> bb.", ["A aa.", "B bb."], ["x y.", "y x."], [0, 1, 2], "x <b>y. y</b> x."),
        ("a b <code>x&lt;y</code> c", ["a b  c"], ["B A C"], [1, 0, 2], "B A <code>x&lt;y</code> C"),
        ("a <span translate='no'>x</span> b", ["a  b"], ["A B"], None, "A <span translate='no'>x</span> B"),
        ("a <!-- <b> --> b<br>c", ["a  b", "c"], ["A B", "C"], None, "A<!-- <b> --> B<br>C"),
        ("a\n<a title='b > c'>b</a>", ["a b"], ["A & B"], [0, 0, 1], "A &amp; <a title='b > c'>B</a>"),
        ("<b>a <i>b</b> c</i>", ["a b c"], ["A B C"], None, "<b>A <i>B</b> C</i>"),
        ("<a href=/x/>a</a> b", ["a b"], ["B A"], [1, 0], "B <a href=/x/>A</a>"),
        ("<a title=' = b'/>a b", ["a b"], ["A B"], None, "<a title=' = b'/>A B"),
        ("<div title='translate=no'>a b</div>", ["a b"], ["A B"], None, "<div title='translate=no'>A B</div>"),
        ("<p class=notranslate>a</p>b", ["b"], ["B"], None, "<p class=notranslate>a</p>B"),
        ("<script src=x />if (a < b) c</script>a", ["a"], ["A"], None, "<script src=x />if (a < b) c</script>A"),
        ("<pre title=/x/>a</pre>b", ["b"], ["B"], None, "<pre title=/x/>a</pre>B"),
        ("a <ö 5> b", ["a <ö 5> b"], ["A < B"], None, "A &lt; B"),
    ],
)
def test_tags_go_with_their_words(
    page: str, sentences: List[str], translations: List[str], order: Optional[List[int]], expected: str
) -> None:
    draft = Draft.of(page, html=True)
    assert draft.sentences == sentences
    aligned = None if order is None else np.eye(max(order) + 1)[order]
    assert draft.fill(translations.__getitem__, lambda number: aligned) == expected


def test_elements_of_any_depth() -> None:
    page = "<b>" * 3000 + "a" + "<i>" * 3000 + " b" + "</i>" * 3000 + "</b>" * 3000
    draft = Draft.of(page, html=True)
    assert tags_and_text(draft.fill(draft.sentences.__getitem__)) == tags_and_text(page)


def test_tags_are_kept() -> None:
    page = (
        '<p class="a>b">Ein &lt; Hund<br> und</p><!-- Nein > Nein --><script>if (a < b) "x"</script>'
        "<pre>Ein Hund</pre> <i translate=no>Ein <b>Hund</b></i>zwei <img alt='x'>\n<b class='notranslate'>n</b>"
    )
    draft = Draft.of(page, html=True)
    assert draft.sentences == ["Ein < Hund", "und", "zwei"]
    assert draft.fill(["A & B", "and", "two"].__getitem__) == (
        page.replace("Ein &lt; Hund<br> und", "A &amp; B<br> and").replace("zwei", "two")
    )


@pytest.mark.parametrize(
    "page, expected",
    [
        ("<p it's>Ein Hund</p><p>Zwei.</p>", ["Ein Hund", "Zwei."]),
        ("<p title = 'a > b'>Ein</p>", ["Ein"]),
        ('<p a=b"c>Ein</p> <i>"zwei"</i>', ["Ein", '"zwei"']),
        ("Ein <!-- Hund <p>zwei</p>", ["Ein"]),  # a comment without an end goes on to the end, as in a browser
    ],
)
def test_where_tags_end(page: str, expected: List[str]) -> None:
    draft = Draft.of(page, html=True)
    assert draft.sentences == expected
    assert unescape(draft.fill(draft.sentences.__getitem__)) == page


@pytest.mark.parametrize("tags", ["</b>" * 1200, "<i>" * 300 + "</b>" * 900, "</b><i></b>" * 400])
def test_end_tags_without_number(tags: str) -> None:
    draft = Draft.of(f"w1 {tags} w2", html=True)
    assert draft.fill(lambda number: "w3 w4").count("<") == tags.count("<")
