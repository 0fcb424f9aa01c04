"""LibreTranslate's API as clients see it: its own client, curl, what is refused, other paths."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, Tuple
from urllib.error import HTTPError

import pytest
from libretranslatepy import LibreTranslateAPI

from fairseq_tg.compiled import Translator
from fairseq_tg.compiled.model_file import read, write
from tests.documented import documented
from tests.service import Server, offline, serving


def test_libretranslates_own_client(server: Server, translator: Translator) -> None:
    client = LibreTranslateAPI(server.url)
    assert client.translate("w1 w2", "xx", "yy") == offline(translator, "w1 w2")
    assert client.languages() == [
        {"code": "xx", "name": "xx", "targets": ["xx", "yy"]},
        {"code": "yy", "name": "yy", "targets": ["yy"]},
    ]
    assert client.detect("w1") == [{"confidence": 100.0, "language": "xx"}]
    with pytest.raises(HTTPError) as error:
        client.translate("w1", "zz", "yy")
    assert error.value.code == 400 and json.loads(error.value.read()) == {"error": "zz is not supported"}


def test_a_text_that_is_in_the_target_language_is_given_back(server: Server) -> None:
    client = LibreTranslateAPI(server.url)
    for source, target in (("xx", "xx"), ("auto", "xx"), ("yy", "yy")):
        assert client.translate(" <w1>\nw2. W3 ", source, target) == " <w1>\nw2. W3 "
    page = "<p class=a>w1 &amp; w2</p><br>"
    given = server.ask("/translate", {"q": [page], "source": "auto", "target": "xx", "format": "html", "scores": True})
    detected = {"confidence": 100.0, "language": "xx"}
    assert given[1] == {"translatedText": [page], "detectedLanguage": [detected], "scores": [[]]}


DETECTOR = """
class DetectorFactory: seed = None
class LangDetectException(Exception): pass
class Found:
    def __init__(self, lang, prob): self.lang, self.prob = lang, prob
def detect_langs(text):
    words = text.split()
    if not words: raise LangDetectException()
    foreign = sum(word.startswith("w1") for word in words) / len(words)
    return [Found("fr", foreign), Found("de", 1 - foreign)][:: 1 if foreign > 0.5 else -1]
"""


def test_each_text_is_translated_from_its_own_language(
    model: Path, translator: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a detector says it is, which sees no tags; here French is a language of w1."""
    (tmp_path / "langdetect.py").write_text(DETECTOR)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    compiled, paths = read(str(model)), [tmp_path / "de-en.tg", tmp_path / "fr-en.tg"]
    for path in paths:
        pair = dict(zip(("source_lang", "target_lang"), path.stem.split("-")))
        write(str(path), replace(compiled, text=replace(compiled.text, **pair)))
    with serving(*paths) as server:

        def ask(q: Any, target: str, **more: Any) -> Tuple[int, Any]:
            return server.ask("/translate", {"q": q, "source": "auto", "target": target, **more})[:2]

        texts = ["w1 w1", "w2 w3 w4 w5", "w1 w1"]
        answer = ask(texts, "en")[1]
        assert [item["language"] for item in answer["detectedLanguage"]] == ["fr", "de", "fr"]
        assert answer["translatedText"] == [offline(translator, text) for text in texts]
        page = "<p w1 w1 w1>w2</p>"
        assert ask(page, "en", format="html")[1]["detectedLanguage"]["language"] == "de"
        assert ask("w1", "fr")[1]["translatedText"] == "w1"
        assert ask(["w1", "w2"], "fr") == (
            400,
            {"error": "French (fr) is not available as a target language from German (de)"},
        )
        assert ask("", "en")[1]["detectedLanguage"]["confidence"] == 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize("flag", ["-d", "-F"])
def test_curl(server: Server, translator: Translator, flag: str) -> None:
    fields = [part for field in ("q=w1 w2", "source=auto", "target=yy", "alternatives=2") for part in (flag, field)]
    own = {"q=Ein Hund läuft.": "q=w1 w2", "source=de": "source=xx", "target=en": "target=yy"}
    plain = documented("docs/serving.md", "curl", {**own, "http://127.0.0.1:5000/translate": f"{server.url}/translate"})
    done = subprocess.run(plain, capture_output=True, text=True)
    assert json.loads(done.stdout) == {"translatedText": offline(translator, "w1 w2")}
    done = subprocess.run(["curl", "-sS", *fields, f"{server.url}/translate"], capture_output=True, text=True)
    answer = json.loads(done.stdout)
    assert answer["translatedText"] == offline(translator, "w1 w2", beam=3)
    assert answer["detectedLanguage"] == {"confidence": 100.0, "language": "xx"}
    assert answer["alternatives"] and answer["translatedText"] not in answer["alternatives"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize("flag", ["-d", "-F"])
def test_several_texts_of_a_form(server: Server, translator: Translator, flag: str) -> None:
    fields = [part for field in ("q=w1 w2", "q=w3", "source=xx", "target=yy") for part in (flag, field)]
    done = subprocess.run(["curl", "-sS", *fields, f"{server.url}/translate"], capture_output=True, text=True)
    assert json.loads(done.stdout)["translatedText"] == [offline(translator, "w1 w2"), offline(translator, "w3")]


BAD = {
    "/translate": [
        (b"", 400),
        (b'{"q": "w1"}', 400),
        (b"q=%ff&source=xx&target=yy", 400),
        (b"[]", 400),
        (b"x" * 200_000, 413),
        (json.dumps({"q": "w1. " * 500, "source": "xx", "target": "yy"}).encode(), 200),
        (json.dumps({"q": "w1\n" * 1000, "source": "xx", "target": "yy"}).encode(), 413),
        (json.dumps({"q": "w" * 6000, "source": "xx", "target": "yy"}).encode(), 413),
        (json.dumps({"q": "w1", "source": "yy", "target": "xx"}).encode(), 400),
        (json.dumps({"q": "w1", "source": "\ud800", "target": "yy"}).encode(), 400),
        (json.dumps({"q": "w1", "source": "xx", "target": "yy", "format": "\udc80"}).encode(), 400),
        (b'{"q": "w1", "source": "xx", "target": "yy", "beam": NaN}', 400),
        (b'{"q": %s, "source": "xx", "target": "yy"}' % (b"[" * 40_000 + b"]" * 40_000), 400),
        (b'{"q": "w1", "q": "w2", "source": "xx", "target": "yy"}', 200),
        (json.dumps({"q": "w1\x00w2", "source": "xx", "target": "yy"}).encode(), 200),
        (json.dumps({"q": "w1", "source": "xx", "target": "yy"}).encode("utf-16"), 200),
        (b'{"q": "\xff", "source": "xx", "target": "yy"}', 400),
        (b'{"\\udfff": 1, "q": "", "source": "xx", "target": "yy", "format": null, "beam": null, "scores": null}', 200),
        (b'{"q": "w1", "source": "xx", "target": "yy", "beam": "2", "alternatives": "1", "scores": "true"}', 200),
        (b'{"q": "w1", "source": "xx", "target": "yy", "beam": %s}' % (b"9" * 5000), 400),
        (b'{"q": NaN, "source": "xx", "target": "yy"}', 400),
        (json.dumps({"q": [""] * 20_000, "source": "xx", "target": "yy"}).encode(), 413),
    ],
    "/detect": [
        (b"{}", 400),
        (b'{"q": ["w1", "w2"]}', 200),
        (b'{"q": []}', 400),
        (json.dumps({"q": "w" * 5001}).encode(), 413),
        (json.dumps({"q": ["w"] * 65}).encode(), 413),
    ],
    "/translate?source=xx&target=yy&q=w2": [(b"{}", 200), (b'{"target": "zz"}', 400)],
    "/translate?source=%ff": [(b"{}", 400)],
}


@pytest.mark.parametrize("path, body, status", [(path, *case) for path, cases in BAD.items() for case in cases])
def test_bad_requests_are_told_why(server: Server, path: str, body: bytes, status: int) -> None:
    found, answer, _ = server.ask(path, body)
    assert found == status
    assert status == 200 or (set(answer) == {"error"} and "/" not in answer["error"])


def test_fields_may_be_in_the_address(server: Server, translator: Translator) -> None:
    """What the body says comes first, also where it has more texts."""
    address = "/translate?source=xx&target=yy&q=w2+w3&q=w3"
    found = [server.ask(address, body)[1]["translatedText"] for body in (b"{}", b'{"q": "w1"}', b'{"q": ["w1"]}')]
    assert found == [[offline(translator, "w2 w3"), offline(translator, "w3")], offline(translator, "w1"), found[2]]
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert server.ask(address, b"q=w1", **form)[1]["translatedText"] == found[1]
    assert server.ask(address, b"", **form)[1]["translatedText"] == found[0]


def test_other_paths_and_methods(server: Server) -> None:
    assert server.ask("/nothing")[:2] == (404, {"error": "Not Found"})
    assert server.ask("/translate")[:2] == (405, {"error": "Method Not Allowed"})
    assert server.ask("/health")[:2] == (200, {"status": "ok"})
    settings = server.ask("/frontend/settings")[1]
    assert settings["charLimit"] == 5000 and not settings["keyRequired"] and settings["supportedFilesFormat"] == []
    assert settings["language"] == {"source": {"code": "xx", "name": "xx"}, "target": {"code": "yy", "name": "yy"}}
    assert server.ask("/spec")[1]["openapi"].startswith("3.")
    assert 'tg_requests_total{path="/health",status="200"}' in server.ask("/metrics")[1]


def test_headers_protect_the_page(server: Server) -> None:
    status, page, headers = server.ask("/")
    assert status == 200 and "<h1>" in page
    headers = {name.lower(): value for name, value in headers.items()}
    assert "script-src 'sha256-" in headers["content-security-policy"] and headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff" and "server" not in headers
    for origin, allowed in (("https://a.example", "https://a.example"), ("https://b.example", None)):
        assert server.ask("/languages", Origin=origin)[2].get("access-control-allow-origin") == allowed
