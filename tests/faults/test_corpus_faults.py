"""A corpus is never short, damaged or lost, whatever happens to the processes, the disk and the files."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path
from typing import Dict

import pytest

from fairseq_tg.corpus.directory import CorpusDirectory, check_training_split
from fairseq_tg.errors import UserError
from tests.conftest import FORK, run_tg
from tests.faults.conftest import damage, die_at_rename, fill_disk, in_child
from tests.integration.corpora import SLOW, build, files

KBEST = ("--kbest-jsonl",)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """One directory for all builds: its name is in the manifest."""
    return tmp_path_factory.mktemp("faults") / "corpus"


@pytest.fixture(scope="module")
def undisturbed(workspace, data, place) -> Dict[str, bytes]:
    build(workspace, data, place, *KBEST)  # in this process: its children find the options composed
    content = files(place)
    shutil.rmtree(place)
    return content


def finish(workspace, data, place, undisturbed, *flags: str) -> bool:
    """Whether the same command again ends with the files of an undisturbed build."""
    good = in_child(build, workspace, data, place, *flags) == 0 and files(place) == undisturbed
    leftovers = (place / "blocks").exists() or list(place.glob("*.tmp*"))
    shutil.rmtree(place)
    return good and not leftovers


def test_killed_at_any_instant(workspace, data, place, thorough, tries):
    """At random instants of a slow build, until it is complete; again and again, if thorough."""
    flags, generator, kills = ("--objective", SLOW, *KBEST), random.Random(5), 0
    shutil.rmtree(place, ignore_errors=True)
    assert in_child(build, workspace, data, place, *flags) == 0
    undisturbed = files(place)
    shutil.rmtree(place)
    while kills < (30 if thorough else 3):
        killed = 0
        while not CorpusDirectory(str(place)).complete and killed < 6:
            process = FORK.Process(target=build, args=(workspace, data, place, *flags))
            process.start()
            process.join(generator.uniform(0.1, 1.2))
            killed += process.is_alive()
            process.kill()
            process.join()
        good = finish(workspace, data, place, undisturbed, *flags)
        for _ in range(killed):
            tries.add("kills of a corpus build survived", good)
        assert good
        kills += killed


def test_killed_at_every_rename(workspace, data, place, undisturbed, thorough, tries):
    number, ended = 0, 1
    while ended:  # until a build has no more renames
        number += 1 if thorough else 9
        for after in (False, True):
            ended = in_child(build, workspace, data, place, *KBEST, before=partial(die_at_rename, number, after))
            if not ended:
                shutil.rmtree(place)
                break
            good = finish(workspace, data, place, undisturbed, *KBEST)
            tries.add("kills of a corpus build survived", good)
            assert good, f"killed {'after' if after else 'before'} rename {number}"
    assert number > 20


def test_a_full_disk(workspace, data, place, undisturbed, tmp_path, thorough, tries):
    largest = max(map(len, undisturbed.values()))
    sizes = [largest * i // 12 for i in range(12)] if thorough else [600, largest - 1]
    for size in sizes:
        end, errors = partial(fill_disk, size), tmp_path / "errors"
        status = in_child(build, workspace, data, place, *KBEST, before=end, errors=errors)
        assert errors.read_text().startswith("fairseq_tg: error: cannot ")
        unfinished = not CorpusDirectory(str(place)).complete and not list(place.rglob("*.tmp*"))
        good = finish(workspace, data, place, undisturbed, *KBEST)
        tries.add("full disks survived", status == 1 and unfinished and good)
        assert status == 1 and unfinished and good, size


def test_damage_to_a_finished_corpus(workspace, data, place, undisturbed, thorough, tries):
    generator = random.Random(1)
    place.mkdir()
    for name in undisturbed:
        for _ in range(6 if thorough else 1):
            for other, content in undisturbed.items():
                (place / other).write_bytes(content)
            what = damage(place / name, generator)
            with pytest.raises(UserError) as refused:
                run_tg("corpus", "status", place)
            named = name in str(refused.value)
            if name.startswith("train.") or name == "manifest.json":
                with pytest.raises(UserError, match=name):
                    check_training_split(str(place))
            named &= in_child(build, workspace, data, place, *KBEST) == 1
            tries.add("damaged files detected", named)
            assert named, what
    shutil.rmtree(place)


def test_damage_to_a_corpus_under_way(workspace, data, place, tmp_path, thorough, tries):
    """The same command either ends as it would have, or says which file it stumbles over."""
    generator = random.Random(2)
    flags = (*KBEST, "--kbest-shard", "0/2")
    assert in_child(build, workspace, data, place, *flags) == 0
    half = {path.relative_to(place): path.read_bytes() for path in place.rglob("[!.]*.*") if path.is_file()}
    assert in_child(build, workspace, data, place, *KBEST, "--kbest-shard", "1/2") == 0
    run_tg("corpus", "merge", place)
    merged = files(place)
    for name in sorted(half):
        for _ in range(4 if thorough else 1):
            shutil.rmtree(place)
            for other, content in half.items():
                (place / other).parent.mkdir(parents=True, exist_ok=True)
                (place / other).write_bytes(content)
            what = damage(place / name, generator)
            for path in tmp_path.iterdir():
                path.unlink()
            for shard in ("0/2", "1/2"):
                in_child(build, workspace, data, place, *KBEST, "--kbest-shard", shard, errors=tmp_path / shard[0])
            in_child(run_tg, "corpus", "merge", place, errors=tmp_path / "merge")
            said = "".join(path.read_text() for path in tmp_path.iterdir())
            good = files(place) == merged or name.stem.split(".")[0] in said
            tries.add("damaged files detected", good)
            assert good, (what, said)
    shutil.rmtree(place)
