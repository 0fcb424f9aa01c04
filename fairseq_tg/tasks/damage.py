"""Damaged dictionaries and binarized data, in one line: fairseq's readers say it in many ways."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb
from typing import Iterator

from fairseq_tg.errors import UserError

#: Files of fairseq that read them
READERS = {"dictionary.py", "indexed_dataset.py", "huffman_mmap_indexed_dataset.py", "huffman_coder.py"}


@contextmanager
def naming_damage(data: str) -> Iterator[None]:
    """Whatever a reader fails with in here, but for a file that is not there, is said of a data directory."""
    try:
        yield
    except (UserError, FileNotFoundError):
        raise
    except Exception as error:
        if not READERS & {Path(frame.filename).name for frame in extract_tb(error.__traceback__)}:
            raise
        raise UserError(f"a file of '{data}' is damaged ({error}): binarize the data again") from None
