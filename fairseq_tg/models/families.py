"""All families that there are actors for, and the paper's bases: registered by being imported."""

from fairseq_tg.models import bart, fconv, lstm, presets, transformer  # noqa: F401
from fairseq_tg.models.base import FAMILIES as FAMILIES
