"""Everything that fairseq_tg adds to fairseq, registered by being imported."""

from fairseq_tg.criterions import cross_entropy  # noqa: F401
from fairseq_tg.errors import report_in_one_line
from fairseq_tg.models import fconv, lstm, presets, transformer  # noqa: F401
from fairseq_tg.tasks import translation  # noqa: F401

report_in_one_line()
