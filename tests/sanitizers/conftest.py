"""Which libraries the tests of this folder call: those of the package, or instrumented ones.

The tests need numpy and the package, and neither torch nor fairseq, which a sanitizer makes slow and finds wanting.
"""

from __future__ import annotations

from pathlib import Path
from typing import List

import pytest

from fairseq_tg.compiled.library import AVX2, GENERIC, best_library, library_path

#: In tests/sanitizers/run.py: an argument here and not a variable that the package reads, because whoever sets the
#: latter would run his code in every program that translates.
OPTION = "--instrumented"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, metavar="DIR", help="a directory with the engine's libraries, built with a sanitizer")


def libraries(config: pytest.Config) -> List[Path]:
    """The libraries under test, as many as this machine runs; without an instrumented one that is the AVX2 one alone,
    beside the generic one that the tests compare with."""
    directory = config.getoption(OPTION, default=None)
    better = [AVX2] if best_library() == AVX2 else []
    if directory is None:
        return [library_path(name) for name in better]
    return [Path(directory) / library_path(name).name for name in [GENERIC, *better]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "library" in metafunc.fixturenames:
        found = libraries(metafunc.config)
        metafunc.parametrize("library", found, ids=[path.name.partition(".")[0] for path in found])
