"""Trainable greedy decoding for fairseq: beam-search quality at greedy cost.

Importing this package, as ``--user-dir`` does, registers everything it adds to fairseq.
"""

__version__ = "0.1.0"

from fairseq_tg import checkpoints, criterion, task  # noqa: F401
from fairseq_tg.models import fconv, lstm, presets, transformer  # noqa: F401
