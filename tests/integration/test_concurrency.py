"""Several processes at once: one writes, the others are told so; any number reads."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fairseq_tg.corpus.assemble import assemble, merge
from fairseq_tg.corpus.directory import CorpusDirectory, check_training_split
from fairseq_tg.errors import UserError
from fairseq_tg.launch.shards import build_locally
from fairseq_tg.loading.checkpoints import fingerprint
from fairseq_tg.locks import take_lock
from fairseq_tg.models.actor_files import export_actor, read_actor_file
from fairseq_tg.recipe.stages import Stage
from tests.conftest import FORK
from tests.integration.corpora import SLOW, build, files, flags, pairs


def wait_for(condition: Any) -> None:
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("nothing happened")


def test_a_second_build_in_one_directory_is_refused_while_the_first_lives(workspace, data, tmp_path, monkeypatch):
    out, flags = tmp_path / "corpus", ("--objective", SLOW)
    monkeypatch.setenv("SLOW_OBJECTIVE", "1")
    first = FORK.Process(target=build, args=(workspace, data, out, *flags))
    first.start()
    monkeypatch.delenv("SLOW_OBJECTIVE")
    wait_for(lambda: CorpusDirectory(str(out)).manifest is not None)
    with pytest.raises(UserError, match=r"another process is building shard 0/1 in .*: wait for it, or give another"):
        build(workspace, data, out, *flags)
    assert first.is_alive()
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    build(workspace, data, out, *flags)  # a dead process holds no lock
    assert CorpusDirectory(str(out)).complete


def test_a_second_launcher_leaves_the_first_ones_logs_alone(workspace, data, tmp_path):
    """It would tell of the other's last words, and not that there is another."""
    logs = tmp_path / "corpus.logs"
    logs.mkdir()
    (logs / "shard-0-of-2.log").write_text("the first one's")
    with (
        take_lock(logs / ".lock", "held"),
        pytest.raises(UserError, match=r"another process is building '.*corpus': wait for it"),
    ):
        build_locally(flags(workspace, data, tmp_path / "corpus"), str(tmp_path / "corpus"), 2)
    assert (logs / "shard-0-of-2.log").read_text() == "the first one's"


def test_builds_in_other_numbers_of_shards_are_not_at_work_in_one_directory(tmp_path):
    """One that ends would take the other's blocks away."""
    three, another, two = (CorpusDirectory(str(tmp_path)) for _ in range(3))
    three.lock(0, 3)
    another.lock(2, 3)
    for shard, shards in ((0, 2), (0, 1), (0, 30)):
        with pytest.raises(UserError, match=r"another process is building shard 0/3 in .*: wait for it, or give anot"):
            two.lock(shard, shards)
    three.unlock()
    another.unlock()
    two.lock(0, 2)  # what others have left is not held
    with pytest.raises(UserError, match=r"another process is building shard 0/2 in "):
        three.lock(1, 3)
    two.unlock()
    three.lock(1, 3)


def test_a_corpus_is_completed_by_one_process_at_a_time(workspace, data, tmp_path):
    out = tmp_path / "corpus"
    for shard in ("0/2", "1/2"):
        build(workspace, data, out, "--kbest-shard", shard)
    with (
        take_lock(out / ".lock-complete", "held"),
        pytest.raises(UserError, match=r"another process is completing .*corpus': wait for it"),
    ):
        merge([str(out)], str(out))
    manifest = merge([str(out)], str(out))
    assert assemble(CorpusDirectory(str(out)))["files"] == manifest["files"]  # whoever waited finds it done


def hold(directory: Path, ready: Any, done: Any) -> None:
    with Stage(directory, {}).doing([]):
        ready.set()
        done.wait(60)


def test_a_second_run_of_a_stage_is_refused_while_the_first_lives(tmp_path):
    ready, done = FORK.Event(), FORK.Event()
    first = FORK.Process(target=hold, args=(tmp_path, ready, done))
    first.start()
    assert ready.wait(60)
    with pytest.raises(UserError, match="another process is at work in"), Stage(tmp_path, {}).doing([]):
        raise AssertionError("both are at work")
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    with Stage(tmp_path, {}).doing(["made"]):
        (tmp_path / "made").touch()
    assert Stage(tmp_path, {}).is_done()


def read_both(corpus: str, actor_file: str) -> Any:
    check_training_split(corpus)
    return pairs(corpus), fingerprint(read_actor_file(actor_file)[1])


def test_many_readers(workspace, whole, tmp_path):
    actor_file = str(tmp_path / "actor.safetensors")
    export_actor(workspace.train("lstm", tmp_path / "tg", "--max-update", "1"), actor_file)
    before = files(whole)
    with ProcessPoolExecutor(4, mp_context=FORK) as pool:
        found = list(pool.map(read_both, [str(whole)] * 12, [actor_file] * 12))
    assert all(answer == found[0] for answer in found) and files(whole) == before
