"""Commands as the documentation has them, for tests that run them where the demo's data is not enough."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

REPO = Path(__file__).parent.parent


class Block(NamedTuple):
    """A fenced block of a page."""

    where: str
    language: str
    about: str
    text: str

    def commands(self) -> List[str]:
        """One a line, without comments of their own lines."""
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks(page: Path) -> List[Block]:
    text = page.read_text()
    fenced = re.finditer(r"^```(\w*) ?(.*)\n((?:.*\n)*?)```$", text, re.MULTILINE)
    name = page.relative_to(REPO)
    return [Block(f"{name}:{text.count(chr(10), 0, m.start()) + 1}", *m.groups()) for m in fenced]


def documented(page: str, beginning: str, others: Dict[str, Any]) -> List[str]:
    """The words of the one command of a page that begins so.

    Args:
        others: what stands in the place of some of its words, as a path or the size of a cluster.
    """
    found = [command for block in blocks(REPO / page) for command in block.commands() if command.startswith(beginning)]
    assert len(found) == 1, f"{len(found)} commands of {page} begin with '{beginning}'"
    words = shlex.split(found[0], comments=True)
    assert others.keys() <= set(words), f"{page}: no {others.keys() - set(words)} in {words}"
    return [str(others.get(word, word)) for word in words]
