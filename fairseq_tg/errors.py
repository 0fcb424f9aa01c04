"""The one exception for what a user can put right, and how a command ends with it."""

from __future__ import annotations

import sys
from contextlib import suppress
from types import TracebackType
from typing import Callable, List, Optional, Type

#: How an error of ours begins where it is printed
PREFIX = "fairseq_tg: error: "
#: What a command says that was told to end before it had
INTERRUPTED = "interrupted: run the same command to go on"
_TO_BE_LEFT: List[Callable[[], None]] = []


class UserError(Exception):
    """One sentence for the user: what was wrong, with which value, what to do about it.

    A program catches it as any other error. A command ends with its line on standard error and status 1, without a
    traceback: see `report_in_one_line`.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.split())))  # it is made of this again, in another process

    def __str__(self) -> str:
        return f"{PREFIX}{self.args[0]}"


def printable(text: str) -> str:
    """Text for a terminal: what came from a file or is the name of one has no control over it."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def tell(line: str) -> None:
    """Print a line on standard error, if somebody can hear it. (Where that is closed, print takes standard output.)"""
    if sys.stderr is not None:
        with suppress(OSError):
            print(line, file=sys.stderr, flush=True)


def user_error_in(error: Optional[BaseException]) -> Optional[UserError]:
    """The user's error that an exception is, or was raised in place of: fairseq's trainer replaces what it catches."""
    while error is not None and not isinstance(error, UserError):
        error = error.__cause__ or error.__context__
    return error


def leave_when_failing(leave: Callable[[], None]) -> None:
    """Have something done when a command ends with an error, or is interrupted: before it waits for its threads."""
    _TO_BE_LEFT.append(leave)


def report_in_one_line() -> None:
    """From now on a UserError that nobody catches is one line on standard error, whoever's command this is."""
    others = sys.excepthook
    if getattr(others, "knows_user_errors", False):
        return

    def report(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        for leave in _TO_BE_LEFT:
            leave()
        found = user_error_in(error)
        if found is None:
            others(kind, error, trace)
        else:
            tell(str(found))

    report.knows_user_errors = True  # type: ignore[attr-defined]
    sys.excepthook = report
