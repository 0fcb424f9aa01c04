"""The fields of a request, of JSON and of forms."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from fairseq_tg.serve.forms import parse_fields, read_translation
from fairseq_tg.serve.options import Limits
from fairseq_tg.serve.refusals import Refusal


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
    limits = Limits(max_characters=10, max_texts=2)
    with pytest.raises(Refusal, match=message) as refusal:
        read_translation(parse_fields(body, "application/json", limits), limits, 1)
    assert refusal.value.status == (413 if "exceeds" in message else 400)


def test_a_form_and_json_say_the_same() -> None:
    form = parse_fields(
        b"q=a%0D%0Ab&source=auto&target=en&alternatives=2&scores=1", "application/x-www-form-urlencoded", Limits()
    )
    json = {"q": "a\nb", "source": "auto", "target": "en", "alternatives": 2.0, "scores": True, "beam": None}
    assert read_translation(form, Limits(), 1) == read_translation(json, Limits(), 1)
    for true in (1, 1.0):
        assert read_translation(form, Limits(), 1) == read_translation({**json, "scores": true}, Limits(), 1)
    assert read_translation(json, Limits(), 1).beam == 3  # which three hypotheses need


def test_a_form_may_have_several_texts() -> None:
    fields = parse_fields(b"q=a%0D%0Ab&q=c&source=de&source=fr", "application/x-www-form-urlencoded", Limits())
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
    assert parse_fields(body, "application/x-www-form-urlencoded", Limits())["q"] == "a\nb\u2028c\x0bd\n"


def test_a_form_may_have_as_many_texts_as_json() -> None:
    limits = Limits(max_texts=300)
    fields = parse_fields(b"q=a&" * 300 + b"source=de", "application/x-www-form-urlencoded", limits)
    assert len(fields["q"]) == 300
    with pytest.raises(Refusal, match="a form of more than 400 fields"):
        parse_fields(b"q=a&" * 401, "application/x-www-form-urlencoded", limits)
