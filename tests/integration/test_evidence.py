"""The report and the recipe, as users call them."""

from __future__ import annotations

import json
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from html import escape
from pathlib import Path

import pytest

from fairseq_tg import text
from fairseq_tg.corpus.directory import CorpusDirectory
from fairseq_tg.errors import UserError
from fairseq_tg.loading import checkpoints
from fairseq_tg.loading.checkpoints import fingerprint, load_checkpoint
from fairseq_tg.subwords import guess_subwords
from fairseq_tg.tasks.translation import TGTranslationTask
from tests.conftest import heed_interrupts, run, run_tg, write_corpus
from tests.forks import Forked, words_of

REPORT = ["report.html", "report.json", "report.txt"]


@pytest.fixture(scope="module")
def data(workspace, tmp_path_factory) -> Path:
    """The bases' data with a test set, one without references, one of a single sentence and one that is too long."""
    directory = tmp_path_factory.mktemp("evidence")
    write_corpus(directory, {"test": 12, "one": 1})
    for side, words in (("xx", "w1 " * 1100), ("yy", "W1a")):
        (directory / f"long.{side}").write_text(f"{words.strip()}\n")
    shutil.copytree(workspace.data, directory / "bin")
    dictionaries = ["--srcdict", f"{workspace.data}/dict.xx.txt", "--tgtdict", f"{workspace.data}/dict.yy.txt"]
    for split in ("test", "one", "long"):
        made = directory / f"made-{split}"
        flags = ["-s", "xx", "-t", "yy", "--testpref", directory / split, *dictionaries, "--destdir", made]
        run("fairseq-preprocess", *flags, "--workers", "1")
        for path in made.glob("test.*"):
            shutil.copy(path, directory / "bin" / path.name.replace("test", split, 1))
    for path in (directory / "bin").glob("test.xx-yy.xx.*"):
        shutil.copy(path, directory / "bin" / path.name.replace("test", "blind", 1))
    return directory / "bin"


@pytest.fixture(scope="module")
def recipe(workspace, data, tmp_path_factory):
    """A whole run, and how to do it again."""
    out = tmp_path_factory.mktemp("run") / "work"
    flags = ["--data", data, "--base", workspace.bases["lstm"], "--out", out, "--beam", "4", "--workers", "1"]
    flags += ["--epochs", "2", "--max-tokens", "200", "--tokenizer", "moses"]
    return out, flags, run_tg("run", *flags)


def test_a_run_says_what_it_gained_and_where_it_is(recipe, workspace, data, tmp_path):
    out, _, printed = recipe
    assert f"the model with its actors: {out}/actor/checkpoint_best.pt\n" in printed
    found = re.search(r"greedy BLEU on the validation set: ([\d.]+) by the base, ([\d.]+) with actors\n", printed)
    assert found and ("so the actors make it worse" in printed) == (float(found[2]) < float(found[1]))
    (tmp_path / "file").touch()
    for place, message in ((tmp_path / "file", "is a file: give a directory"), (data, "is the data directory")):
        with pytest.raises(UserError, match=message):
            run_tg("run", "--data", data, "--base", workspace.bases["lstm"], "--out", place)


def test_run_ends_with_the_report(recipe):
    out, _, printed = recipe
    assert printed.splitlines()[-1] == f"{out}/report/report.html"
    assert (out / "report" / "report.txt").read_text() in printed
    for row in ("greedy", "beam 4", "tg", "tg+beam 4", "beam 4 oracle"):
        assert any(line.startswith(f"{row} ") for line in printed.splitlines())


def test_validation_data_choose_whether_references_are_learned_from(recipe):
    out, _, printed = recipe
    found = {name: out / name / "actor" / "checkpoint_best.pt" for name in ("top1", "comb")}
    scores = {name: load_checkpoint(str(path))["extra_state"]["best"] for name, path in found.items()}
    best = max(scores, key=scores.__getitem__)
    assert f"the best is {best}" in printed
    assert (out / "actor" / "checkpoint_best.pt").read_bytes() == found[best].read_bytes()
    sizes = [json.loads((out / f"pseudo-{name}" / "manifest.json").read_text())["counts"] for name in ("bin", "comb")]
    assert sizes[1]["pairs"] == 2 * sizes[0]["pairs"]


def test_run_again_does_nothing_again(recipe):
    out, flags, printed = recipe
    files = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    again = run_tg("run", *flags)
    assert again.splitlines()[-1] == printed.splitlines()[-1]
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == files


def test_run_mends_what_is_damaged(recipe, tmp_path):
    out, flags, _ = recipe
    copy = tmp_path / "work"
    shutil.copytree(out, copy)
    flags = [copy if flag == out else flag for flag in flags]
    (copy / "report" / "report.json").write_text("{}")
    run_tg("run", *flags)
    assert json.loads((copy / "report" / "report.json").read_text())["sentences"] == 12


def test_run_with_other_settings_is_refused(recipe, data, tmp_path):
    out, flags, _ = recipe
    with pytest.raises(UserError, match=r"report' was begun with other settings .*subset"):
        run_tg("run", *flags, "--subset", "one", "--rounds", "3")
    assert not (out / "round-3").exists()  # before anything is done for it
    with pytest.raises(UserError, match=r"was begun with other settings .*lr"):
        run_tg("run", *flags, "--lr", "0.1")
    changes = {"beam": ["--beam", "5"], "text.tokenizer": ["--tokenizer", "nltk"], "batches": ["--batch-size", "3"]}
    for name, change in changes.items():
        with pytest.raises(UserError, match=rf"pseudo-bin' was begun with other settings: .*{name}"):
            run_tg("run", *flags, *change)
    # other contents under the same names
    splits = {
        "train": r"pseudo-bin' was begun with other settings: .*data_hash",
        "valid": "was built with another valid split",
        "test": r"report' was begun with other settings .*data",
    }
    for split, message in splits.items():
        other = tmp_path / split
        shutil.copytree(data, other)
        for path in other.glob(f"{split}.*"):
            shutil.copy(data / path.name.replace(split, "one"), path)
        with pytest.raises(UserError, match=message):
            run_tg("run", *[other if flag == data else flag for flag in flags])


def test_a_training_that_was_interrupted_knows_its_settings(workspace, data, recipe, tmp_path):
    """Ctrl-C in the middle, then another learning rate: refused; with the same one it goes on to the same end."""
    done, flags, _ = recipe
    shutil.copytree(done / "pseudo-bin", tmp_path / "pseudo-bin")
    flags = ["run", *(tmp_path if flag == done else flag for flag in flags)]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "preexec_fn": heed_interrupts}
    with Forked(words_of("fairseq-tg", *flags), **output) as process:
        while not (tmp_path / "top1" / "actor" / "checkpoint_last.pt").exists() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode and not (tmp_path / "report").exists()
    for change in (["--lr", "0.1"], ["--seed", "2"], ["--label-smoothing", "0.2"]):
        with pytest.raises(UserError, match=rf"was begun with other settings .*{change[0][2:].replace('-', '_')}"):
            run_tg(*flags, *change)
    run_tg(*flags)
    for training in ("top1", "comb"):
        last = Path(training) / "actor" / "checkpoint_last.pt"
        ended = [load_checkpoint(str(path / last))["model"] for path in (done, tmp_path)]
        assert fingerprint(ended[0]) == fingerprint(ended[1])


def test_data_in_the_other_direction_with_two_validation_sets(workspace, data, tmp_path):
    """fairseq takes train.yy-xx.* for xx to yy; a second validation set, as fairseq-preprocess names it, counts."""
    reversed_ = tmp_path / "bin"
    reversed_.mkdir()
    for path in data.iterdir():
        shutil.copy(path, reversed_ / path.name.replace(".xx-yy.", ".yy-xx."))
    for path in reversed_.glob("test.*"):
        shutil.copy(path, path.with_name(path.name.replace("test", "valid1")))
    flags = ["--data", reversed_, "--base", workspace.bases["lstm"], "--out", tmp_path / "out", "--beam", "2"]
    flags += ["--workers", "1", "--epochs", "1", "--max-tokens", "2000", "--source-lang", "xx", "--target-lang", "yy"]
    flags += ["--rounds", "1"]
    printed = run_tg("run", *flags)
    assert printed.splitlines()[-1] == str(tmp_path / "out" / "report" / "report.html")
    assert "greedy translations of valid, valid1 have" in printed
    log = (tmp_path / "out" / "top1" / "actor" / "output.log").read_text()
    assert re.findall(r"(valid1?) (xx-yy) (\d+) examples", log) == [("valid", "xx-yy", "30"), ("valid1", "xx-yy", "12")]
    for path in reversed_.glob("valid1.*"):
        shutil.copy(path.with_name(path.name.replace("valid1", "one")), path)
    with pytest.raises(UserError, match="another valid1 split"):
        run_tg("run", *flags)


def test_run_scores_the_same_text_everywhere(recipe):
    """Of the corpus, of validations and of the report, with the target's language."""
    out, _, _ = recipe
    tokenizer = CorpusDirectory(str(out / "pseudo-bin")).manifest["recipe"]["text"]["tokenizer"]
    assert (tokenizer["_name"], tokenizer["target_lang"]) == ("moses", "yy")
    trained = load_checkpoint(str(out / "actor" / "checkpoint_best.pt"))["cfg"]["task"]
    assert (trained["eval_bleu_detok"], json.loads(trained["eval_bleu_detok_args"])) == ("moses", {"target_lang": "yy"})
    assert json.loads((out / "report" / "report.json").read_text())["options"]["text"]["tokenizer"] == "moses"


def test_the_report_says_everything(recipe):
    out, _, _ = recipe
    found = json.loads((out / "report" / "report.json").read_text())
    scores = found["scores"]["values"]
    assert set(scores) == {"greedy", "beam 4", "tg", "tg+beam 4", "beam 4 oracle"}
    assert all(set(values) == {"BLEU", "chrF", "TER", "METEOR"} for values in scores.values())
    assert scores["beam 4 oracle"]["BLEU"] >= scores["beam 4"]["BLEU"]
    assert set(found["scores"]["p_values"]) == {"greedy", "beam 4"}
    assert 0 <= found["scores"]["p_values"]["greedy"]["tg"]["BLEU"] <= 1
    assert "version:" in found["scores"]["signatures"]["BLEU"]
    assert set(found["likelihoods"]) == {"base", "tg"}
    assert set(found["likelihoods"]["base"]) == {"reference", "greedy", "beam 4 oracle", "tg"}
    assert all(0 < value < 100 for row in found["likelihoods"].values() for value in row.values())
    assert [at["updates"] for at in found["norms"]["tg"]] == sorted(at["updates"] for at in found["norms"]["tg"])
    assert len(found["norms"]["tg"]) == 2 and found["norms"]["tg"][-1]["action"] > 0
    assert found["speed"]["tg"]["median"] > 0 and found["notes"] == []
    page = (out / "report" / "report.html").read_text()
    assert page.count("data:image/png;base64") == 2 and "http" not in page and str(out) not in page
    examples = [*found["helped"], *found["hurt"]]
    assert found["pictures"] == [f"example-{example['index']}.svg" for example in examples]
    for example, name in zip(examples, found["pictures"]):
        picture = (out / "report" / name).read_text()
        assert f'href="{name}"' in page and escape(example["source"].split()[0]) in picture
        ElementTree.fromstring(picture)


def report(workspace, data, out, *flags) -> str:
    base = ["--data", data, "--base", workspace.bases["lstm"], "--out", out]
    return run_tg("report", *base, "--oracle-beam", "0", *flags)


def test_a_report_reads_every_checkpoint_once(workspace, data, recipe, tmp_path, monkeypatch):
    """And builds every model once, and looks through a vocabulary once."""
    reads, builds, scans = [], [], []
    read, build, guess = checkpoints._fairseq_load_checkpoint_to_cpu, TGTranslationTask.build_model, guess_subwords

    def counting(calls, function):
        return lambda *args, **kwargs: calls.append(args) or function(*args, **kwargs)

    monkeypatch.setattr(checkpoints, "_fairseq_load_checkpoint_to_cpu", counting(reads, read))
    monkeypatch.setattr(TGTranslationTask, "build_model", counting(builds, build))
    monkeypatch.setattr(text, "guess_subwords", counting(scans, guess))
    actor = str(recipe[0] / "actor" / "checkpoint_best.pt")
    base = ["--data", data, "--base", workspace.bases["lstm"], "--out", tmp_path, "--oracle-beam", "3"]
    run_tg("report", *base, "--actor", actor)
    assert sorted(path for path, *_ in reads) == sorted([workspace.bases["lstm"], actor])
    assert len(builds) == 2 and len(scans) == 2  # of the source and of the target


def test_without_references_the_rest_is_reported(workspace, data, recipe, tmp_path):
    printed = report(
        workspace, data, tmp_path, "--actor", recipe[0] / "actor" / "checkpoint_best.pt", "--subset", "blind"
    )
    assert "'blind' has no references: there are no scores, likelihoods or examples" in printed
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["scores"] is None and found["speed"]["tg"]["median"] > 0


def test_several_sets_are_pooled(workspace, data, recipe, tmp_path):
    actor = recipe[0] / "actor" / "checkpoint_best.pt"
    printed = report(workspace, data, tmp_path, "--actor", actor, "--subset", "test,valid", "--threads", "1")
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["sentences"] == 12 + 30
    sets = found["sets"]
    assert {name: part["sentences"] for name, part in sets.items()} == {
        "test": 12, "test, hard half": 6, "valid": 30, "valid, hard half": 15, "all hard halves": 21, "all": 42
    }  # fmt: skip
    systems = {"greedy", "beam 4", "tg", "tg+beam 4"}
    assert all(set(part["bleu"]) == systems for part in sets.values())
    for name in systems:
        assert sets["all"]["bleu"][name] == pytest.approx(
            (sets["test"]["bleu"][name] + sets["valid"]["bleu"][name]) / 2
        )
    gains = [2 * (sets["all"]["bleu"][name] - sets["all"]["bleu"]["greedy"]) for name in ("beam 4", "tg")]
    assert sets["all"]["shares"]["tg"]["gain"] == pytest.approx(gains[0])
    if gains[0] > 0:
        assert found["shares"]["tg"] == pytest.approx(gains[1] / gains[0])
    assert "valid, hard half" in printed and "mean log-probability" in printed


def test_cont_stands_beside_the_actors(workspace, data, recipe, tmp_path):
    """With the base itself in its place: what it gives is known."""
    actor, base = recipe[0] / "actor" / "checkpoint_best.pt", workspace.bases["lstm"]
    printed = report(workspace, data, tmp_path, "--actor", actor, "--cont", base, "--subset", "test,valid")
    found = json.loads((tmp_path / "report.json").read_text())
    values = found["scores"]["values"]
    assert values["cont."] == values["greedy"] and values["cont.+beam 4"] == values["beam 4"]
    for part in found["sets"].values():
        difference = part["beside_cont"]["tg"]
        assert difference["value"] == pytest.approx(part["bleu"]["tg"] - part["bleu"]["greedy"])
        assert difference["low"] <= difference["value"] <= difference["high"]
    assert "tg against cont.: " in printed and set(found["shares"]) == {"tg"}
    with pytest.raises(UserError, match="has actors: give it to --actor"):
        report(workspace, data, tmp_path / "other", "--cont", actor)


def test_another_engine_stands_beside_ours(workspace, data, tmp_path):
    flags = ["--data", data, "--base", workspace.bases["transformer"], "--subset", "test", "--oracle-beam", "0"]
    run_tg("report", *flags, "--speed-sentences", "2", "--turns", "1", "--peer", "ctranslate2", "--out", tmp_path)
    found = json.loads((tmp_path / "report.json").read_text())
    for search in ("greedy", "beam 4"):
        name = f"CTranslate2 {search} float32"
        assert found["speed"][name]["median"] > 0
        ours, theirs = (found["scores"]["values"][one]["BLEU"] for one in (search, name))
        assert theirs == pytest.approx(
            ours, abs=2 if search == "greedy" else 8
        )  # its beam goes on where fairseq's ends


def test_several_seeds_have_a_mean(workspace, data, recipe, tmp_path):
    actor, base = recipe[0] / "actor" / "checkpoint_best.pt", workspace.bases["lstm"]
    other = workspace.train("lstm", tmp_path / "other", "--seed", "2", "--lr", "0.1")
    for number in (1, 2):
        (tmp_path / f"cont-{number}").mkdir()
        shutil.copy(base, tmp_path / f"cont-{number}" / "checkpoint_best.pt")
    conts = [word for n in (1, 2) for word in ("--cont", tmp_path / f"cont-{n}" / "checkpoint_best.pt")]
    printed = report(workspace, data, tmp_path, "--actor", actor, "--actor", other, *conts, "--subset", "test,valid")
    found = json.loads((tmp_path / "report.json").read_text())["sets"]["all"]
    values = [found["bleu"][f"tg:checkpoint_{name}"] for name in ("best", "last")]
    assert found["means"]["tg"] == pytest.approx([statistics.mean(values), statistics.stdev(values)])
    assert found["means"]["cont."] == [pytest.approx(found["bleu"]["greedy"]), 0]
    mean = found["beside_cont"]["tg, mean"]
    assert mean["value"] == pytest.approx(statistics.mean(values) - found["bleu"]["greedy"])
    assert "tg, mean against cont.: " in printed and f"{statistics.mean(values):.2f} ± " in printed


@pytest.mark.parametrize("command", ["report", "bench"])
def test_models_are_what_they_are_given_as(workspace, data, recipe, tmp_path, command):
    actor, base, other = recipe[0] / "actor" / "checkpoint_best.pt", workspace.bases["lstm"], workspace.bases["fconv"]
    for flags, message in (
        (("--base", actor), "has actors: give the checkpoint they were trained on"),
        (("--base", base, "--actor", base), "has no actors: give a checkpoint trained with --arch"),
        (("--base", other, "--actor", actor), "was trained on another base than"),
        (("--base", base, "--cont", actor), "has actors: give it to --actor"),
    ):
        with pytest.raises(UserError, match=message):
            run_tg(command, "--data", data, *flags, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_sentence_is_enough_for_scores_but_not_for_significance(workspace, data, tmp_path):
    printed = report(workspace, data, tmp_path, "--subset", "one")
    assert "one sentence is too few for a test of significance" in printed
    assert "BLEU" in json.loads((tmp_path / "report.json").read_text())["scores"]["values"]["greedy"]


def test_without_matplotlib_there_are_no_figures(workspace, data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "no figures: matplotlib is not installed" in report(workspace, data, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == REPORT


def test_bad_input(workspace, data, recipe, tmp_path):
    actor = recipe[0] / "actor" / "checkpoint_best.pt"
    cases = {
        "there is no split 'dev'": ["--subset", "dev"],
        "has no actors: give a checkpoint trained with": ["--actor", workspace.bases["lstm"]],
        "the same name": ["--actor", actor, "--actor", actor],
        "--tokenizer mosse: fairseq has moses": ["--tokenizer", "mosse"],
    }
    for message, flags in cases.items():
        with pytest.raises(UserError, match=message):
            report(workspace, data, tmp_path / "none", *flags)
    with pytest.raises(UserError, match="was trained on another base"):
        flags = ["--data", data, "--base", workspace.bases["fconv"], "--actor", actor, "--out", tmp_path / "none"]
        run_tg("report", *flags)
    with pytest.raises(UserError, match="has actors: give the checkpoint they were trained on"):
        run_tg("report", "--data", data, "--base", actor, "--out", tmp_path / "none")
    for command in ("report", "bench", "run"):
        flags = ["--data", data, "--base", workspace.bases["fconv"], "--subset", "long", "--out", tmp_path / "none"]
        with pytest.raises(
            UserError, match=r"'long' has a sentence of 1101 tokens, and the model takes up to 10\d\d: leave"
        ):
            run_tg(command, *flags)
    with pytest.raises(UserError, match="there is no split 'dev'"):
        run_tg("run", "--data", data, "--base", workspace.bases["lstm"], "--out", tmp_path / "none", "--subset", "dev")
    assert not (tmp_path / "none").exists()


def test_what_a_late_cell_needs_is_found_before_the_first(workspace, data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk", None)
    flags = ["--data", data, "--base", workspace.bases["lstm"], "--out", tmp_path / "none", "--beam", "2"]
    with pytest.raises(UserError, match="--objective meteor needs nltk"):
        run_tg("ablate", "objective", *flags)
    assert not (tmp_path / "none").exists()


#: The others differ in their cells only, which tests/unit/test_recipe.py looks at
ABLATIONS = {
    "actor": ["gate", "cont."],
    "composition": ["para", "thd"],
}


@pytest.mark.parametrize("kind", ABLATIONS)
def test_ablations(recipe, tmp_path, kind):
    done, flags, _ = recipe
    names = ABLATIONS[kind]
    shutil.copytree(done / "pseudo-bin", tmp_path / "pseudo-bin")  # the corpus is that of the run
    flags = [kind, *(tmp_path if flag == done else flag for flag in flags), "--only", *names]
    with pytest.raises(UserError, match="--only colour: there are"):
        run_tg("ablate", *flags, "colour")
    printed = run_tg("ablate", *flags)
    values = json.loads((tmp_path / f"ablation-{kind}.json").read_text())["values"]
    assert list(values) == ["greedy", *names] and all("BLEU" in scores for scores in values.values())
    assert (tmp_path / f"ablation-{kind}.png").is_file() and all(f"\n{name} " in printed for name in names)
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("checkpoint_best.pt")}
    assert len(trained) == len(names)
    run_tg("ablate", *flags)
    assert trained == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("checkpoint_best.pt")}


def test_methods(recipe, tmp_path):
    """Rows are means over seeds; what is trained is trained once for each."""
    done, flags, _ = recipe
    shutil.copytree(done / "pseudo-bin", tmp_path / "pseudo-bin")
    flags = ["method", *(tmp_path if flag == done else flag for flag in flags)]
    printed = run_tg("ablate", *flags, "--only", "beam 4", "NPAD 4", "--seeds", "1", "2", "--noise", "2")
    result = json.loads((tmp_path / "ablation-method.json").read_text())
    assert list(result["values"]) == ["greedy", "beam 4", "NPAD 4, seed 1", "NPAD 4, seed 2"]
    bleu = sum(result["values"][f"NPAD 4, seed {seed}"]["BLEU"] for seed in (1, 2)) / 2
    (row,) = [line for line in printed.splitlines() if line.startswith("NPAD 4 ")]
    assert f" {bleu:.2f} " in row and " of 2 " in row
    assert all(len(turns) == 3 and min(turns) > 0 for turns in result["tokens_per_second"].values())
    run_tg("ablate", *flags, "--only", "policy gradient", "--seeds", "5")
    (trained,) = (tmp_path / "cells").iterdir()
    assert trained.name == "method-policy-gradient-5"
    result = json.loads((tmp_path / "ablation-method.json").read_text())
    assert list(result["values"]) == ["greedy", "policy gradient, seed 5"]
