"""Giving memory back: what is free, and the pages of a mapped file that have been read and are not needed soon."""

from __future__ import annotations

import bisect
import ctypes
import mmap
from contextlib import suppress
from typing import Any, List, Tuple

PAGEOUT = 21  # Linux' MADV_PAGEOUT: pages go where they came from, and come back when they are read
SMALLEST = 1 << 20  # bytes that are worth a call


def give_back() -> None:
    """Give the system what has been freed. (glibc keeps pieces of up to 32 MB for whoever asks next.)"""
    with suppress(OSError, AttributeError):  # another system's library
        ctypes.CDLL(None).malloc_trim(0)


class MappedFiles:
    """The parts of this process' memory that are files, as they are now."""

    def __init__(self) -> None:
        self._parts: List[Tuple[int, int]] = []
        try:
            with open("/proc/self/maps") as file:
                for fields in map(str.split, file):
                    start, end = (int(address, 16) for address in fields[0].split("-"))
                    if fields[4] != "0":
                        self._parts.append((start, end))
            self._advise: Any = ctypes.CDLL(None).madvise
        except (OSError, AttributeError):  # another system: its pages stay
            self._parts = []

    def __contains__(self, address: int) -> bool:
        index = bisect.bisect_right(self._parts, (address, 1 << 64)) - 1
        return index >= 0 and address < self._parts[index][1]

    def page_out(self, address: int, size: int) -> None:
        """Give back the whole pages of [address, address + size), if they are a file's; what is in them stays."""
        if size < SMALLEST or address not in self or address + size - 1 not in self:
            return
        first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
        self._advise(ctypes.c_void_p(first), ctypes.c_size_t(max(0, last - first)), PAGEOUT)
