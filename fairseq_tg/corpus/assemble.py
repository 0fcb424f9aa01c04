"""From blocks to a data directory that fairseq-train takes, with the manifest that vouches for it."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary, indexed_dataset

from fairseq_tg.corpus.blocks import BlockStore, Sentence, Tally
from fairseq_tg.corpus.directory import (
    KBEST,
    MANIFEST,
    CorpusDirectory,
    building,
    check_data,
    describe_difference,
    hash_file,
    recorded_pairs,
)
from fairseq_tg.corpus.pairs import Pair
from fairseq_tg.corpus.selection import get_selection
from fairseq_tg.errors import UserError
from fairseq_tg.files import replacing
from fairseq_tg.loading.splits import load_side

SPLIT = "train"
SUFFIXES = ("bin", "idx")


def assemble(directory: CorpusDirectory, sources: Sequence[CorpusDirectory] = ()) -> Dict[str, Any]:
    """Make `directory` complete from the blocks of all `sources` (its own, if none are given); returns the manifest."""
    try:
        with directory.completing():
            manifest = directory.manifest  # by now
            if manifest is not None and manifest["status"] == "complete":
                return manifest
            return _assemble(directory, sources)
    except OSError as error:
        raise UserError(f"cannot complete '{directory.path}': {error}; what was committed is kept") from None


def _assemble(directory: CorpusDirectory, sources: Sequence[CorpusDirectory]) -> Dict[str, Any]:
    manifest = directory.manifest
    if manifest is None:
        raise UserError(f"'{directory.path}' is no k-best corpus: it has no {MANIFEST}")
    recipe = manifest["recipe"]
    stores = _find_blocks(recipe, sources or [directory])
    data, subset, pairs = Path(manifest["data"]), recipe["subset"], recorded_pairs(recipe)
    check_data(data, recipe)
    files = _copy_other_splits(data, directory.path, pairs)
    tally, skipped, accounts = Tally(), [], {}
    sentences, first = _sentences(stores), 0
    for pair in pairs:
        of_pair = itertools.islice(sentences, pair.sentences)
        own, left_out = _write_pair(directory.path, data, subset, pair, first, of_pair, recipe["selection"])
        files += [f"{name}.{suffix}" for name in _names(pair).values() for suffix in SUFFIXES]
        tally.add_tally(own)
        skipped += left_out
        counts = {"source_sentences": pair.sentences, **asdict(own)}
        accounts[str(pair)] = {"first_id": first, "counts": counts, "means": own.means()}
        first += pair.sentences
    next(sentences, None)  # for its complaint, should there be more

    if recipe["keep_kbest"]:
        with replacing(str(directory.path / KBEST)) as temporary, open(temporary, "wb") as file:
            for number, store in enumerate(stores):
                file.write(store.content(number))  # gzip files in a row are a gzip file
        files.append(KBEST)
    counts = {"source_sentences": recipe["sentences"], **asdict(tally)}
    hashes = {name: hash_file(directory.path / name) for name in sorted(files)}
    full = {**manifest, "counts": counts, "means": tally.means(), "skipped": skipped, "files": hashes}
    if len(pairs) > 1:
        full["pairs"] = accounts
    directory.write_manifest(full, status="complete")
    directory.clear()
    return full


def _names(pair: Pair) -> Dict[str, str]:
    return {lang: f"{SPLIT}.{pair}.{lang}" for lang in pair[:2]}


def _write_pair(
    out: Path, data: Path, subset: str, pair: Pair, first: int, sentences: Iterator[Sentence], selection: str
) -> Tuple[Tally, List[Dict[str, Any]]]:
    """Write a language pair's training split; returns what it has, and what it has not.

    Args:
        first: the id of the pair's first sentence.
    """
    source_lang, target_lang = pair[:2]
    prefix = data / f"{subset}.{source_lang}-{target_lang}"
    if not indexed_dataset.dataset_exists(f"{prefix}.{source_lang}", None):
        prefix = data / f"{subset}.{target_lang}-{source_lang}"
    originals = {lang: load_side(f"{prefix}.{lang}") for lang in (source_lang, target_lang)}
    adds_gold, eos = get_selection(selection).adds_gold, Dictionary().eos()
    tally, skipped = Tally(), []
    sizes = {lang: _vocabulary(data, lang) for lang in (source_lang, target_lang)}
    with _Writers(out, _names(pair), sizes) as writers:
        for sentence in sentences:
            tally.add(sentence)
            if sentence.skipped is not None:
                skipped.append({"id": sentence.id, "reason": sentence.skipped})
                continue
            _check_tokens(sentence, sizes[source_lang], sizes[target_lang])
            if not sentence.chosen and not adds_gold:
                raise UserError(
                    f"sentence {sentence.id} has no translation and no reason for that: build its block anew"
                )
            if sentence.source is None:
                source = originals[source_lang][sentence.id - first]
            else:
                source = torch.tensor([*sentence.source, eos])
            targets = [torch.tensor([*sentence.hypotheses[rank].tokens, eos]) for rank in sentence.chosen]
            if adds_gold:
                targets.append(originals[target_lang][sentence.id - first])
                tally.pairs += 1
            for target in targets:
                writers.add({source_lang: source, target_lang: target})
    return tally, skipped


def _check_tokens(sentence: Sentence, sources: Optional[int], targets: Optional[int]) -> None:
    """Refuse tokens that dictionaries of these sizes have not."""
    chosen = [token for rank in sentence.chosen for token in sentence.hypotheses[rank].tokens]
    for tokens, size in ((sentence.source or [], sources), (chosen, targets)):
        if size is not None and max(tokens, default=0) >= size:
            raise UserError(f"sentence {sentence.id} has tokens that the dictionary has not: build its block anew")


def _vocabulary(data: Path, lang: str) -> Optional[int]:
    """The size of a language's dictionary; None where it is not with the data (--fixed-dictionary)."""
    path = data / f"dict.{lang}.txt"
    return len(Dictionary.load(str(path))) if path.exists() else None


def merge(paths: Sequence[str], out: str, data: Optional[str] = None) -> Dict[str, Any]:
    """Make one corpus of the shards in several directories, or of those in one.

    Args:
        paths: the directories.
        out: the directory of the corpus; may be one of them.
        data: the data directory, if it is not where it was for the first shard.
    """
    shards = [CorpusDirectory(path) for path in paths]
    manifests: List[Dict[str, Any]] = []
    for shard in shards:
        manifest = shard.manifest
        if manifest is None:
            raise UserError(f"'{shard.path}' is no k-best corpus: it has no {MANIFEST}")
        if manifest["status"] == "complete":
            raise UserError(f"'{shard.path}' is complete already: give directories of shards")
        building(shard.path, manifest)
        manifests.append(manifest)
        difference = describe_difference(manifests[0]["recipe"], manifest["recipe"])
        if difference:
            raise UserError(f"'{shard.path}' and '{shards[0].path}' are of different builds: {difference}")
    told = ("command", "data", "bases")
    origin: Dict[str, Any] = {name: manifests[0][name] for name in told if name in manifests[0]}
    if data is not None:
        origin["data"] = os.path.abspath(data)
    if not os.path.isdir(origin["data"]):
        raise UserError(f"the data directory '{origin['data']}' is not there: say where it is with --data")
    directory = CorpusDirectory(out)
    directory.begin(manifests[0]["recipe"], origin)
    if directory.complete:
        raise UserError(f"'{out}' is complete already: give another --out")
    return assemble(directory, shards)


def _find_blocks(recipe: Dict[str, Any], sources: Sequence[CorpusDirectory]) -> List[BlockStore]:
    """For each block, the store that has it; refuses missing and double ones."""
    found: Dict[int, List[BlockStore]] = {}
    for source in sources:
        for number in source.blocks.numbers():
            found.setdefault(number, []).append(source.blocks)
    size = recipe["block_size"]
    count = -(-recipe["sentences"] // size)
    for number in range(count):
        ids = f"source ids {number * size} to {min((number + 1) * size, recipe['sentences']) - 1}"
        if number not in found:
            raise UserError(f"{ids} are missing (block {number} of {count}): run the shard that they belong to")
        if len(found[number]) > 1:
            places = " and ".join(str(store.directory) for store in found[number])
            raise UserError(f"{ids} are there more than once: in {places}; leave one of them out")
    return [found[number][0] for number in range(count)]


def _sentences(stores: Sequence[BlockStore]) -> Iterator[Sentence]:
    """All sentences in the order of their ids; refuses any that is missing or double."""
    expected = 0
    for number, store in enumerate(stores):
        for sentence in store.read(number):
            if sentence.id != expected:
                raise UserError(f"block {number} in '{store.directory}' has source id {sentence.id}, not {expected}")
            expected += 1
            yield sentence


def _copy_other_splits(data: Path, out: Path, pairs: Sequence[Pair]) -> List[str]:
    """Copy dictionaries and all splits but the training one, so that the corpus is a data directory of its own."""
    languages = {lang for pair in pairs for lang in pair[:2]}
    dictionaries = {f"dict.{lang}.txt" for lang in languages}
    stems = {f".{stem}." for pair in pairs for stem in (f"{pair}", f"{pair.target}-{pair.source}")}
    copied = []
    for path in sorted(data.iterdir()):
        of_pair = any(stem in path.name for stem in stems)
        if (of_pair and not re.fullmatch(rf"{SPLIT}\d*", path.name.split(".")[0])) or path.name in dictionaries:
            with replacing(str(out / path.name)) as temporary:
                shutil.copyfile(path, temporary)
            copied.append(path.name)
    return copied


class _Writers:
    """Writes both sides of a split in fairseq's mmap format, under temporary names until all is written."""

    def __init__(self, directory: Path, names: Dict[str, str], vocabularies: Dict[str, Optional[int]]) -> None:
        self.paths = {lang: directory / name for lang, name in names.items()}
        self.end = f"tmp{uuid.uuid4().hex}"  # a name that nobody can have put something at
        self.builders = {
            lang: indexed_dataset.make_builder(f"{path}.bin.{self.end}", impl="mmap", vocab_size=vocabularies[lang])
            for lang, path in self.paths.items()
        }

    def __enter__(self) -> _Writers:
        return self

    def add(self, tensors: Dict[str, torch.Tensor]) -> None:
        for lang, tensor in tensors.items():
            self.builders[lang].add_item(tensor)

    def __exit__(self, error: Any, *rest: Any) -> None:
        temporaries = {
            f"{path}.{suffix}": f"{path}.{suffix}.{self.end}" for path in self.paths.values() for suffix in SUFFIXES
        }
        try:
            if error is None:
                for lang, path in self.paths.items():
                    self.builders[lang].finalize(f"{path}.idx.{self.end}")
                for final, temporary in temporaries.items():
                    with replacing(final) as name:
                        os.rename(temporary, name)
        finally:
            for temporary in temporaries.values():
                if os.path.exists(temporary):
                    os.remove(temporary)
