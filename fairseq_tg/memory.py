"""Giving memory back: what is free, and the pages of a mapped file that have been read and are not needed soon."""

from __future__ import annotations

import bisect
import ctypes
import mmap
from contextlib import suppress
from typing import Any, List, Tuple

import numpy as np

#: Linux' MADV_PAGEOUT: pages go where they came from, and come back when they are read
PAGEOUT = 21
#: Its MADV_DONTNEED: this process lets go of them. They stay in the system's cache, from where they come back at once;
#: but what has been written to a page of its own is lost.
DONTNEED = 4
SMALLEST = 1 << 16  # bytes that are worth a call
#: What /proc/self/pagemap says of a page, in 64 bits
PRESENT, SWAPPED, OF_FILE = np.uint64(1 << 63), np.uint64(1 << 62), np.uint64(1 << 61)


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
        if last > first:
            advice = DONTNEED if _are_the_files(first, last) else PAGEOUT
            self._advise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), advice)


def _are_the_files(first: int, last: int) -> bool:
    """Whether no page of [first, last) has been written to, so that a file has all that is in them."""
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(first // mmap.PAGESIZE * 8)
            pages = np.frombuffer(file.read((last - first) // mmap.PAGESIZE * 8), dtype=np.uint64)
    except (OSError, ValueError):
        return False
    there = (pages & (PRESENT | SWAPPED)) != 0
    known = len(pages) == (last - first) // mmap.PAGESIZE
    return known and not (there & ((pages & OF_FILE) == 0)).any()
