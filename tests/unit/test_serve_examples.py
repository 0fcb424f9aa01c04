"""examples/serve starts the service as it may be started."""

from __future__ import annotations

import json
import re

from fairseq_tg.arguments import read_options
from fairseq_tg.cli import get_parser
from fairseq_tg.serve.options import ServeOptions
from fairseq_tg.serve.server import LAST_ANSWERS
from tests.documented import REPO

EXAMPLES = REPO / "examples" / "serve"


def stated(name: str, what: str) -> str:
    """What a file says behind a word at the beginning of a line."""
    found = re.search(f"^{what}(.*)$", (EXAMPLES / name).read_text(), re.MULTILINE)
    assert found, f"{name} has no {what}"
    return found.group(1)


def test_systemd_waits_until_all_is_answered() -> None:
    unit = "fairseq-tg.service"
    program, *command = stated(unit, "ExecStart=").split()
    options = read_options(ServeOptions, get_parser().parse_args(command))
    assert program.endswith("/fairseq-tg") and options.trusted_proxy == "127.0.0.1" == options.host
    assert options.drain_seconds + LAST_ANSWERS < int(stated(unit, "TimeoutStopSec="))
    assert f"server {options.host}:{options.port};" in (EXAMPLES / "nginx.conf").read_text()


def test_the_image_listens_where_it_says() -> None:
    program, *command = json.loads(stated("Dockerfile", "ENTRYPOINT ")) + json.loads(stated("Dockerfile", "CMD "))
    options = read_options(ServeOptions, get_parser().parse_args(command))
    assert program == "fairseq-tg" and stated("Dockerfile", "COPY model.tg ") == options.models[0]
    assert options.host == "0.0.0.0" and options.port == int(stated("Dockerfile", "EXPOSE "))
