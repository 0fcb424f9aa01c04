"""A training loses nothing that it saved, and what is damaged is not used."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any, Dict

import pytest
import torch

from fairseq_tg.errors import UserError
from fairseq_tg.loading.checkpoints import load_checkpoint
from fairseq_tg.models.actor_files import export_actor, read_actor_file
from tests.conftest import FORK
from tests.faults.conftest import damage, die_at_rename, fill_disk, in_child

BASE = "transformer"
FLAGS = ("--max-epoch", "3", "--no-epoch-checkpoints")
LAST = "checkpoint_last.pt"


def weights(path: Path) -> Dict[str, torch.Tensor]:
    return load_checkpoint(str(path))["model"]


def same(ours: Dict[str, torch.Tensor], theirs: Dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.fixture(scope="module")
def undisturbed(workspace, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    workspace.train(BASE, out, *FLAGS)  # in this process: its children find the options composed
    return out


def finish(workspace, out: Path, undisturbed: Path) -> bool:
    """Whether the same command again ends with the weights of an undisturbed training, in every file."""
    good = in_child(workspace.train, BASE, out, *FLAGS) == 0
    good = good and all(same(weights(out / path.name), weights(path)) for path in undisturbed.glob("*.pt"))
    leftovers = [path.name for path in out.iterdir() if not path.name.startswith("checkpoint_")]
    shutil.rmtree(out)
    return good and not leftovers


def test_killed_at_every_rename(workspace, undisturbed, tmp_path, thorough, tries):
    """Between the writes of checkpoints and of their copies."""
    number, ended, out = 0, 1, tmp_path / "out"
    while ended:
        number += 1 if thorough else 3
        for after in (False, True):
            ended = in_child(workspace.train, BASE, out, *FLAGS, before=partial(die_at_rename, number, after))
            if not ended:
                break
            good = finish(workspace, out, undisturbed)
            tries.add("kills of a training survived", good)
            assert good, f"killed {'after' if after else 'before'} rename {number}"
    assert number >= 6


def die_while(function: str, number: int) -> None:
    """Be killed in the middle of the number-th file that a function writes: torch.save's, or a copy."""
    module: Any = torch if function == "save" else shutil
    write, seen = getattr(module, function), 0

    def half(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        seen += 1
        result = write(source, target, *args, **kwargs)
        if seen == number:
            os.truncate(target, os.path.getsize(target) // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(module, function, half)


@pytest.mark.parametrize("function", ["save", "copyfile"])
def test_killed_while_a_checkpoint_is_written(workspace, undisturbed, tmp_path, thorough, tries, function):
    for number in (1, 2, 3) if thorough else (2,):
        out = tmp_path / str(number)
        assert in_child(workspace.train, BASE, out, *FLAGS, before=partial(die_while, function, number)) < 0
        good = finish(workspace, out, undisturbed)
        tries.add("kills of a training survived", good)
        assert good


def test_killed_at_any_instant(workspace, undisturbed, tmp_path, thorough, tries):
    generator, kills = random.Random(3), 0
    while kills < (12 if thorough else 1):
        process = FORK.Process(target=workspace.train, args=(BASE, tmp_path / "out", *FLAGS))
        process.start()
        time.sleep(generator.uniform(0.2, 1.5))
        killed = process.is_alive()
        process.kill()
        process.join()
        (tmp_path / "out").mkdir(exist_ok=True)
        for path in (tmp_path / "out").glob("*.tmp*"):
            path.unlink()  # a file that was being written: it has another name, and nobody reads it
        good = finish(workspace, tmp_path / "out", undisturbed)
        if killed:
            tries.add("kills of a training survived", good)
            kills += 1
        assert good


def test_a_full_disk(workspace, undisturbed, tmp_path, thorough, tries):
    largest = (undisturbed / LAST).stat().st_size
    for size in [largest * i // 5 for i in range(1, 5)] if thorough else [largest // 2]:
        assert in_child(workspace.train, BASE, tmp_path / "out", "--max-epoch", "1", *FLAGS[2:]) == 0
        before = (tmp_path / "out" / LAST).read_bytes()
        status = in_child(workspace.train, BASE, tmp_path / "out", *FLAGS, before=partial(fill_disk, size))
        kept = (tmp_path / "out" / LAST).read_bytes() == before
        good = finish(workspace, tmp_path / "out", undisturbed)
        tries.add("full disks survived", status == 1 and kept and good)
        assert status == 1 and kept and good, size


def refused_or_harmless(read: Any, path: Path, original: Any) -> bool:
    """Whether a damaged file is refused by its name, or gives what it gave before."""
    try:
        return bool(same(read(path), original))
    except UserError as error:
        return path.name in str(error)


@pytest.mark.parametrize("kind", ["base", "tg", "actor"])
def test_damage(workspace, undisturbed, tmp_path, thorough, tries, kind):
    generator = random.Random(4)
    source, read = {"base": Path(workspace.bases[BASE]), "tg": undisturbed / LAST}.get(kind), weights
    if source is None:
        source, read = tmp_path / "whole.safetensors", lambda path: read_actor_file(str(path))[1]
        export_actor(str(undisturbed / LAST), str(source))
    original = read(source)
    for _ in range(150 if thorough else 25):
        path = tmp_path / f"damaged{source.suffix}"
        shutil.copyfile(source, path)
        what = damage(path, generator)
        good = refused_or_harmless(read, path, original)
        tries.add("damaged files detected", good)
        assert good, what


def test_a_training_does_not_go_on_from_a_damaged_checkpoint(workspace, undisturbed, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    content = bytearray((out / LAST).read_bytes())
    for place in range(len(content) // 2, len(content) // 2 + 100):  # more than what is between two records
        content[place] ^= 1
    (out / LAST).write_bytes(bytes(content))
    with pytest.raises(UserError, match=r"checkpoint_last.pt' is no fairseq checkpoint, or a damaged one"):
        workspace.train(BASE, out, "--max-epoch", "4")
    assert (out / LAST).read_bytes() == bytes(content)
