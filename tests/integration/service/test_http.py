"""HTTP as it should be and should not, in pieces, from clients that go, and while there is no room."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import resource
import socket
import threading
import time
from pathlib import Path
from typing import Any, Dict, Tuple

from tests.service import Server, serving


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


def test_http_of_other_kinds(server: Server) -> None:
    """What is seldom sent, and allowed, is answered; what is not is refused, once."""
    body = b'{"q": "w1", "source": "xx", "target": "yy"}'
    size = b"Content-Length: %d\r\n" % len(body)
    chunked = b"Transfer-Encoding: chunked\r\n\r\n%x;kind=first\r\n%s\r\n0\r\nX-Trailer: 1\r\n\r\n" % (len(body), body)
    requests = {
        b"POST /translate HTTP/1.1\r\nTrailer: X-Trailer\r\n" + chunked: b"200",
        b"POST /translate HTTP/1.0\r\n%s\r\n%s" % (size, body): b"200",
        b"POST http://x:80/translate HTTP/1.1\r\n%s\r\n%s" % (size, body): b"200",
        b"\r\nPOST /translate HTTP/1.1\r\n%sX: %s\r\n\r\n%s" % (size, b"x" * 50_000, body): b"200",
        b"POST /translate HTTP/1.1\r\nExpect: 100-continue\r\n%s\r\n%s" % (size, body): b"100 200",
        b"POST /translate HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n": b"413",
        b"POST /translate HTTP/1.1\r\n%s%s\r\n%s" % (size, size, body): b"400",
        b"POST /translate HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n": b"400",
        b"POST /translate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n": b"400",
        b"GET http://[::1 HTTP/1.1\r\n\r\n": b"400",
        b"GET /../../etc/passwd HTTP/1.1\r\n\r\n": b"404",
        b"PUT /translate HTTP/1.1\r\n%s\r\n%s" % (size, body): b"405",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": b"400",
    }
    more = b"Host: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    for request, statuses in requests.items():
        found = talk(server, re.sub(rb"HTTP/1\.[01]\r\n", lambda first: first.group() + more, request, count=1))
        assert b" ".join(re.findall(rb"^HTTP/1\.1 (\d+)", found, re.MULTILINE)) == statuses, request
        assert statuses[-3:] != b"200" or b"translatedText" in found


def test_without_file_descriptors_those_who_are_there_are_served(model: Path) -> None:
    with serving(model) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (40, 40))
        with contextlib.ExitStack() as stack:
            address = "127.0.0.1", server.port
            there = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(60)]
            there[0].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert there[0].recv(1000).startswith(b"HTTP/1.1 200 OK")
        deadline = time.monotonic() + 20
        while len(os.listdir(f"/proc/{server.process.pid}/fd")) > 30 and time.monotonic() < deadline:
            time.sleep(0.05)  # it has not seen yet that they have gone
        assert server.translate("w1")["translatedText"]


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


def test_a_client_that_sends_no_more_has_an_answer_that_is_ready_at_once(server: Server) -> None:
    """What nothing has to be translated for: an empty text, a refusal, a page."""
    for request in (
        b"POST /translate?source=xx&target=yy&q=%20",
        b"POST /translate?source=xx&target=nn&q=a",
        b"POST /translate?source=xx&target=xx&q=a",
        b"GET /health",
        b"HEAD /languages",
    ):
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
                connection.sendall(request + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(65536).startswith(b"HTTP/1.1 "), request


def test_a_form_that_cannot_be_read_is_told_to_its_client_alone(server: Server) -> None:
    """At the end, the server has logged nothing."""
    status, answer, _ = server.ask("/translate", b"x", **{"Content-Type": "multipart/form-data; boundary=x"})
    assert status == 400 and answer == {"error": "Invalid request: the form cannot be read"}


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
    # the ten that left within a request, and those of the ten that left with one that were not done by then
    least, found = before + 15, (0.0, 1.0)
    while not (found[0] >= least and found[1] == 0.0) and time.monotonic() < deadline:
        time.sleep(0.05)
        metrics = server.ask("/metrics")[1]
        names = ("tg_clients_gone_total", "tg_waiting_sentences")
        found = tuple(float(re.findall(rf"^{name} ([\d.]+)", metrics, re.M)[0]) for name in names)
    assert least <= found[0] <= before + 20 and found[1] == 0.0
