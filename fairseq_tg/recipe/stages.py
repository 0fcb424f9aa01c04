"""A stage of a long job: done once, known to be done by its stamp, and never taken for done when it is not."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

from fairseq_tg.corpus.directory import describe_difference, hash_file, without_paths
from fairseq_tg.errors import UserError
from fairseq_tg.files import make_directory, parse_json, refuse_link, remove_unfinished, replacing
from fairseq_tg.locks import take_lock

STAMP = "stage.json"
LOCK = ".lock"


class Stage:
    """A directory with what a stage makes, and a stamp: settings from its start, the hashes of its outputs at its end.

    Args:
        directory: of the stage alone.
        settings: everything that its outputs depend on, as JSON takes it.
        follows: those of the settings that come from stages before: where they alone are others, it is done again.
    """

    def __init__(self, directory: Path, settings: Dict[str, Any], follows: Sequence[str] = ()) -> None:
        self.directory = directory
        self.settings = json.loads(json.dumps(settings))
        self.stamp = directory / STAMP
        self.follows = follows

    def is_done(self) -> bool:
        """Whether its outputs are there, whole, and made with these settings; one begun with others is refused."""
        return self._is_whole(self._read())

    def _is_whole(self, outputs: Optional[Dict[str, str]]) -> bool:
        return bool(outputs) and all(
            (self.directory / name).is_file() and hash_file(self.directory / name) == digest
            for name, digest in (outputs or {}).items()
        )

    def _read(self) -> Optional[Dict[str, str]]:
        """The outputs that the stamp has; None if the stage has not come to its end."""
        if not self.stamp.is_file():
            if self._files():  # nobody knows with what
                raise UserError(f"'{self.directory}' has files and no {STAMP}: give another --out, or remove it")
            return None
        try:
            stamp = parse_json(self.stamp.read_text())
            settings, outputs = dict(stamp["settings"]), dict(stamp["outputs"]) if "outputs" in stamp else None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"'{self.stamp}' is damaged: give another --out, or remove '{self.directory}'") from None
        settings, own = without_paths(settings, self.settings)
        changed = {name for name in {**settings, **own} if settings.get(name) != own.get(name)}
        if changed and changed <= set(self.follows):
            return {STAMP: "of other settings"}  # which is no hash: so it is not whole
        if changed:
            old, new = (
                {name: value for name, value in each.items() if name not in self.follows} for each in (settings, own)
            )
            raise UserError(
                f"'{self.directory}' was begun with other settings ({describe_difference(old, new)}): "
                "give another --out, or remove it"
            )
        return outputs

    def _files(self) -> List[Path]:
        """What was made, the stamp last."""
        if not self.directory.is_dir():
            return []
        kept = (path for path in self.directory.iterdir() if path.name != LOCK)
        # A stamp that was never finished says nothing
        return sorted((p for p in kept if not p.name.startswith(f"{STAMP}.")), key=lambda path: path.name == STAMP)

    def take_over(self, other: Path) -> None:
        """Where this is not begun, and the same is or is done in another directory, that becomes this one's."""
        if self.directory.exists() or other.is_symlink() or not (other / STAMP).is_file():
            return
        with take_lock(other / LOCK, _held(other)):
            found, own = without_paths(recorded_settings(other), self.settings)
            if found == own:
                make_directory(self.directory.parent)
                other.rename(self.directory)

    @contextmanager
    def doing(self, outputs: Sequence[str]) -> Iterator[None]:
        """Do the stage: it is stamped as done when it ends well and all outputs are there.

        Another process may have done it since it was asked whether it is: then it is done twice, the same way.
        """
        refuse_link(self.directory)
        make_directory(self.directory)
        with take_lock(self.directory / LOCK, _held(self.directory)):
            found = self._read()
            if found is not None and not self._is_whole(found):  # what is left is not to be gone on from
                self._clear()
            remove_unfinished(self.directory)
            self._write({"settings": self.settings})
            yield
            missing = [name for name in outputs if not (self.directory / name).is_file()]
            if missing:
                raise UserError(f"'{self.directory}' has no {missing[0]} at the end: see the log beside it")
            made = {name: hash_file(self.directory / name) for name in outputs}
            self._write({"settings": self.settings, "outputs": made})

    def _clear(self) -> None:
        for path in self._files():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _write(self, stamp: Dict[str, Any]) -> None:
        with replacing(str(self.stamp)) as temporary:
            Path(temporary).write_text(json.dumps(stamp, indent=2) + "\n")


def recorded_settings(directory: Path) -> Dict[str, Any]:
    """The settings with which the stage in a directory was begun; none where there is no whole stamp."""
    try:
        return dict(parse_json((directory / STAMP).read_text())["settings"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _held(directory: Path) -> str:
    return f"another process is at work in '{directory}': wait for it, or give another --out"
