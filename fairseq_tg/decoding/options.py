"""The options of a search, checked where a search is made: in fairseq's commands and its hub."""

from __future__ import annotations

import math
from typing import Any

from fairseq_tg.errors import UserError


def widest_beam(vocabulary: int) -> int:
    """fairseq looks at 2k continuations, of all symbols but padding."""
    return (vocabulary - 1) // 2


def check_search(args: Any, vocabulary: int) -> None:
    """Refuse what no search can be made with, or another than was asked for: fairseq makes less of it, or a traceback.

    vocabulary: the size of the target's dictionary.
    """
    beam, nbest = getattr(args, "beam", 1), getattr(args, "nbest", 1)
    if beam < 1:
        raise UserError(f"--beam {beam}: give at least 1")
    if beam > widest_beam(vocabulary):
        raise UserError(
            f"--beam {beam} is too large for a dictionary of {vocabulary}: give at most {widest_beam(vocabulary)}"
        )
    if not 1 <= nbest <= beam:
        raise UserError(f"--nbest {nbest} of a beam of {beam}: give 1 to {beam}")
    for name in ("lenpen", "unkpen", "temperature", "max_len_a"):
        if not math.isfinite(getattr(args, name, 0.0)):
            raise UserError(f"--{name.replace('_', '-')} {getattr(args, name)}: give a number")
