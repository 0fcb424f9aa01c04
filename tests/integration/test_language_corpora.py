"""Corpora of models of many languages: of several pairs, and without their symbols."""

from __future__ import annotations

import json

import pytest
import torch
from fairseq.data import Dictionary, data_utils

from fairseq_tg.corpus.drawing import Candidates
from fairseq_tg.errors import UserError
from fairseq_tg.loading.checkpoints import fingerprint, load_checkpoint, split_tensors
from tests.conftest import run_tg
from tests.integration.corpora import lists
from tests.multilingual import PAIRS


def test_a_corpus_of_several_pairs(world, tmp_path):
    """Built in one go, accounted for by pair, the same as pair by pair; without a symbol of a language anywhere."""
    world.build("m2m", tmp_path / "all")
    manifest = json.loads((tmp_path / "all" / "manifest.json").read_text())
    assert list(manifest["pairs"]) == list(PAIRS)
    assert [account["first_id"] for account in manifest["pairs"].values()] == [0, 120, 240, 360]
    for account in manifest["pairs"].values():
        assert account["counts"]["pairs"] == account["counts"]["source_sentences"] == 120
    found = lists(tmp_path / "all")
    assert [sentence["id"] for sentence in found] == list(range(480))
    words = Dictionary.load(str(world.directory / "dict.txt"))
    for sentence in found:
        for hypothesis in sentence["hypotheses"]:
            assert all(4 <= token < len(words) for token in hypothesis["tokens"])
            assert hypothesis["text"] == words.string(torch.tensor(hypothesis["tokens"]))
    for number, pair in enumerate(PAIRS):
        target = pair.split("-")[1]
        chosen = data_utils.load_indexed_dataset(str(tmp_path / "all" / f"train.{pair}.{target}"))
        best = found[120 * number]["hypotheses"][found[120 * number]["chosen"][0]]["tokens"]
        assert chosen[0].tolist() == [*best, words.eos()] and len(chosen) == 120
        assert words.string(chosen[0])[:1] in ("", {"en": "E", "aa": "a", "bb": "b"}[target])
    world.build("m2m", tmp_path / "one", "-s", "en", "-t", "bb", "--kbest-engine", "fairseq")
    one = lists(tmp_path / "one")
    assert [[h["tokens"] for h in s["hypotheses"]] for s in one] == [
        [h["tokens"] for h in s["hypotheses"]] for s in found[360:]
    ]
    for index in range(2):
        world.build("m2m", tmp_path / "shards", "--kbest-shard", f"{index}/2")
    run_tg("corpus", "merge", tmp_path / "shards")
    for path in (tmp_path / "all").glob("train.*"):
        assert path.read_bytes() == (tmp_path / "shards" / path.name).read_bytes()

    # and it is data to train on, which leaves the base as it was
    tg = world.train("m2m", tmp_path / "actor", data=tmp_path / "all")
    state = load_checkpoint(tg)
    assert fingerprint(split_tensors(state["model"])[0]) == fingerprint(load_checkpoint(world.base("m2m"))["model"])


@pytest.mark.parametrize("kind", ["replaced", "mbart25"])
def test_other_symbols_stay_out_of_a_corpus(world, kind, tmp_path):
    # of several pairs, those that begin a translation differ within a block
    pair, sentences = (["-s", "aa", "-t", "en"], 120) if kind == "mbart25" else (["--kbest-block", "200"], 480)
    world.build(kind, tmp_path / "corpus", *pair)
    assert json.loads((tmp_path / "corpus" / "manifest.json").read_text())["recipe"]["engine"] == "native"
    words = Dictionary.load(str(world.directory / "dict.txt"))
    found = lists(tmp_path / "corpus")
    assert len(found) == sentences
    for sentence in found:
        assert all(4 <= token < len(words) for h in sentence["hypotheses"] for token in h["tokens"])
    world.build(kind, tmp_path / "fairseq", *pair, "--kbest-engine", "fairseq")
    for own, theirs in zip(found, lists(tmp_path / "fairseq")):
        assert len(own["hypotheses"]) == len(theirs["hypotheses"])
        for a, b in zip(own["hypotheses"], theirs["hypotheses"]):
            assert (a["tokens"], a["score"]) == (b["tokens"], pytest.approx(b["score"], abs=1e-4))


@pytest.mark.parametrize("kind", ["m2m", "bos"])
def test_lists_are_trained_on_with_their_symbols(world, kind, tmp_path):
    """The best hypothesis of a list is in a batch as the same target is in that of any training."""
    pair, corpus = ["-s", "aa", "-t", "en"], tmp_path / "corpus"
    world.build(kind, corpus, *pair)
    task = world.task(kind)
    task.cfg.data = task.args.data = str(corpus)
    task.load_dataset("train")
    task.cfg.kbest_lists, task._draw = str(corpus), Candidates(2)
    ordinary = task.datasets["train"]
    task.load_dataset("train")
    for index in range(5):
        found = task.datasets["train"].collater([task.datasets["train"][index]])
        expected = ordinary.collater([ordinary[index]])
        length = expected["target"].size(1)
        assert torch.equal(found["net_input"]["src_tokens"], expected["net_input"]["src_tokens"])
        assert torch.equal(found["target"][:1, :length], expected["target"])
        given = found["net_input"]["prev_output_tokens"]
        assert torch.equal(given[:1, :length], expected["net_input"]["prev_output_tokens"])
    flags = ["--lang-pairs", "aa-en"] if kind == "m2m" else []
    risk = ["--criterion", "actor_risk", "--kbest-lists", corpus, "--candidates", "2", "--max-update", "2"]
    assert world.train(kind, tmp_path / "tg", *flags, *risk, data=corpus)
    refused = ["--criterion", "actor_preference", "--kbest-lists", corpus]
    with pytest.raises(UserError, match="actor_preference does not know this task's language symbols"):
        world.train(kind, tmp_path / "refused", *flags, *refused, data=corpus)


def test_a_corpus_is_for_the_pairs_it_was_built_for(world, tmp_path):
    world.build("m2m", tmp_path / "corpus", "--lang-pairs", "aa-en,en-bb")
    assert world.train("m2m", tmp_path / "some", "--lang-pairs", "en-bb", data=tmp_path / "corpus")
    with pytest.raises(UserError, match="is of aa-en,en-bb, not of en-aa: build one of that pair"):
        world.train("m2m", tmp_path / "other", "--lang-pairs", "aa-en,en-aa", data=tmp_path / "corpus")
    world.build("mbart25", tmp_path / "one", "-s", "aa", "-t", "en")
    with pytest.raises(UserError, match="was trained for aa-en, and here it is en-aa"):
        world.train("mbart25", tmp_path / "other", "-s", "en", "-t", "aa", data=tmp_path / "one")
    assert not list((tmp_path / "other").iterdir())
