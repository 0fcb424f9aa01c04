"""Locks on directories that one process at a time may write to. They end with the process, however that ends."""

from __future__ import annotations

import logging
from pathlib import Path

from filelock import FileLock, Timeout

from fairseq_tg.errors import UserError

logging.getLogger("filelock").setLevel(logging.WARNING)  # it tells of every lock, also at the end of the process


def take_lock(path: Path, held: str, seconds: float = 0) -> FileLock:
    """The lock `path`, to be released or kept to the end of the process.

    Args:
        held: what to tell the user if another process has it.
        seconds: to wait for it before.
    """
    if path.is_symlink():  # older versions of filelock would empty what it leads to
        raise UserError(f"'{path}' is a link, and a lock is a file: remove it")
    lock = FileLock(str(path), timeout=seconds, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(held) from None
    except (OSError, NotImplementedError) as error:  # the latter is filelock's for a disk that has no locks
        raise UserError(f"cannot lock '{path}': {error}; give a directory on a disk that has locks") from None
    return lock
