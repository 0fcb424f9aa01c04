"""The L2 norms of action, state and context over a training, from its log (--log-file, --log-format json)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import List

NAMES = ("action", "state", "context")


@dataclass(frozen=True)
class NormsAt:
    updates: int
    action: float
    state: float
    context: float


def read_norms(log: Path) -> List[NormsAt]:
    """The norms of every validation of a training, in its order; none if there is no log of one."""
    if not log.is_file():
        return []
    found = {}
    for line in log.read_text(errors="replace").splitlines():
        start = line.find("{")
        if "valid_action_norm" not in line or start < 0:
            continue
        try:
            entry = json.loads(line[start:])
            updates = int(entry["valid_num_updates"])
            # a resumed training validates again what it had not saved: the last counts
            found[updates] = NormsAt(updates, *(float(entry[f"valid_{name}_norm"]) for name in NAMES))
        except (ValueError, KeyError):
            continue
    return [found[updates] for updates in sorted(found)]
