"""A stage of a long job: done once, known to be done by its stamp, and never taken for done when it is not."""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, Sequence

from fairseq_tg.corpus.directory import describe_difference, hash_file
from fairseq_tg.errors import UserError
from fairseq_tg.files import make_directory, parse_json, replacing, take_lock

STAMP = "stage.json"
LOCK = ".lock"


class Stage:
    """A directory with what a stage makes, and a stamp: its settings and the hashes of its outputs.

    Args:
        directory: of the stage alone.
        settings: everything that its outputs depend on, as JSON takes it.
    """

    def __init__(self, directory: Path, settings: Dict[str, Any]) -> None:
        self.directory = directory
        self.settings = json.loads(json.dumps(settings))
        self.stamp = directory / STAMP

    def is_done(self) -> bool:
        """Whether its outputs are there, whole, and made with these settings; with others it is refused."""
        if not self.stamp.is_file():
            return False
        try:
            stamp = parse_json(self.stamp.read_text())
            settings, outputs = stamp["settings"], dict(stamp["outputs"])
        except (ValueError, KeyError, TypeError):
            return False  # a stamp that cannot be read says nothing: the stage is done again
        if settings != self.settings:
            raise UserError(
                f"'{self.directory}' was made with other settings ({describe_difference(settings, self.settings)}): "
                "give another --out, or remove it"
            )
        return all(
            (self.directory / name).is_file() and hash_file(self.directory / name) == digest
            for name, digest in outputs.items()
        )

    def seconds(self) -> float:
        """How long it took, when it was done."""
        return float(json.loads(self.stamp.read_text())["seconds"])

    @contextmanager
    def doing(self, outputs: Sequence[str]) -> Iterator[None]:
        """Do the stage: it is stamped when it ends well and all outputs are there."""
        make_directory(self.directory)
        lock = take_lock(self.directory / LOCK)
        if lock is None:
            raise UserError(f"another process is at work in '{self.directory}': wait for it, or give another --out")
        try:
            yield from self._do(outputs)
        finally:
            os.close(lock)

    def _do(self, outputs: Sequence[str]) -> Iterator[None]:
        begun = time.time()
        yield
        missing = [name for name in outputs if not (self.directory / name).is_file()]
        if missing:
            raise UserError(f"'{self.directory}' has no {missing[0]} at the end: see the log beside it")
        stamp = {
            "settings": self.settings,
            "outputs": {name: hash_file(self.directory / name) for name in outputs},
            "seconds": round(time.time() - begun, 1),
        }
        with replacing(str(self.stamp)) as temporary:
            Path(temporary).write_text(json.dumps(stamp, indent=2) + "\n")
