"""The directory that a corpus is built in: what is being built, by whom, and how far it is."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from fairseq_tg.corpus.blocks import BlockStore
from fairseq_tg.corpus.pairs import Pair
from fairseq_tg.errors import UserError
from fairseq_tg.files import make_directory, parse_json, refuse_link, remove_unfinished, replacing
from fairseq_tg.locks import take_lock

MANIFEST = "manifest.json"
KBEST = "kbest.jsonl.gz"
FORMAT = 2  # the first had no digest of the manifest itself
READ_FORMATS = (1, FORMAT)
#: Among settings, the name of an option's file with this before it has the hash of what is in the file
CONTENT = "content of "


class CorpusDirectory:
    """A corpus, finished or under way.

    `recipe` is everything that the corpus depends on; a directory is for one recipe. It is in the manifest from the
    beginning; when the corpus is complete, counts, skipped sentences and the hashes of all files join it.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.blocks = BlockStore(self.path / "blocks")
        self._lock: Any = None

    @property
    def manifest(self) -> Optional[Dict[str, Any]]:
        """The manifest, or None where nothing has been begun."""
        path = self.path / MANIFEST
        if not path.exists():
            return None
        try:
            manifest = parse_json(path.read_text(encoding="utf-8"))
            if manifest["format"] not in READ_FORMATS:
                raise UserError(
                    f"'{path}' has format {manifest['format']!r:.20}, this version reads {READ_FORMATS}: "
                    "use the fairseq_tg that wrote it"
                )
            digest = manifest.pop("sha256", None)
            if (digest is not None or manifest["format"] > 1) and digest != _digest(manifest):
                raise ValueError("it has not the hash it was written with")
            _check_manifest(manifest)
            return manifest
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"'{path}' is damaged ({error}): build the corpus anew, in another directory") from None

    @property
    def complete(self) -> bool:
        manifest = self.manifest
        return manifest is not None and manifest["status"] == "complete"

    def begin(self, recipe: Dict[str, Any], origin: Dict[str, Any]) -> None:
        """Make the directory, or check that it is for this recipe.

        Args:
            recipe: everything that the corpus depends on.
            origin: what else is worth knowing: where the data was, and the command.
        """
        recipe = json.loads(json.dumps(recipe))
        manifest = self.manifest
        refuse_link(self.blocks.directory)
        if manifest is not None:
            difference = describe_difference(manifest["recipe"], recipe)
            if difference:
                raise UserError(
                    f"'{self.path}' was begun with other settings: {difference}; give the same command, or another "
                    "directory"
                )
            data = origin.get("data")
            if data is not None and manifest["status"] == "building" and manifest.get("data") != data:
                self._note_data(data)
            return
        if self.path.exists() and not (self.path.is_dir() and all(map(_is_ours, self.path.iterdir()))):
            raise UserError(f"'{self.path}' is there and is no k-best corpus: give an empty or a new --kbest-dir")
        try:
            self.blocks.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make '{self.path}': {error.strerror}") from None
        self.write_manifest({**origin, "recipe": recipe}, status="building")

    def _note_data(self, data: str) -> None:
        """Note where the data is now, if it is the same: it is read again when the corpus is completed."""
        with self.completing(seconds=10):  # other shards do this, too
            manifest = self.manifest
            if manifest is not None and manifest["status"] == "building":
                check_data(Path(data), manifest["recipe"])
                self.write_manifest({**manifest, "data": data}, "building")

    def completing(self, seconds: float = 0) -> Any:
        """The lock of whoever makes the corpus complete, and of what must not happen meanwhile."""
        held = f"another process is completing '{self.path}': wait for it"
        return take_lock(self.path / ".lock-complete", held, seconds)

    def write_manifest(self, manifest: Dict[str, Any], status: str) -> None:
        manifest = json.loads(json.dumps({**manifest, "format": FORMAT, "status": status}))
        # In ASCII: names of files may be no text at all, and another locale may read it
        text = json.dumps({**manifest, "sha256": _digest(manifest)}, indent=1)
        with replacing(str(self.path / MANIFEST)) as temporary:
            Path(temporary).write_text(text + "\n", encoding="ascii")

    def lock(self, shard: int, shards: int) -> None:
        """Keep other processes from building the same shard here, and from building with another number of shards."""
        make_directory(self.path)
        self._lock = take_lock(self.path / f".lock-{shard}-of-{shards}", self._held(f"{shard}/{shards}"))
        for other in sorted(self.path.glob(".lock-*-of-*")):
            place = other.name.removeprefix(".lock-").replace("-of-", "/")
            if not place.endswith(f"/{shards}"):
                try:
                    take_lock(other, self._held(place)).release()
                except UserError:
                    self.unlock()
                    raise

    def _held(self, place: str) -> str:
        return f"another process is building shard {place} in '{self.path}': wait for it, or give another --kbest-dir"

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def check_files(self, beginning: str = "") -> None:
        """Compare the files of a complete corpus (those whose names have this beginning) with their hashes."""
        manifest = self.manifest
        assert manifest is not None
        for name, expected in manifest["files"].items():
            if not name.startswith(beginning):
                continue
            path = self.path / os.path.basename(name)  # never outside of the directory
            if not path.is_file() or hash_file(path) != expected:
                raise UserError(f"'{path}' is missing or damaged: build the corpus anew, in another directory")

    def clear(self) -> None:
        """Remove what is needed only while a corpus is being built; others may be doing the same."""
        shutil.rmtree(self.blocks.directory, ignore_errors=True)
        remove_unfinished(self.path)
        for path in self.path.glob(".lock-*"):  # also of processes that were killed
            path.unlink(missing_ok=True)


def check_training_split(data: str, pairs: Sequence[Tuple[str, str]] = ()) -> None:
    """Refuse to train on a corpus of ours that is not finished, or not what it was when it was, or of other pairs.

    (fairseq takes the files of a pair for those of the other direction, too: it would learn to translate hypotheses.)
    """
    path = Path(data) / MANIFEST
    if not path.is_file() or '"recipe"' not in path.read_text(errors="replace"):
        return  # any other data directory
    corpus = CorpusDirectory(data)
    if not corpus.complete:
        raise UserError(f"the corpus in '{data}' is not complete: see fairseq-tg corpus status {data}")
    corpus.check_files("train.")
    manifest = corpus.manifest
    built = [str(pair) for pair in recorded_pairs(manifest["recipe"])] if manifest and pairs else []
    for pair in map("-".join, pairs):
        if pair not in built:
            raise UserError(f"the corpus in '{data}' is of {','.join(built)}, not of {pair}: build one of that pair")


def _check_manifest(manifest: Dict[str, Any]) -> None:
    """What is used of a manifest is what it should be: whoever wrote it, paths are made of some of it."""
    recipe = manifest["recipe"]
    pairs = recorded_pairs(recipe) if "languages" in recipe else []
    names = [name for pair in pairs for name in pair[:2]] + ([recipe["subset"]] if pairs else [])
    if not all(re.fullmatch(r"\w[\w.@+-]*", name) for name in names):
        raise ValueError(f"{names} are no names of languages and a split")
    if "pairs" in recipe and sum(recipe["pairs"].values()) != recipe["sentences"]:
        raise ValueError("the sentences of its pairs are not all there are")
    for name, least in (("sentences", 0), ("block_size", 1)):
        if not isinstance(recipe.get(name, least), int) or recipe.get(name, least) < least:
            raise ValueError(f"its {name} is {recipe[name]!r:.20}")
    if manifest["status"] not in ("building", "complete"):
        raise ValueError(f"its status is {manifest['status']!r:.20}")
    if manifest["status"] == "complete":
        needed = {"files": dict, "counts": dict, "means": dict, "skipped": list}
        if not all(isinstance(manifest.get(name), kind) for name, kind in needed.items()):
            raise ValueError("it is complete, and has no counts or no files")


def building(path: Any, manifest: Dict[str, Any]) -> Dict[str, Any]:
    """The recipe of a corpus that is being built; refuses one that does not say how its sentences are divided."""
    recipe: Dict[str, Any] = manifest["recipe"]
    for name in ("sentences", "block_size", "objective"):
        if name not in recipe:
            raise UserError(f"'{path}/{MANIFEST}' does not say its {name}: build the corpus anew, in another directory")
    return recipe


def _digest(manifest: Dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _is_ours(path: Path) -> bool:
    """Whether a file may be that of a build which is only just beginning."""
    return path.name.startswith((".", MANIFEST)) or path.name == "blocks"


def describe_difference(old: Dict[str, Any], new: Dict[str, Any]) -> str:
    """Name every setting that differs, with both values."""
    old, new = map(_flat, without_paths(old, new))
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return "; ".join(f"{name} was {_short(old.get(name))}, is {_short(new.get(name))}" for name in names)


def with_contents(options: Dict[str, Any]) -> Dict[str, Any]:
    """Options as settings: another content under the name of a file is another setting."""
    files = {name: Path(value) for name, value in options.items() if isinstance(value, str) and os.path.isfile(value)}
    return {**options, **{f"{CONTENT}{name}": hash_file(path) for name, path in files.items()}}


def without_paths(old: Dict[str, Any], new: Dict[str, Any]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Settings to compare: where the contents of a file are known of both, its place is not looked at."""
    both = {name for name in {*old} & {*new} if name.startswith(CONTENT)}
    ignored = {name.removeprefix(CONTENT) for name in both}
    ignored |= {name for name in {*old, *new} if name.startswith(CONTENT)} - both  # settings of before they were known
    old, new = ({name: value for name, value in each.items() if name not in ignored} for each in (old, new))
    for name in {*old} & {*new}:
        if isinstance(old[name], dict) and isinstance(new[name], dict):
            old[name], new[name] = without_paths(old[name], new[name])
    return old, new


def _flat(settings: Dict[str, Any]) -> Dict[str, Any]:
    """Settings with those inside of others named by all, as in search.lenpen."""
    flat: Dict[str, Any] = {}
    for name, value in settings.items():
        inside = {f"{name}.{inner}": v for inner, v in _flat(value).items()} if isinstance(value, dict) else {}
        flat.update(inside or {name: value})
    return flat


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def split_files(data: Path, split: str, languages: Sequence[str]) -> List[Path]:
    """The files of a split, which fairseq takes in either direction: train.de-en.* or train.en-de.*."""
    pairs = ("-".join(languages), "-".join(reversed(languages)))
    return [path for pair in pairs for path in sorted(data.glob(f"{split}.{pair}.*"))]


def validation_splits(data: Path, languages: Sequence[str]) -> List[str]:
    """valid, and valid1, valid2 and so on where fairseq-preprocess was given several: all of them are validated on."""
    further = (f"valid{number}" for number in itertools.count(1))
    return ["valid", *itertools.takewhile(lambda split: split_files(data, split, languages), further)]


def record_pairs(pairs: Sequence[Pair]) -> Dict[str, Any]:
    """What a recipe says of its language pairs: of one as of old, of several the sentences of each."""
    if len(pairs) == 1:
        return {"languages": list(pairs[0][:2]), "sentences": pairs[0].sentences}
    sentences = {str(pair): pair.sentences for pair in pairs}
    return {"languages": [list(pair[:2]) for pair in pairs], "sentences": sum(sentences.values()), "pairs": sentences}


def recorded_pairs(recipe: Dict[str, Any]) -> List[Pair]:
    """The language pairs of a recipe, in the order of their sentences."""
    languages = recipe["languages"] if "pairs" in recipe else [recipe["languages"]]
    counts = recipe["pairs"].values() if "pairs" in recipe else [recipe["sentences"]]
    return [Pair(source, target, count) for (source, target), count in zip(languages, counts)]


def check_data(data: Path, recipe: Dict[str, Any]) -> None:
    """Refuse data that is not what a corpus is built from."""
    if hash_data(data, recipe["subset"], recorded_pairs(recipe)) != recipe["data_hash"]:
        raise UserError(f"'{data}' is not the data that the corpus was built from: say where that is with --data")


def hash_data(data: Path, subset: str, pairs: Sequence[Sequence[Any]]) -> str:
    """A hash of what a corpus is built from: the dictionaries that are there, and both sides of a split.

    pairs: each begins with its two languages.
    """
    files: List[Path] = []
    for pair in pairs:
        files += [path for path in (data / f"dict.{lang}.txt" for lang in pair[:2]) if path.exists()]
        files += split_files(data, subset, pair[:2])
    parts = "".join(f"{path.name} {hash_file(path)}\n" for path in files)
    return hashlib.sha256(parts.encode()).hexdigest()


def hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()
