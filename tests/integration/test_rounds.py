"""Rounds: lists that are refreshed where the actors changed something, and the best round that is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fairseq_tg.corpus.assemble import merge
from fairseq_tg.corpus.directory import CorpusDirectory, hash_file
from fairseq_tg.errors import UserError
from fairseq_tg.files import parse_json
from fairseq_tg.loading.checkpoints import load_checkpoint
from fairseq_tg.models.record import read_base
from fairseq_tg.recipe import corpora, rounds
from fairseq_tg.recipe.corpora import build_corpus
from fairseq_tg.recipe.lengths import with_objective
from fairseq_tg.recipe.options import AUTO, Recipe, Refinement, Training
from fairseq_tg.recipe.rounds import train_in_rounds
from fairseq_tg.recipe.run import check
from fairseq_tg.subwords import WordOptions
from fairseq_tg.tasks.loading import load_model
from tests.conftest import run
from tests.integration.corpora import BASE, build, files, lists, without_command


@pytest.fixture(scope="module")
def changed(workspace, tmp_path_factory) -> str:
    """A model whose actors change some of the base's translations."""
    return workspace.train(BASE, tmp_path_factory.mktemp("changed"), "--lr", "0.02")


def test_lists_are_searched_again_where_greedy_changed(workspace, data, changed, tmp_path):
    _, manifest = build(workspace, data, tmp_path / "first", "--kbest-jsonl", "--kbest-greedy")
    assert manifest["recipe"]["greedy"] and manifest["counts"]["kept"] == 0
    path = ("--path", changed, "--kbest-jsonl")
    refresh = (*path, "--kbest-refresh", tmp_path / "first")
    printed, manifest = build(workspace, data, tmp_path / "second", *refresh)
    build(workspace, data, tmp_path / "fresh", *path, "--kbest-greedy")
    first, second, fresh = (lists(tmp_path / name) for name in ("first", "second", "fresh"))
    kept = 0
    for before, refreshed, new in zip(first, second, fresh):
        if "skipped" in new:
            assert refreshed == new
            continue
        same = before["greedy"]["tokens"] == new["greedy"]["tokens"]
        expected = before if same else new
        found, wanted = ([h["tokens"] for h in entry["hypotheses"]] for entry in (refreshed, expected))
        assert found == wanted and refreshed["chosen"] == expected["chosen"]
        assert refreshed["greedy"]["tokens"] == new["greedy"]["tokens"] and refreshed.get("kept", False) == same
        kept += same
    assert 0 < kept < manifest["counts"]["sentences"] and manifest["counts"]["kept"] == kept
    assert f"{kept} lists of an earlier model" in printed
    # in shards it is the same
    for shard in ("0/2", "1/2"):
        build(workspace, data, tmp_path / "parts", *refresh, "--kbest-shard", shard)
    merge([str(tmp_path / "parts")], str(tmp_path / "parts"))
    ours, theirs = files(tmp_path / "second"), files(tmp_path / "parts")
    assert without_command(ours.pop("manifest.json")) == without_command(theirs.pop("manifest.json"))
    assert ours == theirs


def test_lists_without_greedy_translations_are_all_searched_again(workspace, data, whole, changed, tmp_path):
    _, manifest = build(workspace, data, tmp_path / "x", "--path", changed, "--kbest-refresh", whole)
    assert manifest["counts"]["kept"] == 0 and manifest["counts"]["sentences"] > 0


def test_what_cannot_be_refreshed(workspace, data, whole, tmp_path):
    with pytest.raises(UserError, match="give --kbest-from or --kbest-refresh, not both"):
        build(workspace, data, tmp_path / "x", "--kbest-from", whole, "--kbest-refresh", whole)
    with pytest.raises(UserError, match="made with other settings: beam was 4, is 3"):
        build(workspace, data, tmp_path / "y", "--kbest-refresh", whole, "--beam", "3")


def test_an_engine_that_knows_no_actors_searches_the_base_alone(workspace, changed, tmp_path, monkeypatch):
    recipe = Recipe(
        **{"data": workspace.data, "base": workspace.bases[BASE], "out": str(tmp_path), "engine": "ctranslate2"},
        **{"beam": 3, "workers": 1, "objective": "sbleu", "selection": "top1"},
    )
    _, task = load_model(recipe.base, recipe.data)
    manifest = build_corpus(recipe, task, tmp_path / "second", Path(changed))
    assert manifest["recipe"]["engine"] == "native"
    # nor does it go on where a build has noted such an engine
    begun = tmp_path / "begun" / "manifest.json"
    begun.parent.mkdir()
    noted = {**manifest, "recipe": {**manifest["recipe"], "engine": "ctranslate2"}}
    CorpusDirectory(str(begun.parent)).write_manifest(noted, "building")
    monkeypatch.setattr(corpora, "build_locally", lambda flags, *args, **options: run("fairseq-generate", *flags))
    with pytest.raises(UserError, match=r"begun with other settings: engine was .ctranslate2., is .native.;"):
        build_corpus(recipe, task, begun.parent, Path(changed))


def test_the_best_round_is_kept(workspace, tmp_path, capsys):
    training = Training(epochs=1, max_tokens=400, lr=0.02)
    recipe = Recipe(
        **{"data": workspace.data, "base": workspace.bases[BASE], "out": str(tmp_path), "training": training},
        **{"beam": 3, "workers": 1, "rounds": 2, "objective": "sbleu+1", "selection": "top1"},
        refinement=Refinement(refine="actor_risk", refine_hypotheses=3),
    )
    _, task = load_model(recipe.base, recipe.data)
    record, _ = read_base(recipe.base)
    best = train_in_rounds(recipe, record, task, tmp_path)
    found = [tmp_path / name / "actor" / "checkpoint_best.pt" for name in ("first", "round-1", "round-2")]
    scores = [load_checkpoint(str(path))["extra_state"]["best"] for path in found]
    chosen = found[scores.index(max(scores))]  # the first of equal ones
    assert best == tmp_path / "actor" / "checkpoint_best.pt" and best.read_bytes() == chosen.read_bytes()
    second = CorpusDirectory(str(tmp_path / "round-2" / "pseudo-bin")).manifest
    assert second["counts"]["kept"] > 0 and second["recipe"]["refreshes"]
    stages = [parse_json(path.with_name("stage.json").read_text())["settings"] for path in found]
    assert ["start" in stage for stage in stages] == [False, True, True]  # each goes on from the last one's actors
    assert [stage["training"]["criterion"] for stage in stages] == ["actor_cross_entropy", "actor_risk", "actor_risk"]
    printed = capsys.readouterr().out
    assert "sentences were searched again" in printed and f"the best is {chosen.parent.parent.name}" in printed

    def times() -> dict:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    before = times()
    train_in_rounds(recipe, record, task, tmp_path)
    assert times() == before  # nothing is done twice
    train_in_rounds(replace(recipe, rounds=1), record, task, tmp_path)  # another number of rounds has another best
    assert best.read_bytes() == found[scores.index(max(scores[:2]))].read_bytes()


def test_a_round_after_references_is_of_the_best_of_its_lists(workspace, tmp_path, monkeypatch):
    """As with `fairseq-tg run --rounds 2`, where `comb` wins the first round."""
    monkeypatch.setattr(rounds, "validation_score", lambda path: float("comb" in str(path)))
    recipe = Recipe(
        **{"data": workspace.data, "base": workspace.bases[BASE], "out": str(tmp_path), "objective": "chrf"},
        **{"beam": 3, "workers": 1, "rounds": 2, "training": Training(epochs=1, max_tokens=400, lr=0.02)},
    )
    _, task = load_model(recipe.base, recipe.data)
    train_in_rounds(recipe, read_base(recipe.base)[0], task, tmp_path, by_length=True)
    names = ("pseudo-bin", "pseudo-comb", "round-2/pseudo-bin")
    recipes = [CorpusDirectory(str(tmp_path / name)).manifest["recipe"] for name in names]
    assert [recipe["selection"] for recipe in recipes] == ["top1", "comb", "top1"]
    # what only chooses from lists translates nothing greedily; the second round's are another model's
    assert [bool(recipe.get("greedy")) for recipe in recipes] == [True, False, True]
    assert recipes[0]["base"] == recipes[1]["base"] != recipes[2]["base"]
    stage = parse_json((tmp_path / "round-2" / "actor" / "stage.json").read_text())["settings"]
    winner = tmp_path / "comb" / "actor" / "checkpoint_best.pt"
    assert stage["start"] == hash_file(winner)
    # and are chosen from by what the length of that model's translations asks for
    asked = with_objective(replace(recipe, objective=AUTO), *load_model(str(winner), recipe.data)).objective
    assert [recipe["objective"] for recipe in recipes] == ["chrf", "chrf", asked]


def test_two_trainings_on_lists_are_one_too_many(workspace, tmp_path):
    recipe = Recipe(
        **{"data": workspace.data, "base": workspace.bases[BASE], "out": str(tmp_path), "beam": 5, "workers": 1},
        **{"training": Training(criterion="actor_trie"), "refinement": Refinement(refine="actor_risk")},
    )
    loaded = load_model(recipe.base, recipe.data)
    with pytest.raises(UserError, match="and so is --criterion actor_trie: leave one out"):
        check(recipe, *loaded)
    alone = replace(recipe, training=Training(), beam=1)
    with pytest.raises(UserError, match="actor_risk with 1 hypotheses of lists of 1"):
        check(alone, *loaded)


def test_sampled_sources_need_the_model(workspace, tmp_path: Path):
    recipe = Recipe(
        **{"data": workspace.data, "base": workspace.bases[BASE], "out": str(tmp_path)},
        **{"beam": 3, "workers": 1, "training": Training(source_sampling=0.5)},
    )
    loaded = load_model(recipe.base, recipe.data)
    with pytest.raises(UserError, match="--source-sampling needs --sentencepiece-model"):
        check(recipe, *loaded)
    nowhere = replace(recipe, text=WordOptions(sentencepiece_model="/nope.model"))
    with pytest.raises(UserError, match=r"--sentencepiece-model /nope\.model cannot be read"):
        check(nowhere, *loaded)


def test_batches_have_room_for_every_sentence(workspace, tmp_path: Path, monkeypatch):
    """What fairseq-train would leave out, or end with after the corpus was built, is found before."""
    recipe = Recipe(
        **{"data": workspace.data, "base": workspace.bases[BASE], "out": str(tmp_path), "beam": 5},
        refinement=Refinement(refine="actor_risk", refine_max_tokens=8),
    )
    loaded = load_model(recipe.base, recipe.data)
    check(replace(recipe, training=Training(max_tokens=8)), *loaded)  # seven words and the end of sentence
    for criterion in ("actor_cross_entropy", "actor_preference"):
        short = replace(recipe, training=Training(max_tokens=7, criterion=criterion), refinement=Refinement())
        with pytest.raises(UserError, match=r"--max-tokens 7 has no room for a sentence of train or valid: give .* 8"):
            check(short, *loaded)
    monkeypatch.setattr("fairseq_tg.recipe.run.validation_splits", lambda *_: [])
    monkeypatch.setattr("fairseq_tg.recipe.run.LEFT_OUT", 0.5)
    check(replace(recipe, training=Training(max_tokens=7), refinement=Refinement()), *loaded)  # a few are left out
    refined = replace(recipe, refinement=replace(recipe.refinement, refine_max_tokens=3))
    with pytest.raises(UserError, match="--refine-max-tokens 3 has no room"):
        check(refined, *loaded)
