"""A parser of command lines whose mistakes end in one line, and the types of its numbers."""

from __future__ import annotations

import argparse
import math
from typing import Callable, NoReturn

from fairseq_tg.errors import UserError


class Parser(argparse.ArgumentParser):
    """Ends in one line, as everything does that a user can put right."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def at_least(lowest: int) -> Callable[[str], int]:
    """The type of an option that is a whole number."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = lowest - 1
        if value < lowest:
            raise argparse.ArgumentTypeError(f"{text[:40]!r}: give a whole number of at least {lowest}")
        return value

    return parse


def number(lowest: float, highest: float) -> Callable[[str], float]:
    """The type of an option that is a number."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(f"{text[:40]!r}: give a number from {lowest:g} to {highest:g}")
        return value

    return parse
