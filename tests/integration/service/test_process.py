"""The process: keys and rates, models that are read again, the end, and bad flags."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, List

import pytest

from fairseq_tg.compiled import Translator
from fairseq_tg.compiled.compile import compile_model
from fairseq_tg.compiled.options import Compilation
from fairseq_tg.errors import UserError
from fairseq_tg.serve.models import Models
from tests.conftest import Workspace
from tests.service import CODE, Server, offline, serving


def test_a_model_that_is_read_again_has_to_allow_the_beam(model: Path, workspace: Workspace, tmp_path: Path) -> None:
    widest = (len(workspace.task().target_dictionary) - 1) // 2
    path = tmp_path / "model.tg"
    shutil.copy(model, path)
    models = Models([str(path)], beam=widest)
    first = models.find("xx", "yy", "w1")[0]
    models._beam = widest + 1  # as if the new file had a smaller dictionary
    with pytest.raises(UserError, match=f"--beam {widest + 1}, and the model 'model': "):
        models.load()
    assert models.find("xx", "yy", "w1")[0] is first


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
    assert server.ask("/")[0] == server.ask("/metrics")[0] == server.ask("/frontend/settings")[0] == 404

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


def test_a_proxy_that_is_trusted_says_whose_a_request_is(model: Path) -> None:
    """Each address has its own requests a minute; of what a client itself puts before its own, nothing counts."""
    fields = {"q": "w1", "source": "xx", "target": "yy"}
    forwarded = ("192.0.2.1", "192.0.2.2", "198.51.100.7, 192.0.2.2")
    for flags, statuses in (((), [200, 429, 429]), (("--trusted-proxy", "127.0.0.1"), [200, 200, 429])):
        with serving(model, "--requests-per-minute", 1, *flags) as server:
            found = [server.ask("/translate", fields, **{"X-Forwarded-For": addresses}) for addresses in forwarded]
            assert [status for status, *_ in found] == statuses


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
