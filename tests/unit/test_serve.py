"""The parts of the service that need no server."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import threading
import time
from collections import Counter
from html import unescape
from pathlib import Path
from typing import Any, List, Optional, Sequence, Tuple, cast
from unittest.mock import Mock, call
from urllib.parse import urlencode

import numpy as np
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from fairseq_tg.compiled import InputError
from fairseq_tg.compiled.alignment import units
from fairseq_tg.compiled.pieces import encode_pieces
from fairseq_tg.errors import UserError
from fairseq_tg.sentences import halves, split_text
from fairseq_tg.serve import server
from fairseq_tg.serve.batching import LONG, NICE, Batcher, Order, Work
from fairseq_tg.serve.connections import Connection, is_whole_translation
from fairseq_tg.serve.drafts import Draft
from fairseq_tg.serve.forms import parse_fields, read_translation
from fairseq_tg.serve.keys import Keys
from fairseq_tg.serve.markup import _parts
from fairseq_tg.serve.options import Batching, Limits, ServeOptions
from fairseq_tg.serve.page import read_page
from fairseq_tg.serve.rates import MOST_ADDRESSES, Rates
from fairseq_tg.serve.refusals import Refusal
from fairseq_tg.serve.server import KEEP_ALIVE, _Server
from fairseq_tg.serve.tags import is_closing, is_opening, tag_name

# Sentences and HTML


def sentences(text: str) -> List[str]:
    return [piece for piece, is_sentence in split_text(text) if is_sentence]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Ein Hund läuft. Zwei Hunde laufen.", ["Ein Hund läuft.", "Zwei Hunde laufen."]),
        ("Wie? So! Ach …  Gut.", ["Wie?", "So!", "Ach …", "Gut."]),
        ('Er sagte: "Ja." Dann ging er.', ['Er sagte: "Ja."', "Dann ging er."]),
        ("Am 3. Mai kam Dr. Meier.", ["Am 3. Mai kam Dr. Meier."]),
        ("J. R. Ewing kam z.B. Montag.", ["J. R. Ewing kam z.B. Montag."]),
        ("Es kostet 1.50 Euro. das ist klein.", ["Es kostet 1.50 Euro. das ist klein."]),
        ("你好。我是。", ["你好。", "我是。"]),
        ("eins\r\n\n  zwei \n", ["eins", "zwei"]),
        ("", []),
    ],
)
def test_sentences(text: str, expected: List[str]) -> None:
    assert sentences(text) == expected


@given(st.text(alphabet="aB1. !?\n\t\"'\u2028<>&/x-=", max_size=60))
@settings(max_examples=300, deadline=None)
def test_nothing_of_a_text_is_lost(text: str) -> None:
    assert "".join(piece for piece, _ in split_text(text)) == text
    draft = Draft.of(text, html=False)
    assert draft.fill(draft.sentences.__getitem__) == text


def tags_and_text(page: str) -> Tuple[List[str], str]:
    """Its tags and comments, and the rest of it without spaces."""
    parts = list(_parts(page))
    text = unescape("".join(part for part, is_tag in parts if not is_tag))
    return [part for part, is_tag in parts if is_tag], "".join(text.split())


@given(st.text(alphabet="aB<>&;/!-\"'= ?", max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_html_breaks_it(page: str) -> None:
    draft = Draft.of(page, html=True)
    filled = draft.fill(draft.sentences.__getitem__)
    assert sorted(tags_and_text(filled)[0]) == sorted(tags_and_text(page)[0])
    assert tags_and_text(filled)[1] == tags_and_text(page)[1]


NAMES = ("b", "i", "a", "p", "code", "q")
TAGS = [
    *(f"<{name}>" for name in NAMES),
    *(f"</{name}>" for name in NAMES),
    "<img src='>'>",
    "<br>",
    "<!-- x -->",
    "<b/>",
]


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


def is_balanced(page: str) -> bool:
    names: List[str] = []
    for tag in tags_and_text(page)[0]:
        if is_opening(tag):
            names.append(tag_name(tag))
        elif is_closing(tag) and (not names or names.pop() != tag_name(tag)):
            return False
    return not names


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


def test_a_sentence_that_is_too_long_is_cut_at_a_space() -> None:
    assert halves("aaaa bb cccc") == ("aaaa bb", " cccc")
    assert halves("aaaaaa") == ("aaa", "aaa")
    assert halves(halves("aaaa bbbb cccc dddd")[1]) == ("cccc", " dddd")


class Narrow:
    """A translator that takes two letters, and no "x" at all; translations have at most three."""

    def limit(self, source: List[int]) -> int:
        return 3

    def encode(self, sentence: str) -> List[int]:
        if "x" in sentence or len(sentence.strip()) > 2:
            raise InputError("too long")
        return list(map(ord, sentence.strip()))


def test_a_character_that_is_too_long_by_itself_is_left_out() -> None:
    pieces = encode_pieces(cast(Any, Narrow()), "ab xcd ef")
    assert ["".join(map(chr, piece)) for piece in pieces] == ["ab", "", "cd", "ef"]


def test_a_sentence_whose_translation_would_be_cut_is_cut_itself() -> None:
    class Wide(Narrow):
        def encode(self, sentence: str) -> List[int]:
            return list(map(ord, sentence.strip()))

    pieces = encode_pieces(cast(Any, Wide()), "ab cd efg x")
    assert ["".join(map(chr, piece)) for piece in pieces] == ["ab", "cd", "e", "fg", "x"]


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


# Fields


@pytest.mark.parametrize(
    "body, message",
    [
        (b"{", "Invalid JSON format"),
        (b"[" * 100_000, "Invalid JSON format"),
        (b"[1]", "Invalid JSON format"),
        (b'{"source": "a", "target": "b"}', "missing q parameter"),
        (b'{"q": ["a", 1], "source": "a", "target": "b"}', "q parameter is neither"),
        (b'{"q": "\\ud800", "source": "a", "target": "b"}', "q parameter is not UTF-8"),
        (b'{"q": "a", "target": "b"}', "missing source parameter"),
        (b'{"q": "a", "source": "a", "target": 1}', "target parameter is not a language code"),
        (b'{"q": "a", "source": "a", "target": "b", "format": "pdf"}', "pdf format is not supported"),
        (b'{"q": "a", "source": "a", "target": "b", "beam": 9}', "beam parameter must be <= 8"),
        (b'{"q": "a", "source": "a", "target": "b", "beam": 1e999}', "beam parameter is not a number"),
        (b'{"q": "a", "source": "a", "target": "b", "alternatives": -1}', "alternatives parameter must be >= 0"),
        (b'{"q": "a", "source": "a", "target": "b", "alternatives": [1]}', "alternatives parameter is not a number"),
        (b'{"q": "a", "source": "a", "target": "b", "scores": "maybe"}', "scores parameter is neither true nor false"),
        (b'{"q": "a", "source": "a", "target": "b", "scores": 2}', "scores parameter is neither true nor false"),
        (b'{"q": "12345678901", "source": "a", "target": "b"}', r"request \(11\) exceeds text limit \(10\)"),
        (b'{"q": ["a", "a", "a"], "source": "a", "target": "b"}', r"request \(3\) exceeds text limit \(2\)"),
    ],
)
def test_bad_fields_are_refused(body: bytes, message: str) -> None:
    with pytest.raises(Refusal, match=message) as refusal:
        read_translation(parse_fields(body, "application/json"), Limits(max_characters=10, max_texts=2), 1)
    assert refusal.value.status == (413 if "exceeds" in message else 400)


def test_a_form_and_json_say_the_same() -> None:
    form = parse_fields(
        b"q=a%0D%0Ab&source=auto&target=en&alternatives=2&scores=1", "application/x-www-form-urlencoded"
    )
    json = {"q": "a\nb", "source": "auto", "target": "en", "alternatives": 2.0, "scores": True, "beam": None}
    assert read_translation(form, Limits(), 1) == read_translation(json, Limits(), 1)
    assert read_translation(form, Limits(), 1) == read_translation({**json, "scores": 1}, Limits(), 1)
    assert read_translation(json, Limits(), 1).beam == 3  # which three hypotheses need


@pytest.mark.parametrize("tags", ["</b>" * 1200, "<i>" * 300 + "</b>" * 900, "</b><i></b>" * 400])
def test_end_tags_without_number(tags: str) -> None:
    draft = Draft.of(f"w1 {tags} w2", html=True)
    assert draft.fill(lambda number: "w3 w4").count("<") == tags.count("<")


def test_a_form_may_have_several_texts() -> None:
    fields = parse_fields(b"q=a%0D%0Ab&q=c&source=de&source=fr", "application/x-www-form-urlencoded")
    assert fields == {"q": ["a\nb", "c"], "source": "de"}


@pytest.mark.parametrize(
    "given, actor, named",
    [(None, True, None), (True, True, None), ("0", False, None), (False, False, None), ("news", True, "news")],
)
def test_an_actor_is_chosen_or_not_or_by_name(given: Any, actor: bool, named: Any) -> None:
    asked = read_translation({"q": "a", "source": "de", "target": "en", "actor": given}, Limits(), 1)
    assert (asked.actor, asked.named_actor) == (actor, named)


def test_a_form_keeps_a_texts_lines() -> None:
    """But for how they end."""
    body = urlencode({"q": "a\r\nb\u2028c\x0bd\n", "source": "de"}).encode()
    assert parse_fields(body, "application/x-www-form-urlencoded")["q"] == "a\nb\u2028c\x0bd\n"


# Keys, rates and the page


def test_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# ours\n\n{hashlib.sha256(b'right').hexdigest()}  -\n")
    keys = Keys(str(path))
    keys.check("right")
    for key, message in ((None, "contact"), ("", "contact"), ("wrong", "Invalid API key"), (["right"], "Invalid")):
        with pytest.raises(Refusal, match=message) as refusal:
            keys.check(key)
        assert refusal.value.status == 403
    assert "right" not in repr(vars(keys))
    Keys(None).check(None)


@pytest.mark.parametrize(
    "content, message", [("secret\n", "line 1 of .* SHA-256"), ("# none\n", "there are no API keys")]
)
def test_bad_keys_end_in_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "keys").write_text(content)
    with pytest.raises(UserError, match=message) as error:
        Keys(str(tmp_path / "keys"))
    assert "secret" not in str(error.value)
    with pytest.raises(UserError, match="cannot read the API keys"):
        Keys(str(tmp_path / "none"))


def test_rates() -> None:
    now = [0.0]
    rates = Rates(2, lambda: now[0])
    for _ in range(2):
        rates.check("1.2.3.4")
    with pytest.raises(Refusal) as refusal:
        rates.check("1.2.3.4")
    assert refusal.value.status == 429 and refusal.value.headers == {"Retry-After": "30"}
    rates.check("1.2.3.5")
    now[0] = 30.0
    rates.check("1.2.3.4")
    for last in "12":
        rates.check(f"2001:db8::{last}")
    with pytest.raises(Refusal):
        rates.check("2001:db8::3")  # of the same customer
    for number in range(MOST_ADDRESSES + 10):
        rates.check(f"host{number}")
    assert len(rates._buckets) == MOST_ADDRESSES
    Rates(0).check("1.2.3.4")


def test_the_page_has_nothing_from_elsewhere() -> None:
    page, headers = read_page()
    text = page.decode()
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert text.count("<script>") == text.count("<style>") == 1 and "innerHTML" not in text
    assert "forced-colors: active" in text  # in which all boxes would have one ground
    for source in ("http:", "https:", "//cdn", "@import", "url("):
        assert source not in text.replace("http://www.w3.org/2000/svg", "")


# Batches


class Slow(Work):
    """Notes its batches and takes a while for each."""

    def __init__(self, key: str = "", seconds: float = 0.02) -> None:
        self.key, self.seconds = key, seconds
        self.batches: List[Sequence[Any]] = []

    def run(self, sentences: Sequence[Any]) -> List[Any]:
        self.batches.append(list(sentences))
        time.sleep(self.seconds)
        if "bad" in sentences:
            raise RuntimeError("bad")
        return [sentence.upper() for sentence in sentences]


def order(batcher: Batcher, work: Work, sentences: Sequence[str]) -> Order:
    return batcher.order([(work, sentence) for sentence in sentences])


def run_batches(scenario: Any, **options: Any) -> None:
    async def run() -> None:
        batcher = Batcher(Batching(**{"threads": 1, "batch_size": 4, **options}))
        await asyncio.wait_for(scenario(batcher), 20)
        assert batcher.waiting == batcher._counted == 0 and not batcher._orders
        batcher.close()

    asyncio.run(run())


def test_what_arrives_together_is_translated_together() -> None:
    work, other = Slow(), Slow("other")

    async def scenario(batcher: Batcher) -> None:
        orders = [order(batcher, work, [name]) for name in ("a", "b", "c")] + [order(batcher, other, ["d"])]
        await asyncio.gather(*(ordered.done for ordered in orders))
        assert [ordered.results for ordered in orders] == [["A"], ["B"], ["C"], ["D"]]
        empty = order(batcher, work, [])
        await empty.done

    run_batches(scenario, patience=200.0)  # whatever else the machine is at
    assert sorted(map(sorted, work.batches + other.batches)) == [["a", "b", "c"], ["d"]]


def test_patience_begins_anew_while_sentences_come() -> None:
    work = Slow()

    async def scenario(batcher: Batcher) -> None:
        orders = []
        for name in "abc":
            orders.append(order(batcher, work, [name]))
            await asyncio.sleep(0.4)  # less than the patience, all of them more
        assert not work.batches
        await asyncio.gather(*(ordered.done for ordered in orders))

    run_batches(scenario, patience=1000.0)
    assert [sorted(batch) for batch in work.batches] == [["a", "b", "c"]]


def test_a_long_document_does_not_hold_up_a_short_one() -> None:
    work = Slow()

    async def scenario(batcher: Batcher) -> None:
        document = order(batcher, work, ["x" * (10 + n % 5) for n in range(40)])
        await asyncio.sleep(0.01)
        shorts = [order(batcher, work, ["y" * length]) for length in (1, 100)]
        await asyncio.gather(*(short.done for short in shorts))
        assert not document.done.done() and len(work.batches) <= 6
        await document.done
        assert all(result == "X" * len(result) for result in document.results)

    run_batches(scenario)
    assert all(len(batch) <= 4 for batch in work.batches)


def test_who_came_first_is_not_passed_over_for_those_of_a_better_length() -> None:
    """Beyond the older half of what waits: waiting times are about the same for all lengths."""
    work = Slow(seconds=0.2)

    async def scenario(batcher: Batcher) -> None:
        orders = [order(batcher, work, ["first"])]
        await asyncio.sleep(0.05)  # it is under way
        orders += [order(batcher, work, ["x" * length]) for length in (1, 50, 2, 60, 1, 40, 2, 30)]
        orders += [order(batcher, work, ["y" * length]) for length in (1, 2, 1, 2, 1, 2)]
        await asyncio.gather(*(ordered.done for ordered in orders))

    run_batches(scenario, patience=0.0, batch_size=8)
    assert ["".join(sorted({text[0] for text in batch})) for batch in work.batches] == ["f", "x", "y"]


def test_a_short_sentence_comes_next_after_the_batch_that_is_under_way() -> None:
    """Also where that was the document's; and the document does not wait until no short one comes."""
    work, other = Slow(seconds=0.2), Slow("other")

    async def scenario(batcher: Batcher) -> None:
        document = order(batcher, work, ["x" * LONG] * 9)
        for _ in range(3):
            await asyncio.sleep(0.1)
            done = len(work.batches)
            first, second = order(batcher, work, ["y"]), order(batcher, other, ["z"])
            await first.done
            assert work.batches[done] == ["y"] and not other.batches
            await second.done
            assert [batch[0][0] for batch in work.batches[done : done + 2]] == ["y", "x"]
            other.batches.clear()
        await document.done

    run_batches(scenario, patience=0.0)


def test_long_sentences_are_few_at_a_time_and_without_short_ones() -> None:
    """Or a short one would wait for a batch of them, which takes as long as many of its own."""
    work = Slow()

    async def scenario(batcher: Batcher) -> None:
        document = order(batcher, work, ["x" * (2 * LONG + n) for n in range(20)] + ["z"])
        shorts = [order(batcher, work, ["y" * n]) for n in range(1, 10)]
        await asyncio.gather(document.done, *(short.done for short in shorts))
        assert document.results[0] == "X" * 2 * LONG and document.results[-1] == "Z"

    run_batches(scenario, batch_size=32)
    assert all({len(text) // LONG for text in batch} in ({0}, {2}) for batch in work.batches)
    assert max(len(batch) for batch in work.batches if len(batch[0]) > LONG) == 2


def test_sentences_that_cost_more_come_in_smaller_batches() -> None:
    """A batch of a wide beam would be as long as many of greedy search, and hold up what comes then."""
    work = Slow()
    work.cost = 8

    async def scenario(batcher: Batcher) -> None:
        await order(batcher, work, [str(number) for number in range(25)]).done

    run_batches(scenario, batch_size=32, threads=2, queue=1000)
    assert max(map(len, work.batches)) == 4 and sum(map(len, work.batches)) == 25


def test_a_full_queue_refuses_at_once_and_gone_clients_make_room() -> None:
    work = Slow(seconds=0.5)  # whatever else the machine is at

    async def scenario(batcher: Batcher) -> None:
        first = [order(batcher, work, ["a"]) for _ in range(9)]  # and one of them is begun
        await asyncio.sleep(0.01)
        with pytest.raises(Refusal) as refusal:
            order(batcher, work, ["b"] * 8)
        assert refusal.value.status == 503 and int(refusal.value.headers["Retry-After"]) >= 1
        for ordered in first:
            batcher.cancel(ordered)
        second = order(batcher, work, ["b"] * 8)
        await second.done
        assert all(ordered.done.cancelled() for ordered in first)

    run_batches(scenario, queue=8, patience=0.0)
    assert sum(batch.count("a") for batch in work.batches) <= 4  # one batch had begun


def test_a_long_order_leaves_room_for_others_and_many_of_them_do_not() -> None:
    work = Slow()

    async def scenario(batcher: Batcher) -> None:
        documents = [order(batcher, work, ["x"] * 300)]
        shorts = [order(batcher, work, ["y"]) for _ in range(12)]
        while True:
            try:
                batcher.check_room()
            except Refusal:
                break
            documents.append(order(batcher, work, ["x"] * 300))
        assert 2 <= len(documents) <= 6  # of 32, each takes half of what is left
        await asyncio.gather(*(short.done for short in shorts))
        assert not documents[0].done.done()
        for document in documents:
            batcher.cancel(document)

    run_batches(scenario, queue=32)


def test_a_thread_goes_on_while_the_event_loop_is_at_something_else() -> None:
    work = Slow()

    async def scenario(batcher: Batcher) -> None:
        ordered = order(batcher, work, ["a"] * 12)
        time.sleep(1)  # nothing is taken from the thread, and nothing given to it
        assert len(work.batches) == 3
        await ordered.done
        assert ordered.results == ["A"] * 12

    run_batches(scenario, patience=0.0)


def test_threads_that_translate_give_way_to_the_event_loop() -> None:
    priorities = []

    class Looks(Slow):
        def run(self, sentences: Any) -> List[str]:
            priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return super().run(sentences)

    async def scenario(batcher: Batcher) -> None:
        await order(batcher, Looks(), ["a"]).done

    run_batches(scenario)
    assert priorities == [min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)]


def test_a_batch_that_fails_fails_its_own_requests_alone() -> None:
    async def scenario(batcher: Batcher) -> None:
        bad, good = order(batcher, Slow("1"), ["bad", "a"]), order(batcher, Slow("2"), ["a"])
        await good.done
        with pytest.raises(RuntimeError):
            await bad.done

    run_batches(scenario)


@pytest.mark.parametrize(
    "head, whole",
    [
        ("Host: x\r\nContent-Length: 2", True),
        ("Host: x\r\ncontent-LENGTH:2 ", True),
        ("Host: x\r\nContent-Length: 3", False),  # more is to come
        ("Host: x\r\nContent-Length: 1", False),  # and this has a second request, or part of one
        ("Host: x\r\nContent-Length: 2\r\nContent-Length: 2", False),
        ("Host: x\r\nContent-Length: -2", False),
        ("Host: x\r\nContent-Length: 2\r\nConnection: close", False),
        ("Host: x\r\nContent-Length: 2\r\nConnection:Close", False),
        ("Host: x\r\nContent-Length: 2\r\nConnection: keep-alive", True),
        ("Host: x\r\nContent-Length: 2\r\nOrigin: https://a.example", False),
        ("Host: x\r\nTransfer-Encoding: chunked", False),
    ],
)
def test_what_may_be_refused_unread(head: str, whole: bool) -> None:
    assert is_whole_translation(f"POST /translate HTTP/1.1\r\n{head}\r\n\r\n{{}}".encode()) == whole
    assert not is_whole_translation(f"GET /translate HTTP/1.1\r\n{head}\r\n\r\n{{}}".encode())


def test_a_refusal_is_sent_at_once_and_counted_once() -> None:
    """Without the event loop; what may not be refused unread is parsed, and counted by whoever answers it."""
    request = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n%s\r\n{}"
    transport, counted = Mock(), []

    def refuse() -> bytes:
        counted.append(True)
        return b"HTTP/1.1 503"

    async def run() -> None:
        config = uvicorn.Config(Mock(), ws="none", lifespan="off")
        config.load()
        connection = Connection.using(lambda: True, refuse, Mock())(config, ServerState(), {})
        connection.connection_made(transport)
        for _ in range(3):
            connection.data_received(request % b"")
        assert transport.write.call_args_list == [call(b"HTTP/1.1 503")] * 3 and len(counted) == 3
        assert connection.asked and connection.timeout_keep_alive_task is None
        connection.data_received(request % b"Origin: https://a.example\r\n")
        assert len(counted) == 3 and not connection._is_free()

    asyncio.run(run())


def test_signals_before_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to read again yet, and nothing to finish."""
    survived = []

    def read(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        survived.append(True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr(server, "Models", read)
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        with pytest.raises(SystemExit) as end:
            server.serve(ServeOptions(models=("model.tg",)))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert survived and end.value.code == 0


def test_a_connection_is_closed_after_a_time_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one whose requests came and were answered between two looks at it."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    silent, lively = Mock(asked=True), Mock(asked=True)
    server = _Server(uvicorn.Config(Mock()), Mock(options=ServeOptions(models=("m",))))
    server.server_state.connections = {silent, lively}
    for _ in range(KEEP_ALIVE + 13):
        server._close_slow()
        lively.asked, now = True, now + 1
    assert silent.transport.close.called and not lively.transport.close.called
