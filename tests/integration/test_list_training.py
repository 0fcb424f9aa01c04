"""Training on k-best lists through fairseq-train and fairseq-hydra-train: what moves, what resumes, what is refused."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch

from fairseq_tg.corpus.directory import CorpusDirectory
from fairseq_tg.errors import UserError
from fairseq_tg.loading.checkpoints import fingerprint, load_checkpoint, split_tensors
from tests.conftest import REPO, run, run_forked, run_tg
from tests.integration.corpora import BASE, build

CRITERIA = {
    "actor_risk": ["--candidates", "4", "--label-smoothing", "0.1"],
    "actor_trie": ["--paths", "3", "--label-smoothing", "0.1"],
    "actor_preference": ["--label-smoothing", "0.1"],
}


def flags(workspace, lists, criterion, out, *more):
    own = ["--kbest-lists", lists, "--criterion", criterion, *CRITERIA[criterion], "--save-dir", out]
    return workspace.train_flags(BASE, *own, "--no-epoch-checkpoints", "--max-tokens", "300", *more)


def train(workspace, lists, criterion, out, *more):
    log = out.parent / f"{out.name}.log"
    run("fairseq-train", *flags(workspace, lists, criterion, out, *more, "--log-format", "json", "--log-file", log))
    return load_checkpoint(f"{out}/checkpoint_last.pt"), log.read_text() if log.exists() else ""


def logged(log, name):
    """A mean over each epoch's training. (fairseq adds a handler of the file with every epoch.)"""
    found = [json.loads(line[line.index("{") :]) for line in log.splitlines() if '"train_loss"' in line]
    return list({entry["epoch"]: float(entry[name]) for entry in found}.values())


@pytest.mark.parametrize("criterion", list(CRITERIA))
def test_actors_learn_and_the_base_stays(workspace, whole, criterion, tmp_path):
    state, log = train(workspace, whole, criterion, tmp_path / "out", "--max-epoch", "8", "--lr", "0.03")
    losses = logged(log, "train_loss")
    assert len(losses) == 8 and all(map(math.isfinite, losses)) and losses[-1] < 0.9 * losses[0]
    if criterion == "actor_risk":
        risks = logged(log, "train_risk")
        assert risks[-1] < risks[0]
    base, actors = split_tensors(state["model"])
    assert fingerprint(base) == fingerprint(load_checkpoint(workspace.bases[BASE])["model"])
    assert any(tensor.abs().max() > 0 for name, tensor in actors.items() if tensor.dim() == 2)
    assert logged(log, "train_nll_loss") and re.search(r'"valid_action_norm"', log)


@pytest.mark.parametrize("criterion", list(CRITERIA))
def test_an_interrupted_training_resumes_exactly(workspace, whole, criterion, tmp_path):
    """In the middle of an epoch, with lists drawn anew in each, also by processes that load data."""
    straight, _ = train(workspace, whole, criterion, tmp_path / "a", "--max-epoch", "3")
    updates = straight["optimizer_history"][-1]["num_updates"]
    assert updates >= 6
    train(workspace, whole, criterion, tmp_path / "b", "--max-epoch", "3", "--max-update", str(updates // 3 + 1))
    resumed, _ = train(workspace, whole, criterion, tmp_path / "b", "--max-epoch", "3", "--num-workers", "1")
    assert fingerprint(resumed["model"]) == fingerprint(straight["model"])
    assert resumed["optimizer_history"][-1]["num_updates"] == updates


def test_two_ranks_train_what_one_trains_with_their_batches(workspace, whole, tmp_path):
    alone, _ = train(workspace, whole, "actor_risk", tmp_path / "alone", "--update-freq", "2")
    done = run_forked(
        *("fairseq-tg", "train", "--ranks", "2", "--"), *flags(workspace, whole, "actor_risk", tmp_path / "two")
    )
    assert done.returncode == 0, done.stderr
    together = load_checkpoint(str(tmp_path / "two" / "checkpoint_last.pt"))
    for name, tensor in split_tensors(together["model"])[1].items():
        torch.testing.assert_close(tensor, alone["model"][name], rtol=0, atol=1e-5)


def test_hydra(workspace, whole, tmp_path):
    done = run_forked(
        *("fairseq-hydra-train", "--config-dir", REPO / "user_dir_configs", "--config-name", "tg"),
        *("+model._name=tg_fconv", f"model.base_checkpoint={workspace.bases[BASE]}", f"task.data={workspace.data}"),
        *(f"+task.kbest_lists={whole}", "criterion._name=actor_risk", "+criterion.candidates=3"),
        *("optimization.max_epoch=1", "dataset.max_tokens=300", f"checkpoint.save_dir={tmp_path / 'out'}"),
        *("common.cpu=true", f"common.user_dir={REPO / 'fairseq_tg'}", "dataset.num_workers=0"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    options = load_checkpoint(str(tmp_path / "out" / "checkpoint_last.pt"))["cfg"]["criterion"]
    assert options["candidates"] == 3 and options["_name"] == "actor_risk"


def test_lists_of_a_tg_model_are_of_its_base(workspace, data, whole, tmp_path):
    tg = workspace.train(BASE, tmp_path / "tg", "--max-update", "1")
    refreshed = tmp_path / "refreshed"
    printed = build(workspace, data, refreshed, "--kbest-jsonl", "--path", tg)[1]
    first = CorpusDirectory(str(whole)).manifest
    assert printed["bases"] == first["bases"] == first["recipe"]["base"] != printed["recipe"]["base"]
    noisy = ["--max-update", "2", "--source-noise", "0.2"]  # sources may be changed as in any training
    train(workspace, refreshed, "actor_preference", tmp_path / "next", *noisy)


def test_the_whole_recipe(workspace, tmp_path):
    flags = ["--data", workspace.data, "--base", workspace.bases[BASE], "--out", tmp_path / "work", "--beam", "4"]
    flags += ["--workers", "1", "--epochs", "1", "--max-tokens", "400", "--subset", "valid"]
    flags += ["--rounds", "1"]
    run_tg("run", *flags, "--criterion", "actor_trie", "--hypotheses", "3")
    state = load_checkpoint(str(tmp_path / "work" / "actor" / "checkpoint_best.pt"))
    criterion, updates = state["cfg"]["criterion"], state["optimizer_history"][-1]["num_updates"]
    assert (criterion["_name"], criterion["paths"]) == ("actor_trie", 3)
    planned = state["cfg"]["optimization"]["max_update"]
    assert planned - 5 <= updates <= planned
    with pytest.raises(UserError, match="`ablate composition` compares trainings on what is chosen of them"):
        run_tg("ablate", "composition", *flags[:-2], "--criterion", "actor_trie")


def test_lists_of_several_corpora_are_taken_together(workspace, data, whole, tmp_path):
    other = tmp_path / "other"
    build(workspace, data, other, "--kbest-jsonl", "--kbest-from", whole, "--objective", "chrf", "--selection", "comb")
    train(workspace, f"{whole}:{other}", "actor_trie", tmp_path / "both", "--max-update", "2")
    counts = [CorpusDirectory(str(path)).manifest["counts"]["sentences"] for path in (whole, other)]
    assert counts == [34, 34]


def test_refused(workspace, data, whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    without, unfinished, other = tmp_path / "without", tmp_path / "unfinished", tmp_path / "other"
    build(workspace, data, without)
    shutil.copytree(whole, other)
    (other / "dict.xx.txt").write_text((other / "dict.xx.txt").read_text() + "more 1\n")
    shutil.copytree(whole, unfinished)
    corpus = CorpusDirectory(str(unfinished))
    corpus.write_manifest(corpus.manifest, status="building")
    cut = tmp_path / "cut"
    shutil.copytree(whole, cut)
    (cut / "kbest.jsonl.gz").write_bytes((cut / "kbest.jsonl.gz").read_bytes()[:-20])
    lists = "--kbest-lists {}: "
    cases = [
        ("", [], "--criterion actor_risk learns from k-best lists: give --kbest-lists their corpus"),
        (
            whole,
            ["--criterion", "actor_cross_entropy"],
            "does not learn from --kbest-lists: use actor_risk",
        ),
        (tmp_path, [], lists + "there is no k-best corpus; build one with --kbest-jsonl"),
        (without, [], lists + "the corpus has no stored k-best lists; build it with --kbest-jsonl"),
        (unfinished, [], lists + "the corpus is not complete, see fairseq-tg corpus status"),
        (other, [], lists + "the lists are of other data, their dict.xx.txt is not that of"),
        (cut, [], "kbest.jsonl.gz' is missing or damaged: build the corpus anew"),
        (whole, ["--candidates", "5"], lists + "the lists have 4 hypotheses and actor_risk wants 5"),
        (whole, ["--max-tokens", "5"], "--max-tokens 5 has no room for a hypothesis of list"),
        (
            whole,
            ["--arch", "tg_lstm", "--base-checkpoint", workspace.bases["lstm"]],
            lists + "the lists are of another base",
        ),
    ]
    before = sorted(path.name for path in tmp_path.iterdir())
    for path, more, message in cases:
        own = flags(workspace, path, "actor_risk", Path("save"), *more)
        if "actor_cross_entropy" in more:  # which does not know the options of the other
            for flag in ("--candidates", "--label-smoothing"):
                del own[own.index(flag) : own.index(flag) + 2]
        with pytest.raises(UserError) as error:
            run("fairseq-train", *own)
        assert message.format(path) in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "save") == before
