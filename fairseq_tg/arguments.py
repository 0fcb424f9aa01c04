"""Command lines made from dataclasses, so that an option exists once; mistakes in them end in one line."""

from __future__ import annotations

import argparse
import math
from dataclasses import MISSING, Field, field, fields, is_dataclass
from typing import Any, Callable, Dict, NoReturn, Type, TypeVar, Union, get_args, get_origin, get_type_hints

from fairseq_tg.errors import UserError

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """Ends in one line, as everything does that a user can put right."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def option(help: str, default: Any = MISSING, **parsing: Any) -> Any:
    """A field of a dataclass that is an option.

    Args:
        help: what it is, for the user; the default is added to it.
        default: none makes it one that has to be given. A function is called for it.
        parsing: `flag` if it is not the field's name, `positional`, `least` of a whole number (0), `range` of a number,
            and what argparse knows.
    """
    made: Dict[str, Any] = {"default_factory" if callable(default) else "default": default}
    return field(metadata={"help": help, **parsing}, **({} if default is MISSING else made))


def add_options(parser: Any, options: Type[Any]) -> None:
    """Give a parser an option for every field of a dataclass; those of a dataclass within are a group of their own."""
    types = get_type_hints(options)
    for item in fields(options):
        if is_dataclass(types[item.name]):
            add_options(parser.add_argument_group(item.metadata["help"]), types[item.name])
        elif "help" in item.metadata:
            _add_option(parser, item, types[item.name])


def _add_option(parser: Any, item: Field, kind: Any) -> None:
    settings = dict(item.metadata)
    positional = settings.pop("positional", False)
    flag = item.name if positional else settings.pop("flag", f"--{item.name.replace('_', '-')}")
    default = item.default if item.default_factory is MISSING else item.default_factory()
    least, bounds = settings.pop("least", 0), settings.pop("range", (-math.inf, math.inf))
    if get_origin(kind) is Union:  # Optional
        kind = get_args(kind)[0]
    if get_origin(kind) is tuple:
        kind = get_args(kind)[0]
        if "nargs" not in settings:
            settings["action"] = "append"
    if kind is bool:
        settings["action"] = "store_true" if default is False else argparse.BooleanOptionalAction
    elif "choices" not in settings:
        settings["type"] = {int: at_least(least), float: number(*bounds)}.get(kind, kind)
    if default is not MISSING:
        settings["default"] = default
        if default is not None and default is not False and default not in ("", ()):
            shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
            settings["help"] += f" (default: {shown})"
    elif not positional:
        settings["required"] = True
    if settings.get("action") == "append":
        settings["default"] = []  # argparse adds to it
    if not positional:
        settings["dest"] = item.name
    parser.add_argument(flag, **settings)


def read_options(options: Type[T], args: argparse.Namespace) -> T:
    """The dataclass of what was given on a command line whose parser has its options."""
    types = get_type_hints(options)
    values = {}
    for item in fields(options):  # type: ignore[arg-type]
        if is_dataclass(types[item.name]):
            values[item.name] = read_options(types[item.name], args)
        elif hasattr(args, item.name):
            value = getattr(args, item.name)
            values[item.name] = tuple(value) if isinstance(value, list) else value
    return options(**values)


def at_least(lowest: float) -> Callable[[str], int]:
    """The type of an option that is a whole number."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value < lowest:
            least = "" if lowest == -math.inf else f" of at least {lowest}"
            raise argparse.ArgumentTypeError(f"{text[:40]!r}: give a whole number{least}")
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
