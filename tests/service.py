"""A model to serve, fairseq-tg serve as a process of its own, and how to ask it."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, Tuple

from fairseq_tg.compiled import Translator
from fairseq_tg.compiled.compile import compile_model
from fairseq_tg.compiled.options import Compilation
from tests.conftest import Workspace, make_workspace, stir

#: A Python that has neither fairseq nor torch
CODE = "import sys; sys.modules.update(dict.fromkeys(['fairseq', 'torch'])); from fairseq_tg.cli import main; main()"


class Server:
    """The command, on a port of its own."""

    def __init__(self, *flags: Any) -> None:
        command = [sys.executable, "-c", CODE, "serve", *map(str, flags), "--port", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.fullmatch(r"fairseq_tg: serving (.*) on (http://127\.0\.0\.1:(\d+))\n", line)
        assert found, line + self.process.stderr.read()
        self.url, self.port = found.group(2), int(found.group(3))

    def ask(self, path: str, fields: Any = None, **more: str) -> Tuple[int, Any, Dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        body = None if fields is None else fields if isinstance(fields, bytes) else json.dumps(fields).encode()
        headers = {"Content-Type": "application/json", **more}
        connection.request("GET" if body is None else "POST", path, body, headers)
        answer = connection.getresponse()
        content = answer.read().decode()
        connection.close()
        is_json = answer.headers["Content-Type"].startswith("application/json")
        return answer.status, json.loads(content) if is_json else content, dict(answer.headers.items())

    def translate(self, q: Any, **more: Any) -> Any:
        status, answer, _ = self.ask("/translate", {"q": q, "source": "xx", "target": "yy", **more})
        assert status == 200, answer
        return answer

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)


@contextmanager
def serving(*flags: Any) -> Iterator[Server]:
    """A server that ends well when it is told to, and has no exception to tell of."""
    server = Server(*flags)
    yield server
    assert server.stop() == 0
    assert server.process.stderr is not None and "Traceback" not in server.process.stderr.read()


def make_model(directory: Path, workspace: Workspace, scale: float = 1.0) -> Path:
    """A compiled Transformer, with actors that do something."""
    path = directory / "model.tg"
    compile_model(stir(workspace.actor_model("transformer"), scale), workspace.task(), Compilation("", str(path)))
    return path


def make_model_alone(directory: Path) -> Path:
    """The same where no other base is wanted."""
    return make_model(directory, make_workspace(directory, ["transformer"]))


def offline(translator: Translator, text: str, **options: Any) -> str:
    """What the service is to answer."""
    return translator.decode(translator.search([translator.encode(text)], **options)[0][0].tokens)
