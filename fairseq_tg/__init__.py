"""Trainable greedy decoding for fairseq: beam-search quality at greedy cost.

Imported by fairseq, as ``--user-dir`` does, this package registers everything it adds; in a program of your own, import
``fairseq_tg.plugin`` for that. Without fairseq it is what runs compiled models, and starts in no time.
"""

import sys

__version__ = "0.1.0"

if sys.modules.get("fairseq"):
    from fairseq_tg import plugin  # noqa: F401
