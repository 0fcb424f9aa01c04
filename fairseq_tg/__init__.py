"""Trainable greedy decoding for fairseq: beam-search quality at greedy cost.

Imported by fairseq, as ``--user-dir`` does, or together with it, this package registers everything it adds. Without
fairseq it is what runs compiled models, and starts in no time.
"""

from fairseq_tg.registration import register_with_fairseq

__version__ = "0.1.0"

register_with_fairseq()
