"""Safe reading of checkpoints. Whoever imports any of this has fairseq read, and write, them in the same way."""

from fairseq_tg.loading import changes  # noqa: F401
