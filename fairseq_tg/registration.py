"""Registering with fairseq, whichever of the two is imported first.

fairseq's ``--user-dir`` imports a package and takes it for registered; of one that is imported already it only says so.
A program that has translated with a compiled model, which needs no fairseq, and then turns to fairseq would find
nothing of this package there.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Optional

PLUGIN = "fairseq_tg.plugin"


def register_with_fairseq() -> None:
    """Register now if fairseq is there, and otherwise as soon as it has been imported."""
    if sys.modules.get("fairseq"):
        importlib.import_module(PLUGIN)
    else:
        sys.meta_path.insert(0, _AfterFairseq())


class _AfterFairseq:
    """Finds fairseq where it is, once, and has the plugin imported behind it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        if name != "fairseq":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_both(module: ModuleType) -> None:
                load(module)
                importlib.import_module(PLUGIN)

            spec.loader.exec_module = load_both  # type: ignore[method-assign]
        return spec
