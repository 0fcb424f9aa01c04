"""The engine's libraries: which there are, which is this machine's, and how ctypes calls it."""

from __future__ import annotations

import ctypes
import functools
import itertools
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_void_p
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, List, Tuple


def _structure(kind: Any, names: str) -> List[Tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Request(ctypes.Structure):  # search.h's Request
    _fields_ = [
        *_structure(c_void_p, "tokens lengths limits prefix"),
        *_structure(c_int32, "batch prefix_length min_length beam nbest normalize base all first end"),
        *_structure(c_float, "unk_penalty length_penalty"),
    ]


class Results(ctypes.Structure):  # search.h's Results
    _fields_ = [*_structure(c_void_p, "tokens lengths scores positional"), ("stride", c_int32)]


class TraceRequest(ctypes.Structure):  # trace.h's TraceRequest
    _fields_ = [
        *_structure(c_void_p, "source target"),
        *_structure(c_int32, "source_length target_length likeliest base first"),
    ]


class TraceResults(ctypes.Structure):  # trace.h's TraceResults
    _fields_ = [
        *_structure(c_void_p, "actions attention tokens probabilities"),
        *_structure(c_int32, "places layers"),
    ]


class EngineError(RuntimeError):
    """The engine is not there, or cannot do what it was asked for."""


#: As in engine.h
INTERFACE = 2
#: The libraries that setup.py builds: for any machine, for one with AVX2, and for one with AVX-512 and VNNI.
GENERIC, AVX2, AVX512 = "_native", "_native_avx2", "_native_avx512"
#: Those for some machines only, best first, and the function that says whether this is one.
SPECIAL = {AVX512: "tg_has_avx512", AVX2: "tg_has_avx2"}


def library_path(name: str) -> Path:
    """Where setup.py puts a library: one for all versions of Python, none of which it knows anything about."""
    return Path(__file__).parent / f"{name}{EXTENSION_SUFFIXES[-1]}"


def build_failure(name: str) -> str:
    """Why setup.py could not build a library, if it tried."""
    note = Path(__file__).parent / f"{name}.failed"
    return note.read_text().strip() if note.exists() else ""


@functools.cache
def load_library(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        reason = build_failure(GENERIC) or ("it is not there" if not path.exists() else str(error))
        raise EngineError(
            f"native engine: not built ({reason}); install fairseq_tg again where there is a C++ compiler"
        ) from None
    expected = INTERFACE << 16 | ctypes.sizeof(Request) << 8 | ctypes.sizeof(TraceRequest)
    if not hasattr(library, "tg_interface") or library.tg_interface() != expected:  # of an editable installation, say
        raise EngineError(
            f"native engine: not built for this version ('{path}' is of another); install fairseq_tg again"
        )
    pointer = c_void_p
    for function, result, arguments in (
        ("tg_has_avx2", c_int, []),
        ("tg_has_avx512", c_int, []),
        ("tg_new", pointer, [pointer]),
        ("tg_number", c_int, [pointer, c_char_p, c_double]),
        ("tg_free", None, [pointer]),
        ("tg_matrix", c_int, [pointer, c_char_p, pointer, pointer, pointer, c_int, c_int]),
        ("tg_embedding", c_int, [pointer, c_char_p, pointer, pointer, c_int, c_int]),
        ("tg_tied_embedding", c_int, [pointer, c_char_p, c_char_p]),
        ("tg_positions", c_int, [pointer, c_char_p, pointer]),
        ("tg_norm", c_int, [pointer, c_char_p, pointer, pointer, c_int]),
        ("tg_shortlist", c_int, [pointer, pointer, c_int, pointer]),
        ("tg_connect", c_char_p, [pointer]),
        ("tg_search", c_int, [pointer, POINTER(Request), c_int, POINTER(Results)]),
        ("tg_trace", c_int, [pointer, POINTER(TraceRequest), POINTER(TraceResults)]),
    ):
        bound = getattr(library, function)
        bound.restype, bound.argtypes = result, arguments
    return library


def runs_here(name: str) -> bool:
    """Whether this machine can run a library that is for some only, as the one for all says."""
    return bool(getattr(load_library(library_path(GENERIC)), SPECIAL[name])())


def usable_libraries() -> List[str]:
    """The names of the libraries that this machine can run, best first."""
    return [*(name for name in SPECIAL if library_path(name).exists() and runs_here(name)), GENERIC]


def best_library() -> str:
    """The name of the library for this machine's instruction set."""
    return usable_libraries()[0]


def described() -> str:
    """Which engine there is, in a few words: a build that failed leaves the rest of the package as it is."""
    try:
        name = best_library()
        load_library(library_path(name))
        better = itertools.takewhile(lambda other: other != name, SPECIAL)
        failed = {other: build_failure(other) for other in better if build_failure(other) and runs_here(other)}
    except EngineError as error:
        return str(error)
    notes = "; ".join(f"{_title(other)}: {reason}" for other, reason in failed.items())
    return f"native engine: {_title(name)}{f' ({notes})' if notes else ''}"


def _title(name: str) -> str:
    return "generic" if name == GENERIC else name.rpartition("_")[2]
