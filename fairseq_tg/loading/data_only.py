"""torch.load as a reader of data, with every torch from 2.2 on.

From torch 2.6 on ``weights_only`` takes a list of further classes; it is asked for, because the environment can turn
its default off. Older ones cannot be given a list; for them there is an unpickler of our own.
"""

from __future__ import annotations

import collections
import os
import pickle
import zipfile
from types import ModuleType
from typing import Any, Callable, Dict, List

import torch

#: Whether torch.load can be told what else than tensors is data
TORCH_READS_DATA_ONLY = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)


def _latin1(text: str, encoding: str) -> bytes:
    """What pickles of bytes call `_codecs.encode` for."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in {encoding}, not in latin1")
    return text.encode("latin1")


_known: Dict[str, Any] = {
    "collections.OrderedDict": collections.OrderedDict,
    "builtins.set": set,
    "__builtin__.set": set,
    "_codecs.encode": _latin1,
    "torch.Size": torch.Size,
    "torch.device": torch.device,
    **{f"torch._utils.{name}": getattr(torch._utils, name) for name in ("_rebuild_tensor_v2", "_rebuild_parameter")},
    **{str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)},
}


class DataUnpickler(pickle.Unpickler):
    """Knows the classes that tensors and plain containers are made of, those that were allowed, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _known[f"{module}.{name}"]
        except KeyError:
            raise pickle.UnpicklingError(f"GLOBAL {module}.{name} is not allowed") from None


def _as_pickle_module() -> ModuleType:
    """What torch.load takes for the pickle module."""
    module = ModuleType("fairseq_tg_data_only")
    vars(module).update(
        Unpickler=DataUnpickler,
        UnpicklingError=pickle.UnpicklingError,
        load=lambda file, **options: DataUnpickler(file, **options).load(),
    )
    return module


def allow(classes: List[Any]) -> None:
    """Let checkpoints have these, beside tensors and plain containers: classes, or pairs of one and its full name."""
    if TORCH_READS_DATA_ONLY:
        torch.serialization.add_safe_globals(classes)
        return
    for item in classes:
        value, name = item if isinstance(item, tuple) else (item, f"{item.__module__}.{item.__qualname__}")
        _known[name] = value


def is_archive(path: str) -> bool:
    """Whether torch would read a file as an archive: it looks at the beginning, Python's zipfile at the end."""
    with open(path, "rb") as file:
        return file.read(4) == b"PK\3\4"


def _refuse_programs(path: str) -> None:
    """Refuse what is TorchScript: some versions of torch.load run it, whatever they are told of pickles."""
    with zipfile.ZipFile(path) as archive:
        names = [name.split("/") for name in archive.namelist()]
    if any(parts[-1] == "constants.pkl" or "code" in parts[:-1] for parts in names):
        raise pickle.UnpicklingError("GLOBAL torch.jit.load is not allowed")


def _is_text(path: str) -> bool:
    try:
        return os.fsdecode(path.encode()) == path
    except UnicodeError:
        return False


def load_data(file: Any, **options: Any) -> Any:
    """torch.load, which reads data only, whatever its version, its caller and the environment say.

    An open file that is an archive of torch's is mapped: a tensor takes memory where it is looked at.
    """
    path = getattr(file, "name", None)
    if isinstance(path, str) and os.path.isfile(path) and is_archive(path):
        _refuse_programs(path)
        if _is_text(path):  # which is what torch maps files by
            file, options = path, {**options, "mmap": True}
    if TORCH_READS_DATA_ONLY:
        return torch.load(file, **{**options, "weights_only": True})
    return torch.load(file, **{**options, "weights_only": False, "pickle_module": _as_pickle_module()})


class DataOnlyTorch(ModuleType):
    """Stands for torch in a module that calls torch.load as it likes, and reads data only there."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def read_data_only_in(module: Any, load: Callable[..., Any] = load_data) -> None:
    """Let the torch.load of another package's module be ours."""
    module.torch = DataOnlyTorch("torch")
    module.torch.load = load
