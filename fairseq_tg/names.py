"""What users may choose from, for options, which import nothing heavy, and for what does it.

Of `ACTORS` and `ENGINES` there are registries, and of the criteria fairseq's: `tests/unit/test_names.py` compares them.
"""

from __future__ import annotations

from typing import Sequence

#: What the names of our tasks begin with, before the one of fairseq's that each extends
TG = "tg_"
#: Of --actor
ACTORS = ("gate", "ff", "ff2", "rnn", "linear")
#: Of --actor-sites
SITES = ("attention", "all", "maps")
#: Of --kbest-engine
ENGINES = ("native", "native_int8", "fairseq", "ctranslate2")
#: Those of --criterion that learn from k-best lists
LIST_CRITERIA = ("actor_risk", "actor_trie", "actor_preference")


def one_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
