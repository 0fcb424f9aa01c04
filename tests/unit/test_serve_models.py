"""The models that are served, and their languages."""

from __future__ import annotations

import time
from typing import Any, NamedTuple, cast

import pytest

from fairseq_tg.serve.models import Models


class Likely(NamedTuple):
    lang: str
    prob: float


class Detector:
    """langdetect's two names, and what it would say."""

    LangDetectException = ValueError

    def __init__(self, *found: Likely) -> None:
        self.detect_langs = lambda text: list(found)


@pytest.mark.parametrize(
    "codes, found, expected",
    [
        (["ace_Arab", "deu_Latn", "eng_Latn"], [Likely("de", 0.9)], [("deu_Latn", 90.0)]),
        (["de_DE", "nb"], [Likely("no", 0.9), Likely("de", 0.1)], [("nb", 90.0), ("de_DE", 10.0)]),
        (
            ["zh_CN", "en_XX"],
            [Likely("en", 0.1), Likely("zh-cn", 0.5), Likely("zh-tw", 0.4)],
            [("zh_CN", 90.0), ("en_XX", 10.0)],
        ),
        (["a", "b"], [Likely("fr", 1.0)], [("a", 0.0)]),
    ],
)
def test_a_language_is_detected_whatever_its_code(codes: Any, found: Any, expected: Any) -> None:
    models = object.__new__(Models)
    models._by_pair = {(a, b): cast(Any, None) for a in codes for b in codes if a != b}
    models._detector = Detector(*found)
    assert [(item["language"], item["confidence"]) for item in models.detect("Text")] == expected


def test_the_languages_of_a_model_of_many_are_told_at_once() -> None:
    """200 have 39,800 pairs, which are gone through once: nothing else is answered meanwhile."""
    codes = sorted(f"l{number}" for number in range(200))
    models = object.__new__(Models)
    models._by_pair = {(a, b): cast(Any, None) for a in codes for b in codes if a != b}
    models._known = frozenset(codes)
    began = time.process_time()
    assert models.languages() == [{"code": code, "name": code, "targets": codes} for code in codes]
    assert time.process_time() - began < 0.3
