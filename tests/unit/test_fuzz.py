"""Readers given anything: what is not right is refused in one line, whatever it is."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any, Callable, Dict

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fairseq_tg.compiled.translator import Translator
from fairseq_tg.corpus.blocks import BlockStore, read_sentences
from fairseq_tg.corpus.directory import CorpusDirectory, check_training_split
from fairseq_tg.errors import UserError
from fairseq_tg.loading.checkpoints import fingerprint, load_checkpoint
from fairseq_tg.models.actor_files import METADATA_KEY, ActorMetadata, read_actor_file, write_actor_file

JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
#: How each kind of file is read; `data` is its path
READERS: Dict[str, Callable[[Path], Any]] = {
    "checkpoint": lambda path: load_checkpoint(str(path)),
    "actor file": lambda path: read_actor_file(str(path)),
    "compiled model": lambda path: Translator.load(str(path)),
    "k-best list": lambda path: list(read_sentences(path)),
}


def gives(read: Callable[[], Any], written: Any) -> bool:
    """Reads exactly what was written, or refuses it in one line; which of them."""
    try:
        found = read()
    except UserError as error:
        assert len(str(error).splitlines()) == 1
        return False
    assert found == written
    return True


@pytest.mark.parametrize("reader", READERS)
@given(
    start=st.sampled_from([b"", b"PK\x03\x04", b"\x1f\x8b\x08", b"\x80\x02", b"\x10\0\0\0\0\0\0\0{"]), rest=st.binary()
)
@QUICK
def test_bytes(tmp_path: Path, reader: str, start: bytes, rest: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(start + rest)
    if start + rest or reader != "k-best list":  # an empty file is an empty list
        with pytest.raises((UserError, ValueError)) as refused:
            READERS[reader](path)
        assert len(str(refused.value).splitlines()) == 1


@given(content=JSON | st.fixed_dictionaries({"recipe": JSON, "format": JSON, "status": JSON}))
@QUICK
def test_manifests(tmp_path: Path, content: Any) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(UserError):
        _ = CorpusDirectory(str(tmp_path)).manifest
    if isinstance(content, dict) and "recipe" in content:
        with pytest.raises(UserError):
            check_training_split(str(tmp_path))
    else:
        check_training_split(str(tmp_path))  # the manifest of something else, which is any data directory


#: What is checked of a recipe
CHECKED = {"languages": ["xx", "yy"], "subset": "train", "sentences": 3, "block_size": 1}
RECIPES = JSON | st.fixed_dictionaries({}, optional={name: JSON | st.just(good) for name, good in CHECKED.items()})


@given(
    recipe=RECIPES, status=st.sampled_from(["building", "complete"]), rest=st.dictionaries(st.text(max_size=5), JSON)
)
@example(recipe=CHECKED, status="building", rest={})
@example(recipe=CHECKED, status="complete", rest={"files": {}, "counts": {}, "means": {}, "skipped": []})
@QUICK
def test_manifests_with_a_hash(tmp_path: Path, recipe: Any, status: str, rest: Dict[str, Any]) -> None:
    manifest = {**rest, "recipe": recipe, "status": status, "format": 2}
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "sha256": digest}))
    read = gives(lambda: CorpusDirectory(str(tmp_path)).manifest, manifest)
    complete = {"files", "counts", "means", "skipped"} <= rest.keys()
    if not isinstance(recipe, dict) or (status == "complete" and not complete):
        assert not read
    elif all(recipe[name] == CHECKED[name] for name in recipe.keys() & CHECKED):
        # who names languages says of which split, and how many sentences
        assert read or ("languages" in recipe and not {"subset", "sentences"} <= recipe.keys())


@given(lines=st.lists(JSON, min_size=1, max_size=3))
@QUICK
def test_lists(tmp_path: Path, lines: Any) -> None:
    data = gzip.compress("\n".join(json.dumps(line) for line in lines).encode())
    (tmp_path / "000000.jsonl.gz").write_bytes(data)
    summary = {"sha256": hashlib.sha256(data).hexdigest(), "tally": {}}
    (tmp_path / "000000.json").write_text(json.dumps(summary))
    with pytest.raises(UserError):
        BlockStore(tmp_path).read(0)
    with pytest.raises(UserError):
        list(read_sentences(tmp_path / "000000.jsonl.gz"))


@given(summary=JSON)
@QUICK
def test_summaries(tmp_path: Path, summary: Any) -> None:
    (tmp_path / "000000.json").write_text(json.dumps(summary))
    with pytest.raises(UserError):
        BlockStore(tmp_path).read(0)


@given(
    shapes=st.dictionaries(st.from_regex(r"[a-z]{1,5}(\.[a-z]{1,5}){0,2}", fullmatch=True),
                           st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=4),
    half=st.booleans(),
    hidden=st.integers(0, 4),
)  # fmt: skip
@QUICK
def test_an_actor_file_holds_what_was_written(tmp_path: Path, shapes: Any, half: bool, hidden: int) -> None:
    tensors = {f"decoder.actor.{name}": torch.randn(shape) for name, shape in shapes.items()}
    if half:
        tensors = {name: tensor.half() for name, tensor in tensors.items()}
    hidden = min(hidden, max(size for shape in shapes.values() for size in shape))
    written = ActorMetadata("tg_lstm", "ff", hidden, 0, None, "base", fingerprint(tensors))
    write_actor_file(str(tmp_path / "a.safetensors"), written, tensors)
    metadata, found = read_actor_file(str(tmp_path / "a.safetensors"))
    assert metadata == written and found.keys() == tensors.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in tensors.items())


@given(content=JSON)
@QUICK
def test_metadata(tmp_path: Path, content: Any) -> None:
    from safetensors.torch import save_file

    save_file({"decoder.actor.x": torch.zeros(2)}, tmp_path / "a.safetensors", {METADATA_KEY: json.dumps(content)})
    with pytest.raises(UserError):
        read_actor_file(str(tmp_path / "a.safetensors"))
