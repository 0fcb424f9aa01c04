"""Registering with fairseq, whichever of the two is imported first.

fairseq's ``--user-dir`` imports a package and takes it for registered; of one that is imported already it only says so.
A program that has translated with a compiled model, which needs no fairseq, and then turns to fairseq would find
nothing of this package there.
"""

from __future__ import annotations

import importlib
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
        # Of the package imported before, as `importlib.reload` does: two would ask each other without end
        sys.meta_path[:] = [finder for finder in sys.meta_path if not hasattr(finder, "brings_fairseq_tg")]
        sys.meta_path.insert(0, _AfterFairseq())


class _AfterFairseq:
    """Finds fairseq where it is, and has the plugin imported behind it. (What is looked for may not be imported.)

    Of this package, too, every module that is imported before: one that asks for fairseq is only begun then, and the
    plugin, which needs it whole, waits until the outermost has been imported.
    """

    brings_fairseq_tg = True

    def __init__(self) -> None:
        self.under_way = 0

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        if name != "fairseq" and not name.startswith("fairseq_tg."):
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_both(module: ModuleType) -> None:
                self.under_way += 1
                try:
                    load(module)
                finally:
                    self.under_way -= 1
                if not self.under_way and sys.modules.get("fairseq") and self in sys.meta_path:
                    sys.meta_path.remove(self)
                    importlib.import_module(PLUGIN)

            spec.loader.exec_module = load_both  # type: ignore[method-assign]
        return spec
