"""An objective that keeps a build in its middle for as long as a test wants."""

from __future__ import annotations

import itertools
import os
import time

FREE = 60  # of a process: two blocks of six sentences with four hypotheses each, and a few
_calls = itertools.count()


def held_objective(hypothesis: str, reference: str) -> float:
    """Scores what every process begins with, and the rest when there is no file HOLD (any more)."""
    held = next(_calls) >= FREE
    while held and os.path.exists(os.environ.get("HOLD", "")):
        time.sleep(0.1)
    return -abs(len(hypothesis) - len(reference))
