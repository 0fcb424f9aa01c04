"""What actors are called, and the format of their files: safetensors with JSON metadata. With torch and without."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Tuple

from safetensors import SafetensorError, safe_open

from fairseq_tg.files import parse_json

METADATA_KEY = "fairseq_tg"  # one key, because safetensors does not keep the order of several
FORMAT = 1
#: The form of the actors that --actor-sites all adds
FURTHER_ACTOR = "gate"
_OF_ACTOR = re.compile(r"(^|[._])actor(\.|$)")


def is_of_actor(name: str) -> bool:
    """Whether a module or tensor of a tg model is below a child called `actor` or `..._actor`."""
    return _OF_ACTOR.search(name) is not None


class ActorFileError(ValueError):
    """An actor file that is none, or not one of this base."""


def read_tensors(path: str, framework: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """The metadata and the tensors, of torch ("pt") or numpy; ActorFileError in one sentence."""
    if not os.path.isfile(path):
        raise ActorFileError(f"no actor file at '{path}': make one with fairseq-tg actor export TG.pt {path}")
    try:
        with safe_open(path, framework=framework) as file:
            text = (file.metadata() or {}).get(METADATA_KEY)
            metadata = None if text is None else parse_json(text)
            known = metadata is not None and metadata.get("format") == FORMAT
            tensors = {name: file.get_tensor(name) for name in file.keys()} if known else {}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise ActorFileError(f"'{path}' is no actor file, or a damaged one ({error}): export it again") from None
    if metadata is None:
        raise ActorFileError(f"'{path}' is no actor file: give one that fairseq-tg actor export made")
    if not known:
        raise ActorFileError(
            f"'{path}' has actor file format {metadata.get('format')}, this version reads {FORMAT}: "
            "use the fairseq_tg that wrote it, or export it again"
        )
    return metadata, tensors
