"""Locks: held is one thing, a disk without locks another."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from fairseq_tg.errors import UserError
from fairseq_tg.locks import take_lock

HELD = "another process is building"


def test_a_held_lock_is_said_to_be_held(tmp_path: Path) -> None:
    with take_lock(tmp_path / "lock", HELD), pytest.raises(UserError, match=HELD):
        take_lock(tmp_path / "lock", HELD)
    take_lock(tmp_path / "lock", HELD).release()


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EIO, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_another_error_is_not_said_to_be_another_process(tmp_path: Path, monkeypatch: Any, error: int) -> None:
    def fail(*_: Any) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(UserError, match=f"cannot lock '{tmp_path}/lock': .*{os.strerror(error)}.*; give a directory"):
        take_lock(tmp_path / "lock", HELD)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot lock"):
        take_lock(Path("/proc/none/lock"), HELD)
