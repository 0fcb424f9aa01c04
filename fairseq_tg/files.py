"""Writing files so that they are whole or not there."""

from __future__ import annotations

import json
import os
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, Optional

from fairseq_tg.errors import UserError

#: In the name of a file that is being written
TEMPORARY = ".tmp"


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """Give a temporary name to write to; what was written is synced and takes the place of `path` at the end.

    If anything goes wrong, `path` is as it was and the temporary file is gone.
    """
    _check_replaceable(path)
    # Not by the process' number: in two containers on one disk there are two of the same
    temporary = f"{path}{TEMPORARY}{uuid.uuid4().hex}"
    try:
        try:
            yield temporary
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_directory(os.path.dirname(path) or ".")
        finally:
            if os.path.exists(temporary):
                os.remove(temporary)
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror or error}") from None


def _check_replaceable(path: str) -> None:
    """Refuse a place that is not there, or that of what is no file: a device, a pipe, this process' own output."""
    above = os.path.realpath(os.path.dirname(path) or ".")
    if not os.path.isdir(above):
        raise UserError(f"cannot write '{path}': there is no directory '{above}'")
    special = os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))
    if special or above == "/dev" or above.startswith("/proc/"):
        raise UserError(f"cannot write '{path}': it is no file, and would be replaced by one; give another name")


def remove_unfinished(directory: Path) -> None:
    """Remove what processes that were killed had not written to its end, where nobody else is writing."""
    for path in directory.glob(f"*{TEMPORARY}*"):
        path.unlink(missing_ok=True)


def check_no_input(out: str, *inputs: Optional[str]) -> None:
    """Refuse to write what a command makes in the place of what it is made of."""
    for path in inputs:
        if path is not None and os.path.exists(path) and os.path.exists(out) and os.path.samefile(path, out):
            raise UserError(f"'{out}' is read, and would be replaced: give what is written another name")


def refuse_links(directory: Path) -> None:
    """Refuse a directory to write to, which may have been sent, if one in it is a link to somewhere else."""
    for above, directories, _ in os.walk(directory):
        for path in (Path(above, name) for name in directories):
            refuse_link(path)


def refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise UserError(f"'{path}' is a link: nothing is written through it; remove it")


def make_directory(path: Path) -> None:
    """Make a directory to write to, and find out now if that cannot be done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the directory '{path}': {error.strerror}; give another") from None


def sync_directory(path: str) -> None:
    """Make a rename in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def parse_json(text: str) -> Any:
    """json.loads for what comes from files: nested too deeply, it is no JSON either."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
