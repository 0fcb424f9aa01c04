"""What an evaluation has in memory: every model and system that it compares, or, if models are large, one at a time."""

from __future__ import annotations

import gc
from typing import Any, Callable, Dict, Sequence, Tuple, TypeVar, cast

from fairseq_tg.evaluation.systems import Load, Search, System, Tokens, Translate, build, build_search
from fairseq_tg.memory import give_back

#: Parameters of a model that has no others beside it
LARGE = 100_000_000
#: Hypotheses that a large model extends together: what these take is little beside it
ROWS_OF_LARGE = 16

Run = TypeVar("Run", Translate, Search)


class Held:
    """Models of checkpoints and systems made of them, each when it is asked for.

    Who has asked for a large model lets go of it before asking for the next.

    Args:
        load: reads a checkpoint.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._models: Dict[str, Tuple[Any, Any]] = {}
        self._systems: Dict[str, Callable[[Sequence[Tokens]], Any]] = {}
        self._one_at_a_time = False

    def model(self, path: str, data: str) -> Tuple[Any, Any]:
        """The model of a checkpoint, and a task."""
        if self._systems or path not in self._models:  # (systems have memory of their own)
            self.make_room()
        if path not in self._models:
            model, _ = self._models[path] = self._load(path, data)
            size = sum(parameter.numel() for parameter in model.parameters())
            self._one_at_a_time = self._one_at_a_time or size >= LARGE
        return self._models[path]

    def translate(self, system: System) -> Translate:
        """A system, which is built when it is first used, and again if others have had its place."""
        return self._when_used(system, build)

    def search(self, system: System) -> Search:
        """The same, for all that it finds."""
        return self._when_used(system, build_search)

    def _when_used(self, system: System, make: Callable[[System, Load], Run]) -> Run:
        def run(sources: Sequence[Tokens]) -> Any:
            if system.name not in self._systems:
                self.make_room()
                self._systems[system.name] = make(system, self.model)
            return self._systems[system.name](sources)

        return cast(Run, run)

    def batch_size(self, usual: int, beam: int) -> int:
        """The sentences that are translated together."""
        return max(1, ROWS_OF_LARGE // beam) if self._one_at_a_time else usual

    def make_room(self) -> None:
        """Let go of everything, if models are large."""
        if self._one_at_a_time:
            self._systems.clear()
            self._models.clear()
            gc.collect()
            give_back()
