"""Faults on purpose: how many are tried, and what came of them."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple, Union

import pytest

from fairseq_tg.errors import user_error_in
from tests.conftest import FORK
from tests.integration.conftest import data  # noqa: F401 (the corpora are built of the same sentences)


@pytest.fixture(scope="session")
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether all faults are tried, or a few of each kind."""
    return bool(request.config.getoption("--thorough"))


class Tries:
    """Counts what was tried and what was survived or detected, for the summary of the run."""

    def __init__(self, record: Callable[[str, Any], None]) -> None:
        self._record = record
        self.counts: Dict[str, List[int]] = {}

    def add(self, kind: str, good: bool) -> None:
        count = self.counts.setdefault(kind, [0, 0])
        count[0] += good
        count[1] += 1

    def write(self) -> None:
        for kind, count in self.counts.items():
            self._record(kind, tuple(count))


@pytest.fixture
def tries(record_property: Callable[[str, Any], None]) -> Iterator[Tries]:
    made = Tries(record_property)
    yield made
    made.write()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    totals: Dict[str, Tuple[int, int]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":
                for kind, (good, tried) in report.user_properties:
                    before = totals.get(kind, (0, 0))
                    totals[kind] = before[0] + good, before[1] + tried
    for kind, (good, tried) in sorted(totals.items()):
        terminalreporter.write_line(f"{kind}: {good} of {tried}")


def in_child(
    function: Callable[..., Any],
    *args: Any,
    before: Callable[[], None] = lambda: None,
    errors: Union[str, Path] = os.devnull,
) -> int:
    """Run a function in a process of its own, quietly; gives its exit status, negative if a signal ended it.

    Args:
        before: called in the process first; to let it meet its end.
        errors: file for the line that it ends with, if it does.
    """

    def body() -> None:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (pytest's are files, which are not to grow either)
        before()
        try:
            function(*args)
        except Exception as error:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            Path(errors).write_text(str(user_error_in(error) or "no error of the user's"))
            raise

    process = FORK.Process(target=body)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def die_at_rename(number: int, after: bool) -> None:
    """Be killed at the number-th rename of this process, before it or right after it."""
    seen = 0

    def deadly(rename: Callable[..., None]) -> Callable[..., None]:
        def renamed(*args: Any, **kwargs: Any) -> None:
            nonlocal seen
            seen += 1
            if seen == number and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            rename(*args, **kwargs)
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

        return renamed

    os.replace = deadly(os.replace)
    os.rename = deadly(os.rename)


def fill_disk(size: int) -> None:
    """Let no file of this process grow over a size: what the end of a disk looks like to it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def damage(path: Path, generator: Any) -> str:
    """Cut a file short, or change one of its bytes; says which."""
    content = path.read_bytes()
    place = generator.randrange(len(content))
    if generator.random() < 0.4:
        path.write_bytes(content[:place])
        return f"{path.name} cut to {place} of {len(content)} bytes"
    changed = bytearray(content)
    changed[place] ^= generator.randrange(1, 256)
    path.write_bytes(bytes(changed))
    return f"{path.name} changed at byte {place}"
