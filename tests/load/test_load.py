"""The service under what clients do to it: fuzzed requests, kills in the middle, a byte a second."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Iterator

import pytest

from benchmarks.serve_load import Load, memory
from fairseq_tg.compiled import Translator
from tests.service import Server, make_model_alone, serving

SCHEMATHESIS = Path(os.environ.get("TG_SCHEMATHESIS", ".venv-load/bin/schemathesis"))
#: Of each of the two operations that take something; the others and the coverage phase make more requests
EXAMPLES = int(os.environ.get("TG_FUZZ", "5000"))
BODY = b'{"q": "w1 w2", "source": "xx", "target": "yy"}'
REQUEST = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(BODY),
    BODY,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_alone(tmp_path_factory.mktemp("load"))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    with serving(model, "--threads", 2) as running:
        yield running


def assert_well(server: Server, model: Path) -> None:
    """The next request is answered, and no request was with 500."""
    translator = Translator.load(str(model))
    assert server.translate("w1 w2")["translatedText"] == translator.translate(["w1 w2"])[0]
    assert not re.search(r'status="5(?!03)', server.ask("/metrics")[1])


def test_fuzzed_requests(server: Server, model: Path) -> None:
    """Whatever is sent, the answer is as /spec says: never 500."""
    # What fits the schema may be refused all the same: a pair of languages that there is no model for, several texts
    # that are too long together. And what does not may be taken: a number or a switch that is a text, as in a form, and
    # fields that nobody knows, as LibreTranslate takes them. Statuses, bodies and headers of answers are looked at.
    skipped = "positive_data_acceptance,unsupported_method,negative_data_rejection"
    Load(server.port, [REQUEST], [b""]).drive(8, 3, 2000)  # warm
    before = memory(server.process.pid)
    command = [SCHEMATHESIS, "run", f"{server.url}/spec", "--max-examples", str(EXAMPLES), "--exclude-checks", skipped]
    done = subprocess.run([*command, "--phases", "coverage,fuzzing"], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-5000:]
    counted = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert counted and counted.group(1) == counted.group(2) and int(counted.group(1)) >= 2 * EXAMPLES
    assert_well(server, model)
    assert memory(server.process.pid) < before + 50  # MB: 5 KB a request


def test_clients_that_are_killed_or_slow_leave_nothing_behind(server: Server, model: Path) -> None:
    load = Load(server.port, [REQUEST], [b""])
    load.go_away(500, 50, 3)
    before = memory(server.process.pid)
    load.go_away(500, 50, 3)
    assert_well(server, model)
    assert memory(server.process.pid) < before + 20
    assert "tg_waiting_sentences 0.0" in server.ask("/metrics")[1]
