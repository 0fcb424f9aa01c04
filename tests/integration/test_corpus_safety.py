"""Corpora that nothing gets lost of: interrupted, sharded, merged, damaged."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import List

import pytest

from fairseq_tg.corpus.directory import CorpusDirectory
from fairseq_tg.errors import UserError
from fairseq_tg.launch import processes
from tests.conftest import hypotheses, run_process, run_tg
from tests.integration.corpora import BASE, build, exit_code, files, flags, lists, pairs, without_command


def test_the_same_command_again_finds_it_complete(workspace, data, whole):
    before = files(whole)
    with pytest.raises(SystemExit) as end:
        build(workspace, data, whole, "--kbest-jsonl")
    assert end.value.code == 0 and files(whole) == before
    assert "complete, 34 pairs" in run_tg("corpus", "status", whole)


def test_another_command_in_the_same_directory_is_refused(workspace, data, whole):
    with pytest.raises(UserError, match='begun with other settings: objective was "sbleu", is "chrf"; signature was'):
        build(workspace, data, whole, "--kbest-jsonl", "--objective", "chrf")


@pytest.mark.parametrize("shards", [2, 3, 9])
def test_shards_merged_are_one_build(workspace, data, whole, tmp_path, shards):
    """In directories of their own, as on machines of their own; 9 are more than there are blocks."""
    for shard in range(shards):
        try:
            build(workspace, data, tmp_path / str(shard), "--kbest-jsonl", "--kbest-shard", f"{shard}/{shards}")
        except SystemExit as end:
            assert end.code == 0  # a shard without any block
    directories = [tmp_path / str(shard) for shard in range(shards)]
    run_tg("corpus", "merge", *directories, "--out", tmp_path / "out")
    ours, theirs = files(tmp_path / "out"), files(whole)
    for content in (ours, theirs):
        content["manifest.json"] = without_command(content["manifest.json"])
    assert ours == theirs


def test_missing_and_double_shards_are_refused(workspace, data, tmp_path):
    for name, shard in (("a", "0/2"), ("b", "0/2"), ("c", "1/2")):
        build(workspace, data, tmp_path / name, "--kbest-shard", shard)
    a, b, c = (str(tmp_path / name) for name in "abc")
    for directories, message in (
        ([a], "source ids 6 to 11 are missing"),
        ([a, b, c], "source ids 0 to 5 are there more than once"),
        ([a, data], "is no k-best corpus"),
    ):
        with pytest.raises(UserError, match=message):
            run_tg("corpus", "merge", *directories, "--out", tmp_path / "out")
    assert not list(tmp_path.glob("out/train*"))


def test_fairseqs_own_shard_flags_are_honoured(workspace, data, whole, tmp_path):
    for shard in (0, 1):
        build(workspace, data, tmp_path / "x", "--num-shards", "2", "--shard-id", shard)
    run_tg("corpus", "merge", tmp_path / "x")
    assert pairs(tmp_path / "x") == pairs(whole)
    half = ("--batch-size", "5", "--num-shards", "2", "--shard-id")
    halves = [hypotheses(workspace.generate(workspace.bases[BASE], *half, i)) for i in "01"]
    assert len(halves[0]) + len(halves[1]) == len({**halves[0], **halves[1]}) == 30
    with pytest.raises(UserError, match="not both"):
        build(workspace, data, tmp_path / "y", "--num-shards", "2", "--shard-id", "1", "--kbest-shard", "0/2")


def test_status_of_a_build_under_way(workspace, data, tmp_path):
    build(workspace, data, tmp_path / "x", "--kbest-shard", "0/2")
    shown = run_tg("corpus", "status", tmp_path / "x")
    assert "building, 19 of 37 source sentences done (51.4%)" in shown
    assert "skipped: 1 empty source" in shown and "at rank 1" in shown and "begun with: fairseq-generate" in shown
    with pytest.raises(UserError, match="is no k-best corpus"):
        run_tg("corpus", "status", tmp_path)


def test_damage_is_named(workspace, data, whole, tmp_path):
    out = tmp_path / "x"
    build(workspace, data, out)
    (out / "train.xx-yy.yy.bin").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"train.xx-yy.yy.bin' is missing or damaged"):
        run_tg("corpus", "status", out)
    build(workspace, data, tmp_path / "y", "--kbest-shard", "0/2")
    block = tmp_path / "y" / "blocks" / "000002.jsonl.gz"
    block.write_bytes(block.read_bytes()[:-3])
    assert exit_code(build, workspace, data, tmp_path / "y", "--kbest-shard", "0/2") == 1
    with pytest.raises(UserError, match=r"000002.jsonl.gz' is damaged: delete"):
        CorpusDirectory(str(tmp_path / "y")).blocks.read(2)
    (tmp_path / "y" / "blocks" / "000002.json").unlink()
    build(workspace, data, tmp_path / "y", "--kbest-shard", "0/2")


def test_build_launches_shards_and_merges(workspace, data, whole, tmp_path):
    command = flags(workspace, data, tmp_path / "x", "--kbest-jsonl")
    plugin = command.index("--user-dir")
    del command[plugin : plugin + 4]  # it knows its own plugin and task
    done = run_process("fairseq-tg", "corpus", "build", "--shards", "2", "--", *command)
    assert done.returncode == 0, done.stderr
    assert "complete, 34 pairs" in done.stdout
    assert re.search(r"37/37 .*rank 1 \d+\.\d\d, chosen \d+\.\d\d\]", done.stderr)  # over both
    assert pairs(tmp_path / "x") == pairs(whole) and lists(tmp_path / "x") == lists(whole)
    command = flags(workspace, data, tmp_path / "y", "--beam", "999")
    with pytest.raises(UserError, match=" of 2 failed with status 1: --beam 999 is too large"):
        run_tg("corpus", "build", "--shards", "2", "--", *command)


def test_a_finished_corpus_is_said_to_be_finished_before_any_process_starts(workspace, data, whole, monkeypatch):
    command = ["corpus", "build", "--shards", "4", "--", *flags(workspace, data, whole, "--kbest-jsonl")]
    before = files(whole)
    monkeypatch.setattr(processes, "Popen", None)
    assert "complete, 34 pairs" in run_tg(*command) and files(whole) == before
    for other, message in (("--objective=chrf", 'objective was "sbleu", is "chrf"'), ("--beam=999", "is too large")):
        with pytest.raises(UserError, match=message):
            run_tg(*command, other)


def test_many_may_clear_a_finished_corpus_at_once(tmp_path, monkeypatch):
    """At the worst time: all of them have found the same files before any has removed one."""
    together, glob = threading.Barrier(4, timeout=20), Path.glob

    def found_by_all(path: Path, pattern: str) -> List[Path]:
        found = list(glob(path, pattern))
        together.wait()
        return found

    for name in (".lock-0-of-1", "manifest.json.tmp12"):
        (tmp_path / name).touch()
    monkeypatch.setattr(Path, "glob", found_by_all)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: CorpusDirectory(str(tmp_path)).clear(), range(4)))
    assert not list(tmp_path.iterdir())


def test_a_merge_needs_the_data_it_was_built_from(workspace, data, tmp_path):
    build(workspace, data, tmp_path / "x", "--kbest-shard", "0/1")
    for shard in ("0/2", "1/2"):
        build(workspace, data, tmp_path / "y", "--kbest-shard", shard)
    with pytest.raises(UserError, match="is not the data that the corpus was built from"):
        run_tg("corpus", "merge", tmp_path / "y", "--out", tmp_path / "z", "--data", workspace.data)
    run_tg("corpus", "merge", tmp_path / "y", "--out", tmp_path / "w", "--data", data)
    assert pairs(tmp_path / "w") == pairs(tmp_path / "x")
    with pytest.raises(UserError, match="is not the data that the corpus was built from"):
        run_tg("corpus", "merge", tmp_path / "y", "--data", workspace.data)  # which is not noted
    run_tg("corpus", "merge", tmp_path / "y")
    assert pairs(tmp_path / "y") == pairs(tmp_path / "x")


@pytest.mark.parametrize("shards", [1, 2])
def test_data_that_was_moved_meanwhile(workspace, data, whole, tmp_path, shards):
    """The build goes on with the data at its new place, and is completed from there."""
    moved, out = tmp_path / "moved", tmp_path / "out"
    shutil.copytree(data, tmp_path / "old")
    build(workspace, str(tmp_path / "old"), out, "--kbest-jsonl", "--kbest-shard", "0/2")
    (tmp_path / "old").rename(moved)
    if shards == 1:
        build(workspace, str(moved), out, "--kbest-jsonl")
    else:
        with pytest.raises(UserError, match=r"the data directory '.*old' is not there: say where it is with --data"):
            run_tg("corpus", "merge", out)
        build(workspace, str(moved), out, "--kbest-jsonl", "--kbest-shard", "1/2")
        run_tg("corpus", "merge", out)
    assert pairs(out) == pairs(whole) and CorpusDirectory(str(out)).manifest["data"] == str(moved)


def test_a_merge_in_place_takes_the_data_it_is_told(workspace, data, tmp_path):
    shutil.copytree(data, tmp_path / "old")
    for shard in ("0/2", "1/2"):
        build(workspace, str(tmp_path / "old"), tmp_path / "out", "--kbest-shard", shard)
    shutil.rmtree(tmp_path / "old")
    run_tg("corpus", "merge", tmp_path / "out", "--data", data)
    assert CorpusDirectory(str(tmp_path / "out")).complete


def test_names_of_files_may_be_no_text(workspace, data, tmp_path):
    """A name is bytes, which Python keeps as halves of characters that no file can have as text."""
    strange, out = tmp_path / "d\udcff\n", tmp_path / "o\udcff x"
    strange.symlink_to(data)
    printed, manifest = build(workspace, str(strange), out)
    assert manifest["status"] == "complete" and manifest["data"].endswith("d\udcff\n")
    assert "complete, 34 pairs" in printed and (printed + run_tg("corpus", "status", out)).isascii()


SLOW_SEARCH = """
import time
from fairseq_tg.compiled.engine import Engine

search = Engine.search


def slowly(*args, **options):
    print("a batch", flush=True)
    time.sleep(0.5)
    return search(*args, **options)


Engine.search = slowly


def objective(hypothesis, reference):
    raise {error}
"""


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "ValueError('boom')"])
def test_a_build_that_ends_does_not_search_on(workspace, tmp_path, error):
    """The engine is two blocks ahead, which may be minutes: they are nobody's any more."""
    (tmp_path / "slow_search.py").write_text(SLOW_SEARCH.format(error=error))
    more = ("--beam", "15", "--kbest-block", "500", "--objective", "slow_search:objective")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = run_process(
        "fairseq-generate", *flags(workspace, workspace.data, tmp_path / "x", *more), env={"PYTHONPATH": path}
    )
    assert done.returncode != 0 and error.partition("(")[0] in done.stderr
    assert 1 <= done.stdout.count("a batch") <= 4  # of 11
