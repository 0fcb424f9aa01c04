"""Which libraries the tests of this folder call: those of the package, or others, instrumented or of another machine.

The tests need numpy and the package, and neither torch nor fairseq, which a sanitizer makes slow and finds wanting.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, List, Optional

import pytest

from fairseq_tg.compiled.library import GENERIC, library_path, usable_libraries

if TYPE_CHECKING:
    from tests.engine.cases import Case

#: In sanitizers.py and arm.py: an argument here and not a variable that the package reads, because whoever sets the
#: latter would run his code in every program that translates.
OPTION = "--libraries"
CASES = "--cases"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, metavar="DIR", help="a directory with the engine's libraries, built otherwise")
    parser.addoption(CASES, metavar="FILE", help="what fairseq found, as tests/fairseq_cases.py writes it down")


@pytest.fixture(scope="session")
def cases(pytestconfig: pytest.Config) -> List[Case]:
    from tests.engine.cases import read

    return read(Path(pytestconfig.getoption(CASES)))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> Optional[bool]:
    """Without what fairseq found: tests/unit/test_families.py asks fairseq itself."""
    return True if collection_path.name == "test_fairseq.py" and not config.getoption(CASES, default=None) else None


def libraries(config: pytest.Config) -> List[Path]:
    """The libraries under test, as many as this machine runs; without others those for some machines only,
    beside the generic one that the tests compare with."""
    directory, usable = config.getoption(OPTION, default=None), usable_libraries()
    if directory is None:
        return [library_path(name) for name in usable if name != GENERIC]
    return [Path(directory) / library_path(name).name for name in reversed(usable)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "library" in metafunc.fixturenames:
        found = libraries(metafunc.config)
        metafunc.parametrize("library", found, ids=[path.name.partition(".")[0] for path in found])
