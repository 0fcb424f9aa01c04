"""A registry of named things: duplicates and unknown names raise, listing the choices."""

from __future__ import annotations

from typing import Callable, Dict, Generic, List, TypeVar

from fairseq_tg.errors import UserError

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps the names users type to what they stand for.

    >>> shapes: Registry[type] = Registry("shape", flag="--shape")
    >>> @shapes.register("round")
    ... class Round: ...
    """

    def __init__(self, kind: str, flag: str) -> None:
        self.kind = kind
        self.flag = flag
        self._entries: Dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        if name in self._entries:
            raise ValueError(f"{self.kind} '{name}' is registered twice")

        def add(entry: T) -> T:
            self._entries[name] = entry
            return entry

        return add

    def names(self) -> List[str]:
        return list(self._entries)

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise UserError(f"unknown {self.kind} '{name}': {self.flag} takes one of {', '.join(self._entries)}")
        return self._entries[name]
