"""Options of fairseq's commands in a fraction of the time: Hydra composes some three hundred of them for every command.

The tests run hundreds of commands in one process, which differ in a few values: only those are set anew. What comes out
is the same (tests/unit/test_quick_options.py).
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any, Dict, List, Tuple

from fairseq.dataclass import utils
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

compose = utils.compose  # Hydra's
#: By names of options and choices of groups: a command's overrides, and what Hydra made of them
_known: Dict[Tuple[str, ...], Tuple[List[str], Any]] = {}


def compose_quickly(config_name: str, overrides: List[str], strict: bool) -> Any:
    """As Hydra's function of the same arguments, as fairseq calls it."""
    names = [override.partition("=")[0] for override in overrides]
    shape = tuple(name if "." in name else override for name, override in zip(names, overrides))
    if shape not in _known:
        _known[shape] = [*overrides], compose(config_name, overrides=overrides, strict=strict)
    others, composed = _known[shape]
    made = copy.deepcopy(composed)
    changed = [i for i, (ours, theirs) in enumerate(zip(overrides, others)) if ours != theirs]
    times = Counter(names)
    try:
        for i in changed:
            before, after = (_value(override) for override in (others[i], overrides[i]))
            if times[names[i]] > 1 or isinstance(before, (dict, list)) or isinstance(after, (dict, list)):
                return compose(config_name, overrides=overrides, strict=strict)  # which would merge them
            OmegaConf.update(made, names[i], after, merge=True)
    except (HydraException, OmegaConfBaseException):
        return compose(config_name, overrides=overrides, strict=strict)  # which says what is wrong
    return made


def _value(override: str) -> Any:
    (parsed,) = OverridesParser.create().parse_overrides([override])
    return parsed.value()
