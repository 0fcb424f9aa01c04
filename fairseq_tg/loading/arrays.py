"""numpy's arrays and numbers as pickles make them, of plain numbers only.

numpy's own constructors trust a pickle: they take its bytes for addresses of objects, its offsets for places in an
array, and its sizes for memory. Here its names stand for functions that know plain arrays, and refuse the rest.
"""

from __future__ import annotations

import pickle
from typing import Any, List, NoReturn

import numpy as np

_CODES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_KINDS = {code: np.dtype(code) for code in _CODES}


def _refuse(what: str) -> NoReturn:
    raise pickle.UnpicklingError(f"class {what} is allowed for plain numbers only")


def _dtype(code: Any = None, *_: Any) -> Any:
    """numpy's own type of numbers, which is for ever: the state that a pickle would give it is left aside."""
    return _KINDS[code] if isinstance(code, str) and code in _KINDS else _refuse("numpy.dtype")


def _array(*_: Any) -> Any:
    """An empty array. The pickle then gives it a shape and bytes, which numpy compares."""
    return np.ndarray((0,), np.int8)


def _number(kind: Any = None, data: Any = None) -> Any:
    if not isinstance(kind, np.dtype) or not isinstance(data, bytes) or len(data) != kind.itemsize:
        _refuse("numpy.generic")
    return np.frombuffer(data, kind)[0]


def _class_of_arrays(*_: Any) -> Any:
    _refuse("numpy.ndarray")


#: What stands for numpy in pickles, each with its name there. (torch gives a state only to what is of a class in this
#: list. A name without a dot is one that no pickle can ask for.)
ARRAYS: List[Any] = [
    (_dtype, "numpy.dtype"),
    (_class_of_arrays, "numpy.ndarray"),
    # by the names that numpy 1 and numpy 2 give their module
    *((_array, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((_number, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    (np.ndarray, "ndarray"),
    *((type(kind), code) for code, kind in _KINDS.items()),
]
