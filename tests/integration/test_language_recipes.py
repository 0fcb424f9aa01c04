"""run, report and bench of models of many languages: told a pair, they translate as fairseq-generate does."""

from __future__ import annotations

import json
import re

import pytest

from fairseq_tg.errors import UserError
from fairseq_tg.loading.checkpoints import load_checkpoint
from tests.conftest import run_tg
from tests.multilingual import World

PAIR = ["--source-lang", "aa", "--target-lang", "en"]


def bleu(world: World, kind: str, pair: str, path: object, beam: int = 1) -> float:
    printed = world.generate(kind, pair, path, "--beam", beam, "--scoring", "sacrebleu", "--max-len-b", "200")
    return float(re.findall(r"BLEU = ([\d.]+)", printed)[-1])


def test_a_run_on_two_pairs(world, tmp_path):
    """One corpus, one actor, a report on each pair; what is done is not done again, another pair is another run."""
    base, out = world.base("m2m"), tmp_path / "work"
    flags = ["--data", world.data, "--base", base, "--out", out, "--subset", "valid", "--beam", "3", "--workers", "1"]
    flags += ["--epochs", "1", "--max-tokens", "400"]
    printed = run_tg("run", *flags, "--lang-pairs", "aa-en,en-bb")
    assert printed.splitlines()[-1] == f"{out}/report/en-bb/report.html"
    manifest = json.loads((out / "pseudo-bin" / "manifest.json").read_text())
    assert {pair: account["counts"]["pairs"] for pair, account in manifest["pairs"].items()} == {
        "aa-en": 120,
        "en-bb": 120,
    }
    actor = out / "actor" / "checkpoint_best.pt"
    for pair in ("aa-en", "en-bb"):
        report = json.loads((out / "report" / pair / "report.json").read_text())
        values = report["scores"]["values"]
        for name, path, beam in (("greedy", base, 1), ("beam 4", base, 4), ("tg", actor, 1)):
            assert values[name]["BLEU"] == pytest.approx(bleu(world, "m2m", pair, path, beam), abs=0.006)
    before = actor.stat().st_mtime_ns
    run_tg("run", *flags, "--lang-pairs", "aa-en,en-bb")
    assert actor.stat().st_mtime_ns == before
    with pytest.raises(UserError, match="give the same command, or another directory"):
        run_tg("run", *flags, *PAIR)


@pytest.mark.parametrize("kind", ["replaced", "mbart25", "mbart50"])
def test_a_report(world, kind, tmp_path):
    base, tg = world.base(kind), world.train(kind, tmp_path / "tg", "--lr", "0.1")
    flags = ["--speed-sentences", "2", "--turns", "1", "--oracle-beam", "0"]
    run_tg(
        *("report", "--data", world.data, "--base", base, "--actor", tg, "--subset", "valid", *PAIR, *flags),
        *("--out", tmp_path / "report"),
    )
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    values = report["scores"]["values"]
    assert values["greedy"]["BLEU"] == pytest.approx(bleu(world, kind, "aa-en", base), abs=0.006)
    assert values["tg+beam 4"]["BLEU"] == pytest.approx(bleu(world, kind, "aa-en", tg, 4), abs=0.006)
    assert all(0 < value < 100 for row in report["likelihoods"].values() for value in row.values())


@pytest.mark.usefixtures("forked_probes")
def test_a_bench(world, tmp_path):
    """Every engine is told the languages: all find the same."""
    run_tg(
        *("bench", "--data", world.data, "--base", world.base("m2m"), "--subset", "valid", *PAIR, "--turns", "1"),
        *("--sentences", "2", "--out", tmp_path / "bench"),
    )
    systems = json.loads((tmp_path / "bench" / "bench.json").read_text())["systems"]
    expected = bleu(world, "m2m", "aa-en", world.base("m2m"))
    for name in ("fairseq greedy", "fast greedy base", "compiled base float32"):
        assert systems[name]["bleu"] == pytest.approx(expected, abs=0.006)


def test_validations_score_words_alone(world, tmp_path):
    """What fairseq-train --eval-bleu gives is what fairseq-generate says of the checkpoint."""
    for kind in ("m2m", "mbart25"):
        pairs = ["--lang-pairs", "aa-en"] if kind == "m2m" else []
        score = ["--eval-bleu", "--eval-bleu-args", '{"beam": 1}', "--eval-bleu-detok", "space"]
        best = ["--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"]
        world.train(kind, tmp_path / kind, *pairs, *score, *best)
        path = tmp_path / kind / "checkpoint_best.pt"
        best_score = load_checkpoint(str(path))["extra_state"]["best"]
        assert best_score == pytest.approx(bleu(world, kind, "aa-en", path), abs=0.006)


BAD = [
    ("run", [], "a model of many languages: give --source-lang and --target-lang, or --lang-pairs"),
    ("run", ["--source-lang", "aa"], "one of --source-lang and --target-lang is missing"),
    ("run", [*PAIR, "--lang-pairs", "en-bb"], "for one pair, or --lang-pairs for several, not both"),
    ("run", ["--lang-pairs", "aa"], "--lang-pairs aa: give pairs of languages, as de-en,en-de"),
    ("run", ["--lang-pairs", "aa-en,aa-bb"], "there is no split 'train' of aa-bb in"),
    ("run", ["--source-lang", "zz", "--target-lang", "en"], "zz-en contains languages that are not in"),
    ("run", [*PAIR, "--langs", "en,bb,aa"], "trained with --langs aa,bb,en, and here it is en,bb,aa: give the same"),
    ("run", [*PAIR, "--encoder-langtok", "tgt"], "trained with --encoder-langtok src, and here it is tgt"),
    ("run", [*PAIR, "--lang-dict", "none.txt"], "there is no 'none.txt'"),
    ("run", [*PAIR, "--task", "tg_translation"], "use --task tg_translation_multi_simple_epoch, or leave it out"),
    ("run", [*PAIR, "--criterion", "actor_preference"], "actor_preference does not know these language symbols"),
    ("run", ["--lang-pairs", "aa-en,en-bb", "--criterion", "actor_risk"], "does not know these language symbols"),
    ("run", [*PAIR, "--source-splitting", "0.1"], "sources are changed without their language symbols"),
    ("report", [], "no pair of languages to translate: give --source-lang and --target-lang"),
    ("bench", [*PAIR, "--peer", "ctranslate2"], "--peer ctranslate2 is not told of language symbols"),
]


@pytest.mark.parametrize("command, flags, message", BAD)
def test_bad_input_is_one_line(world, command, flags, message, tmp_path):
    with pytest.raises(UserError, match=re.escape(message)) as raised:
        run_tg(
            *(command, "--data", world.data, "--base", world.base("m2m"), "--subset", "valid", *flags),
            *("--out", tmp_path / "out"),
        )
    assert "\n" not in str(raised.value)
    assert command == "bench" or not (tmp_path / "out").exists()
