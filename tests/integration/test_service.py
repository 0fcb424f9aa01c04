"""fairseq-tg serve as clients see it: curl, LibreTranslate's own client, and what goes wrong."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple
from urllib.error import HTTPError

import pytest
from libretranslatepy import LibreTranslateAPI

from fairseq_tg.compiled import Translator
from fairseq_tg.compiled.compile import compile_model
from fairseq_tg.compiled.explain import explain
from fairseq_tg.compiled.model_file import read, write
from fairseq_tg.compiled.options import Compilation
from fairseq_tg.models.actor_files import export_actor
from tests.conftest import Workspace
from tests.documented import documented
from tests.service import CODE, Server, make_model, serving

TEXT = "w1 w2 w3. W4 w5!\n\nw6"


@pytest.fixture(scope="module")
def model(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("served"), workspace, 2.0)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    running = Server(model, "--threads", 2, "--cors", "https://a.example", "--queue", 10**6)
    yield running
    assert running.stop() == 0
    assert running.process.stderr is not None and running.process.stderr.read() == ""  # nothing was logged


@pytest.fixture(scope="module")
def translator(model: Path) -> Translator:
    return Translator.load(str(model))


def offline(translator: Translator, text: str, **options: Any) -> str:
    return translator.decode(translator.search([translator.encode(text)], **options)[0][0].tokens)


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


def test_texts_keep_their_lines_and_their_order(server: Server, translator: Translator) -> None:
    parts = [offline(translator, part) for part in ("w1 w2 w3.", "W4 w5!", "w6")]
    expected = f"{parts[0]} {parts[1]}\n\n{parts[2]}"
    assert server.translate(TEXT) == {"translatedText": expected}
    assert server.translate([TEXT, "", "w6"])["translatedText"] == [expected, "", parts[2]]
    page = server.translate("<p>w1 w2 w3.</p> <b>w6</b>", format="html")["translatedText"]
    assert page == f"<p>{parts[0]}</p> <b>{parts[2]}</b>"
    page = server.translate("<p>w1 <b>w2</b> w3.</p>", format="html")["translatedText"]
    assert re.fullmatch("<p>.*<b>.+</b>.*</p>", page) and re.sub("<.*?>", "", page) == parts[0]


def test_more_fields_on_request(server: Server, translator: Translator) -> None:
    expected = explain(translator, "w1 w2 w8")
    for name, beam, actor in (("greedy", 1, False), ("beam 4", 4, False), ("tg", 1, True), ("tg + beam 4", 4, True)):
        found = server.translate("w1 w2 w8", beam=beam, actor=actor, scores=True, tokens=True)
        theirs = expected.translations[name]
        assert set(found) == {"translatedText", "scores", "tokens"}
        assert (found["translatedText"], found["tokens"]) == (theirs.text, [theirs.tokens])
        assert found["scores"] == pytest.approx([theirs.score])
    found = server.translate(["w1 w2 w8"], actions=True)
    assert found["actions"] == json.loads(json.dumps([[expected.to_json()["actions"]]]))


def test_the_command_explains_what_the_page_shows(server: Server, translator: Translator) -> None:
    """Of several sentences, and of one that is too long for the model."""
    text = "\n".join((TEXT, "--", " ".join(f"w{n % 9}" for n in range(400))))
    expected = explain(translator, text)
    for name, beam, actor in (("greedy", 1, False), ("beam 4", 4, False), ("tg", 1, True), ("tg + beam 4", 4, True)):
        found = server.translate(text, beam=beam, actor=actor, scores=True, tokens=True)
        theirs = expected.translations[name]
        assert (found["translatedText"], [*chain(*found["tokens"])]) == (theirs.text, theirs.tokens)
        assert sum(found["scores"]) / len(found["scores"]) == pytest.approx(theirs.score)
    found = server.translate(text, actions=True)
    joined = expected.to_json()["actions"]
    assert len(found["actions"]) == 4 and [*chain(*(part["source"] for part in found["actions"]))] == joined["source"]
    steps = [*chain(*(part["steps"] for part in found["actions"]))]
    assert [(step["token"], step["actions"]) for step in steps] == [(s["token"], s["actions"]) for s in joined["steps"]]


def test_of_a_sentence_in_pieces_all_is_told(server: Server) -> None:
    before = server.ask("/metrics")[1]
    found = server.translate(" ".join(f"w{n % 9}" for n in range(400)), actions=True, tokens=True)
    (actions,), (tokens,) = found["actions"], found["tokens"]
    assert [step["token"] for step in actions["steps"]] == tokens and tokens.count("</s>") > 1
    assert actions["source"].count("</s>") == tokens.count("</s>")
    seen = [max(index for index, _ in step["attention"][0]) for step in actions["steps"]]
    assert 390 < max(seen) < len(actions["source"]) and seen[0] < 200
    # a piece is a sentence of a batch, and not all of them are one that others would wait for
    translated = [int(re.findall(r"tg_sentences_total (\d+)", page)[0]) for page in (before, server.ask("/metrics")[1])]
    assert translated[1] - translated[0] == tokens.count("</s>")


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


def talk(server: Server, *pieces: bytes, apart: float = 0) -> bytes:
    """What comes back until the server closes the connection; apart: seconds between the pieces."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
                if apart:
                    time.sleep(apart)
            while data := connection.recv(65536):
                received += data
        except ConnectionError:  # it does not wait for the rest of what it refuses
            pass
    return received


def json_bytes(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def test_http_as_it_should_not_be(server: Server) -> None:
    head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    body = b'{"q": "w1", "source": "xx", "target": "yy"}'
    whole = head + b"Content-Length: %d\r\n" % len(body)
    pipelined = talk(server, (whole + b"\r\n" + body) * 9 + whole + b"Connection: close\r\n\r\n" + body)
    assert pipelined.count(b"HTTP/1.1 200 OK") == 10
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    assert b" 413 " in talk(server, head + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 10).splitlines()[0]
    for bad in (
        b"nothing\r\n\r\n",
        head + b"Content-Length: -5\r\n\r\n",
        head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        head + b"X: " + b"x" * 300_000,
    ):
        assert talk(server, bad).startswith(b"HTTP/1.1 400 ")
    # lines behind a body may have no end either, whoever answered before they came
    endless = talk(
        server, b"GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", *[b"a:b\r\n" * 9999] * 50
    )
    assert endless.startswith(b"HTTP/1.1 200 OK") and b" 400 " in endless
    head_only = talk(server, b"HEAD /languages HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert head_only.startswith(b"HTTP/1.1 200 OK") and head_only.endswith(b"\r\n\r\n")
    # an offer that is not taken up; what is wrong with a request is told as all errors are
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    last = b"GET /health HTTP/1.1\r\nConnection: close\r\nUpgrade: h2c\r\n\r\n"
    offering = whole + offer + b"\r\n" + body
    expected = json.loads(talk(server, whole + b"Connection: close\r\n\r\n" + body).partition(b"\r\n\r\n")[2])
    whenever = [offering[:at] for at in (1, 50, len(whole) + 3, len(whole) + len(offer), len(offering) - 3)]
    for pieces in (
        [offering + last],
        [offering + offering + last],
        *([p, offering[len(p) :] + last] for p in whenever),
    ):
        taken = talk(server, *pieces, apart=0.02)
        asked = b"".join(pieces).count(b"POST")
        assert taken.count(b"HTTP/1.1 200 OK") == asked + 1 and taken.count(json_bytes(expected)) == asked
    for closing in (b"close, Upgrade", b"Upgrade, close", b"Upgrade\r\nConnection: close"):
        taken = talk(server, whole + b"Connection: " + closing + b"\r\nUpgrade: h2c\r\n\r\n" + body + last)
        assert taken.count(b"HTTP/1.1 200 OK") == 1 and taken.endswith(json_bytes(expected))
    many = b"GET /health HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n" * 2000
    assert talk(server, many + last).count(b"HTTP/1.1 200 OK") == 2001
    chunked = head + offer + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    assert json_bytes(expected) in talk(server, chunked[:60], chunked[60:] + last, apart=0.02)
    assert talk(
        server, b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\n" + last
    ).startswith(b"HTTP/1.1 4")
    malformed = talk(server, b"nothing\r\n\r\n")
    assert b"application/json" in malformed and json.loads(malformed.partition(b"\r\n\r\n")[2])["error"]
    options = talk(server, b"OPTIONS /translate HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert options.startswith(b"HTTP/1.1 405 ") and b"allow: POST\r\n" in options


def test_a_request_in_pieces_is_answered_like_a_whole_one(server: Server) -> None:
    """Which does not go through ASGI."""
    body = b'{"q": "w1 w2. w3", "source": "xx", "target": "yy", "alternatives": 1, "scores": true}'
    head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
    for kind, content in ((b"application/json", body), (b"application/json", b"{"), (b"", b"q=w1&source=xx&target=yy")):
        lines = head % len(content) + b"Content-Type: %s\r\n" % kind
        answers = []
        for last in (b"\r\n" + content[:1], b"Origin: https://b.example\r\n\r\n" + content[:1]):
            for pieces in ([lines + last + content[1:]], [lines + last, content[1:]]):
                with socket.create_connection(("127.0.0.1", server.port)) as connection:
                    for piece in pieces:
                        connection.sendall(piece)
                        time.sleep(0.05)
                    received = connection.recv(10_000)
                    connection.sendall(head % 1 + b"Connection: close\r\n\r\n{")
                    assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")
                names = {line.partition(b":")[0] for line in received.partition(b"\r\n\r\n")[0].splitlines()[1:]}
                answers.append((received.splitlines()[0], names - {b"vary"}, received.partition(b"\r\n\r\n")[2]))
        assert all(answer == answers[0] for answer in answers)
        assert {b"date", b"cache-control", b"x-frame-options"} <= answers[0][1]


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


def test_requests_together_are_not_mixed_up(server: Server, translator: Translator) -> None:
    texts = [" ".join(f"w{(n * k) % 9}" for k in range(1, 2 + n % 7)) for n in range(60)]
    expected = [offline(translator, text) for text in texts]
    found: List[Any] = [None] * len(texts)

    def ask(n: int) -> None:
        found[n] = server.translate(texts[n])["translatedText"]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_a_full_service_refuses_before_it_reads_and_goes_on_on_the_same_connection(model: Path) -> None:
    """Of one kind byte by byte without being parsed; what is unusual is parsed, and told the same."""
    server = Server(model, "--threads", 1, "--queue", 1)
    body = json.dumps({"q": "w1 w2", "source": "xx", "target": "yy"}).encode()
    long = json.dumps({"q": ". ".join(["w1 w2 w3"] * 60), "source": "xx", "target": "yy", "beam": 8}).encode()
    with contextlib.ExitStack() as stack:

        def connect() -> Any:
            return stack.enter_context(contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)))

        def ask(connection: Any, **headers: str) -> Tuple[int, bytes, Dict[str, str]]:
            connection.request("POST", "/translate", body, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}

        def be_busy() -> None:
            while not free.is_set():
                server.ask("/translate", long)

        one, other = connect(), connect()
        right, free = ask(one), threading.Event()
        assert right[0] == 200
        busy = [threading.Thread(target=be_busy) for _ in range(4)]
        for thread in busy:
            thread.start()
        try:
            answers = (ask(one) for _ in range(1000))
            # uvicorn, which this one did not reach, says the date (as where the queue is full only after a first look)
            refused = next(answer for answer in answers if answer[0] == 503 and "date" not in answer[2])
            answers = (ask(other, Origin="https://a.example") for _ in range(1000))
            parsed = next(answer for answer in answers if answer[0] == 503)
        finally:
            free.set()
            for thread in busy:
                thread.join()
        assert json.loads(refused[1]) == json.loads(parsed[1])
        assert refused[2].keys() == parsed[2].keys() - {"date"} and "date" in parsed[2]
        assert int(refused[2]["retry-after"]) >= 1
        assert ask(one)[:2] == ask(other)[:2] == right[:2]
    assert server.stop() == 0


def test_a_client_that_sends_no_more_has_its_answer(server: Server) -> None:
    """Whether it comes at once or takes a while, on the short way or not; one with half a request has none."""
    for q in ("w1", "W1 w2 w3. " * 100):
        body = json.dumps({"q": q, "source": "xx", "target": "yy", "beam": 8, "scores": True}).encode()
        head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nContent-Type: application/json\r\n" % len(
            body
        )
        for more in (b"\r\n", b"Origin: https://b.example\r\n\r\n"):
            usual = talk(server, head + b"Connection: close\r\n" + more + body)
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
                connection.sendall(head + more + body)
                connection.shutdown(socket.SHUT_WR)
                found = b"".join(iter(lambda: connection.recv(65536), b""))
            assert found.startswith(b"HTTP/1.1 200 OK\r\n") and b"connection: close" in found
            assert found.partition(b"\r\n\r\n")[2] == usual.partition(b"\r\n\r\n")[2]
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall((head + more + body)[:-1])
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""


def test_clients_that_go_or_dawdle_do_no_harm(server: Server) -> None:
    request = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 400\r\n\r\n{"
    before = float(re.findall(r"tg_clients_gone_total ([\d.]+)", server.ask("/metrics")[1])[0])
    dawdling = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    for number, connection in enumerate(dawdling):
        connection.sendall(request if number % 2 else request[:20])
    body = json.dumps({"q": f"W1{' w2' * 11}. " * 128, "source": "xx", "target": "yy", "beam": 8}).encode()
    for _ in range(10):
        with socket.create_connection(("127.0.0.1", server.port)) as gone:
            gone.sendall(request.replace(b"400\r\n\r\n{", b"%d\r\n\r\n" % len(body)) + body)
    assert server.translate("w1")["translatedText"]
    for connection in dawdling:
        connection.close()
    deadline = time.monotonic() + 10
    # the ten that left with a request, and the ten that left within one
    expected = ("tg_waiting_sentences 0.0", f"tg_clients_gone_total {before + 20}")
    while not all(line in server.ask("/metrics")[1] for line in expected) and time.monotonic() < deadline:
        time.sleep(0.05)
    metrics = server.ask("/metrics")[1]
    assert all(line in metrics for line in expected), metrics


def test_keys_rates_reloading_and_the_end(model: Path, workspace: Workspace, tmp_path: Path) -> None:
    """One server for all of it, because each takes a second to start."""
    path, keys = tmp_path / "model.tg", tmp_path / "keys"
    shutil.copy(model, path)
    keys.write_text(hashlib.sha256(b"key").hexdigest())
    flags = ["--api-keys", keys, "--requests-per-minute", 6, "--no-page", "--no-metrics", "--body-timeout", 0.3]
    server = Server(path, *flags)
    fields = {"q": [f"w{n} w{n % 5}" for n in range(9)], "source": "xx", "target": "yy"}
    assert server.ask("/translate", fields)[:2] == (
        403,
        {"error": "Please contact the server operator to get an API key"},
    )
    assert server.ask("/translate", {**fields, "api_key": "no"})[:2] == (403, {"error": "Invalid API key"})
    assert "api_key" in server.ask("/spec")[1]["components"]["schemas"]["DetectionRequest"]["required"]
    first = server.ask("/translate", {**fields, "api_key": "key"})[1]
    assert server.ask("/")[0] == server.ask("/metrics")[0] == server.ask("/settings")[0] == 404

    compile_model(workspace.base_model("transformer"), workspace.task(), Compilation("", str(path)))
    server.process.send_signal(signal.SIGHUP)
    assert server.process.stderr is not None
    assert server.process.stderr.readline() == "fairseq_tg: the models are read again\n"
    second = server.ask("/translate", {**fields, "api_key": "key"})[1]
    base = Translator.load(str(path))
    assert second == {"translatedText": [offline(base, text) for text in fields["q"]]} != first
    # not of the file itself, which may be written to at any time
    assert str(path) not in Path(f"/proc/{server.process.pid}/maps").read_text()
    path.write_bytes(b"nothing")
    server.process.send_signal(signal.SIGHUP)
    assert "the models from before stay in use" in server.process.stderr.readline()
    assert server.ask("/translate", {**fields, "api_key": "key"})[1] == second

    slow = socket.create_connection(("127.0.0.1", server.port))
    slow.sendall(b"POST /detect HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nq")
    assert b" 400 " in slow.recv(1000).splitlines()[0]
    slow.close()
    status, answer, headers = server.ask("/translate", {**fields, "api_key": "key"})
    assert status == 429 and "retry-after" in headers and answer == {"error": "Slowdown: 6 per 1 minute"}
    assert server.ask("/health")[0] == 200
    assert server.stop() == 0 and server.process.stderr.read() == ""


def test_one_base_and_several_actors(workspace: Workspace, tmp_path: Path) -> None:
    base, actors = tmp_path / "base.tg", {}
    compile_model(workspace.base_model("transformer"), workspace.task(), Compilation("", str(base)))
    for name, seed in (("news", 1), ("talks", 2)):
        tg = workspace.train("transformer", tmp_path / name, "--lr", "0.3", "--seed", seed, "--max-update", "4")
        actors[name] = str(tmp_path / f"{name}.safetensors")
        export_actor(tg, actors[name])
    flags = [part for name, path in actors.items() for part in ("--actor", f"{name}={path}")]
    offline_one = Translator.load(str(base), actors=actors)
    text = "w1 w2 w3 w4"
    with serving(base, *flags, "--max-beam", 3000) as server:
        expected = {name: offline_one.translate_nbest([text], actor=name)[0][0] for name in (None, *actors)}
        assert len({round(one.score, 3) for one in expected.values()}) == 3
        for asked, name in ((False, None), (True, "news"), ("news", "news"), ("talks", "talks")):
            found = server.translate(text, actor=asked, actions=True, scores=True)
            assert (found["translatedText"], *found["scores"]) == pytest.approx(expected[name])
            assert len(found["actions"][0]["steps"][0]["actions"]) == (2 if name else 0)  # its layers
        assert server.translate(text, scores=True)["scores"] == pytest.approx([expected["news"].score])  # the first
        fields = {"q": text, "source": "xx", "target": "yy"}
        for more, reason in (({"actor": "other"}, "nor the name of one"), ({"beam": 2999}, "dictionary allows")):
            status, answer, _ = server.ask("/translate", {**fields, **more})
            assert status == 400 and reason in answer["error"]
        spec = server.ask("/spec")[1]["components"]["schemas"]["TranslationRequest"]["properties"]
        assert {"type": "string", "enum": ["news", "talks"]} in spec["actor"]["anyOf"]


def test_signals_while_models_are_read(model: Path, workspace: Workspace, tmp_path: Path) -> None:
    """Files that come while others are read are read, too."""
    path = tmp_path / "model.tg"
    shutil.copy(model, path)
    server = Server(path)
    compile_model(workspace.base_model("transformer"), workspace.task(), Compilation("", str(tmp_path / "new.tg")))
    expected = Translator.load(str(tmp_path / "new.tg")).translate(["w1 w2 w3"])[0]
    server.process.send_signal(signal.SIGHUP)
    (tmp_path / "new.tg").rename(path)
    server.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 10
    while server.translate("w1 w2 w3")["translatedText"] != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.translate("w1 w2 w3")["translatedText"] == expected
    assert server.stop() == 0


def test_what_is_under_way_is_answered_before_the_end(model: Path) -> None:
    server = Server(model)
    found: List[Any] = []
    long = "\n".join(f"w{n % 9} w{n % 7} w{n % 5}" for n in range(100))
    thread = threading.Thread(target=lambda: found.append(server.translate(long, beam=8)))
    thread.start()
    deadline = time.monotonic() + 10
    while "tg_waiting_sentences 0.0" in server.ask("/metrics")[1] and not found and time.monotonic() < deadline:
        time.sleep(0.001)
    assert server.stop() == 0
    thread.join(20)
    assert found and found[0]["translatedText"].count("\n") == 99


def test_what_cannot_be_finished_is_told_so_at_the_end(model: Path) -> None:
    """On the short way, and through ASGI: a translation, and a request that is not there yet."""
    server = Server(
        model, "--drain-seconds", 0.2, "--max-characters", 10**6, "--max-sentences", 10**5, "--max-bytes", 10**7
    )
    body = json.dumps({"q": "W1 w2 w3. " * 20_000, "source": "xx", "target": "yy", "beam": 8}).encode()
    head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(
        body
    )
    with contextlib.ExitStack() as stack:
        asked = []
        for request in (b"\r\n" + body, b"Origin: https://a.example\r\n\r\n" + body, b"\r\n" + body[:-1]):
            asked.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20)))
            asked[-1].sendall(head + request)
        while server.ask("/metrics")[1].count("tg_waiting_sentences 0.0"):
            time.sleep(0.01)
        time.sleep(0.5)  # whatever else the machine is at: all of it is there
        assert server.stop() == 0
        for connection in asked:
            answer = b"".join(iter(lambda: connection.recv(65536), b""))  # noqa: B023
            assert answer.startswith(b"HTTP/1.1 503 ") and b"connection: close" in answer
            assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {
                "error": "The server is going down: try again later"
            }
    assert server.process.stderr is not None and server.process.stderr.read() == ""


@pytest.mark.parametrize(
    "flags, message",
    [
        (["none.tg"], "no compiled model at 'none.tg'"),
        (["{model}", "{model}"], "two models translate xx-yy"),
        (["{model}", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1, port 0"),
        (["{model}", "--api-keys", "none"], "cannot read the API keys 'none'"),
        (["{model}", "--patience", "-1"], "give a number from 0 to 1000"),
        (["{model}", "--beam", "9"], "--beam 9 is wider than --max-beam 8"),
        (["{model}", "--beam", "2999", "--max-beam", "3000"], "a dictionary of "),
        (["{model}", "--actor", "news"], "--actor news: give a name and a file"),
        (["{model}", "--actor", "news=none"], "no actor file at 'none'"),
    ],
)
def test_bad_flags_end_in_one_line(model: Path, tmp_path: Path, flags: List[str], message: str) -> None:
    command = [sys.executable, "-c", CODE, "serve", *(flag.format(model=model) for flag in flags), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=30)
    assert done.returncode == 1 and message in done.stderr and done.stderr.count("\n") == 1
