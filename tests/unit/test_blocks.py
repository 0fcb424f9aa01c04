"""Blocks and the directory they are in."""

from __future__ import annotations

import json
import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_tg.corpus.blocks import BlockStore, Hypothesis, Sentence, Tally
from fairseq_tg.corpus.build import parse_shard
from fairseq_tg.corpus.directory import CorpusDirectory, describe_difference
from fairseq_tg.errors import UserError

numbers = st.floats(-1e6, 1e6, allow_nan=False)
hypotheses = st.builds(
    Hypothesis, st.lists(st.integers(0, 50000), max_size=5), st.text(max_size=20), numbers, numbers, st.none() | numbers
)
sentences = st.builds(
    Sentence,
    st.integers(0, 10**9),
    st.lists(hypotheses, max_size=3),
    st.just([]),
    st.none() | hypotheses,
    st.none() | st.text(max_size=10),
).filter(lambda sentence: sentence.hypotheses or sentence.skipped is not None)


@given(sentence=sentences)
def test_a_sentence_survives_its_line(sentence):
    line = sentence.to_json()
    assert Sentence.from_json(line) == sentence and "\n" not in line


@settings(max_examples=20)
@given(block=st.lists(sentences, max_size=4))
def test_a_block_survives_its_file(tmp_path_factory, block):
    store = BlockStore(tmp_path_factory.mktemp("blocks"))
    tally = store.write(3, block)
    assert store.read(3) == block and store.numbers() == [3] and 3 in store
    assert store.summary(3)["tally"] == tally
    content = store.content(3)
    store.write(3, block)
    assert store.content(3) == content  # the same sentences give the same bytes


def example(sentence_id: int) -> Sentence:
    return Sentence(
        sentence_id, [Hypothesis([4, 5], "a b", -0.5, -1.5, 40.0), Hypothesis([4], "a", -0.7, -1.4, 60.0)], [1]
    )


def test_tally():
    tally = Tally()
    for sentence in (example(0), example(1), Sentence(2, skipped="too long source: 9 tokens, 8 allowed")):
        tally.add(sentence)
    other = Tally()
    other.add(Sentence(3, skipped="too long source: 10 tokens, 8 allowed"))
    tally.add_tally(other)
    assert (tally.sentences, tally.pairs, tally.not_rank1, tally.skipped) == (2, 2, 2, {"too long source": 2})
    assert tally.means() == {"rank 1": 40.0, "chosen": 60.0, "oracle not rank 1": 1.0}


def test_damage_is_named(tmp_path):
    store = BlockStore(tmp_path)
    store.write(0, [example(0)])
    data, summary = tmp_path / "000000.jsonl.gz", tmp_path / "000000.json"
    whole, text = data.read_bytes(), summary.read_text()
    for damaged in (whole[:-1], whole[:20] + b"x" + whole[21:], b""):
        data.write_bytes(damaged)
        with pytest.raises(UserError, match=r"000000.jsonl.gz' is damaged: delete"):
            store.read(0)
    data.unlink()
    with pytest.raises(UserError, match=r"000000.jsonl.gz' is damaged"):
        store.read(0)
    data.write_bytes(whole)
    for damaged_text in ("", text[:-8], "[]", '{"sha256": 3}'):
        summary.write_text(damaged_text)
        with pytest.raises(UserError, match=r"000000.json' is damaged"):
            store.read(0)


@pytest.mark.parametrize(
    "change",
    [
        {"chosen": [99]},
        {"chosen": "0"},
        {"chosen": [-1]},
        {"id": "x"},
        {"skipped": 5},
        {"source": ["x"]},
        {"hypotheses": [{"tokens": ["a"], "text": "a", "score": 0.0, "log_prob": 0.0}]},
        {"hypotheses": [{"tokens": [-5], "text": "a", "score": 0.0, "log_prob": 0.0}]},
        {"hypotheses": [{"tokens": [5], "text": "a", "score": "x", "log_prob": 0.0}]},
        {"hypotheses": [{"tokens": [5], "text": "a", "score": True, "log_prob": 0.0}]},
        {"hypotheses": [{"tokens": [5], "text": "a", "score": 0.0, "log_prob": 0.0, "objective": math.nan}]},
        {"hypotheses": [{"tokens": [5], "text": "a", "score": 0.0, "log_prob": -math.inf}]},
        {"hypotheses": [{"tokens": [5], "text": "a", "score": 0.0, "log_prob": 0.0, "objective": 10**400}]},
        {"hypotheses": [{"tokens": [10**30], "text": "a", "score": 0.0, "log_prob": 0.0}]},
        {"hypotheses": [], "chosen": []},
        {"skipped": "nothing chosen"},
        {"chosen": [0, 0]},
        {"source": [2**31]},
        {"kept": "yes"},
    ],
)
def test_a_line_that_nobody_wrote_is_refused(change):
    """Whatever its file's hash says."""
    line = json.loads(Sentence(1, [Hypothesis([5], "a", -1.0, -2.0, 3.0)], [0]).to_json())
    with pytest.raises((ValueError, TypeError)):
        Sentence.from_json(json.dumps({**line, **change}))


def test_names_and_counts_that_are_none(tmp_path):
    store = BlockStore(tmp_path)
    store.write(0, [])
    (tmp_path / "1\u00b2.json").touch()
    assert store.numbers() == [0]
    summary = json.loads((tmp_path / "000000.json").read_text())
    for tally in ({**summary["tally"], "sentences": "x"}, {**summary["tally"], "skipped": []}, {}, []):
        (tmp_path / "000000.json").write_text(json.dumps({**summary, "tally": tally}))
        if tally == {}:
            assert store.summary(0)["tally"] == Tally()
            continue
        with pytest.raises(UserError, match="is damaged"):
            store.summary(0)


def test_a_block_without_summary_is_not_there(tmp_path):
    store = BlockStore(tmp_path)
    store.write(0, [example(0)])
    (tmp_path / "000000.json").unlink()
    assert 0 not in store and store.numbers() == []


@pytest.mark.parametrize("text, shard", [("0/1", (0, 1)), ("3/4", (3, 4)), (None, (0, 1))])
def test_shards(text, shard):
    assert parse_shard(text) == shard


@pytest.mark.parametrize("text", ["4/4", "1", "1/0", "-1/2", "a/b", "1/2/3", ""])
def test_shards_outside_their_range(text):
    with pytest.raises(UserError, match="give I/N with I from 0 to N-1"):
        parse_shard(text)


def test_a_slurm_array_is_a_set_of_shards(monkeypatch):
    def array(**values: int) -> None:
        for name, value in values.items():
            monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(value))

    array(ID=3, MIN=1, MAX=5, COUNT=5)
    assert parse_shard(None) == (2, 5)
    array(ID=4, MIN=0, MAX=8, COUNT=5, STEP=2)  # --array=0-8:2
    assert parse_shard(None) == (2, 5)
    assert parse_shard("0/3") == (0, 3)  # what is asked for goes first
    for part in (
        {"MIN": 3, "MAX": 3, "COUNT": 1},
        {"MIN": 0, "MAX": 5, "COUNT": 3, "STEP": 1},
    ):  # sent again; with gaps
        array(**part)
        with pytest.raises(UserError, match="is no whole set: give --kbest-shard"):
            parse_shard(None)


ORIGIN = {"command": "fairseq-generate", "data": "data-bin"}


def test_a_directory_is_for_one_recipe(tmp_path):
    CorpusDirectory(str(tmp_path / "x")).begin({"beam": 5, "objective": "sbleu"}, ORIGIN)
    again = CorpusDirectory(str(tmp_path / "x"))
    again.begin({"beam": 5, "objective": "sbleu"}, ORIGIN)
    assert not again.complete
    with pytest.raises(
        UserError, match=r"begun with other settings: beam was 5, is 7; objective was \"sbleu\", is \"ter\""
    ):
        again.begin({"beam": 7, "objective": "ter"}, ORIGIN)


def test_differences_name_what_is_inside():
    old, new = ({"search": {"lenpen": penalty, "min_len": 1}} for penalty in (1.0, 0.6))
    assert describe_difference(old, new) == "search.lenpen was 1.0, is 0.6"


def test_differences_are_short():
    assert len(describe_difference({"a": "x" * 500}, {"a": "y" * 500})) < 160


def test_foreign_and_unwritable_directories_are_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="is there and is no k-best corpus"):
        CorpusDirectory(str(tmp_path)).begin({}, ORIGIN)
    with pytest.raises(UserError, match="is there and is no k-best corpus"):
        CorpusDirectory(str(tmp_path / "thesis.tex")).begin({}, ORIGIN)
    with pytest.raises(UserError, match="cannot make"):
        CorpusDirectory("/proc/nowhere").begin({}, ORIGIN)
    assert sorted(os.listdir(tmp_path)) == ["thesis.tex"]


def test_a_lock_is_held_by_one_and_dies_with_it(tmp_path):
    first, second = CorpusDirectory(str(tmp_path)), CorpusDirectory(str(tmp_path))
    first.lock(0, 2)
    second.lock(1, 2)
    with pytest.raises(UserError, match="another process is building shard 0/2"):
        CorpusDirectory(str(tmp_path)).lock(0, 2)
    first.unlock()
    CorpusDirectory(str(tmp_path)).lock(0, 2)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 1, "status": "odd", "recipe": {}}'])
def test_a_damaged_manifest_is_named(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"manifest.json' is damaged"):
        CorpusDirectory(str(tmp_path)).manifest  # noqa: B018
