"""Everything that fairseq_tg adds to fairseq, registered by being imported."""

from fairseq_tg import checkpoints, criterion, task  # noqa: F401
from fairseq_tg.models import fconv, lstm, presets, transformer  # noqa: F401
