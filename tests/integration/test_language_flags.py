"""Models of many languages: flags, dictionaries and languages that are not those of the checkpoint are refused."""

from __future__ import annotations

import shlex

import pytest
from fairseq import checkpoint_utils
from fairseq.data import Dictionary

from fairseq_tg.compiled.translator import Translator
from fairseq_tg.errors import UserError
from fairseq_tg.loading.checkpoints import load_checkpoint
from tests.conftest import IN_PROCESS, hypotheses, run, run_tg
from tests.multilingual import BART, KINDS, LANGUAGES, MULTI

BAD = [
    ("m2m", ["-s", "zz", "-t", "en"], "language pair zz-en contains languages that are not in the language dictionary"),
    ("m2m", ["-s", "aa", "-t", "bb"], "there are no sentences of aa-bb for 'valid'"),
    ("m2m", ["-s", "aa"], "one of --source-lang and --target-lang is missing"),
    ("m2m", [], "no language to translate into: give --source-lang and --target-lang"),
    (
        "m2m",
        ["-s", "aa", "-t", "en", "--langs", "en,bb,aa"],
        "was trained with --langs aa,bb,en, and here it is en,bb,aa",
    ),
    (
        "m2m",
        ["-s", "aa", "-t", "en", "--encoder-langtok", "tgt"],
        "trained with --encoder-langtok src, and here it is tgt",
    ),
    ("m2m", ["-s", "aa", "-t", "en", "--lang-tok-style", "odd"], "argument --lang-tok-style: invalid choice"),
    (
        "m2m",
        ["-s", "aa", "-t", "en", "--langtoks", "{'main': ('tgt', 'tgt')}"],
        "trained with --encoder-langtok src, and here it is tgt: give the same",
    ),
    (
        "m2m",
        ["-s", "aa", "-t", "en", "--langtoks", "{'main': ('src', None)}"],
        "trained with --decoder-langtok, and this command is not so: add it",
    ),
    ("m2m", ["-s", "aa", "-t", "en", "--enable-lang-ids"], "--enable-lang-ids is for models that are told numbers"),
    ("m2m", ["--langtoks", "main"], "is no Python dictionary: name 'main' is not defined"),
    ("m2m", ["--lang-pairs", "aa_en"], "--lang-pairs aa_en: give pairs of languages, as de-en,en-de"),
    ("m2m", ["-s", "aa", "-t", "en", "--lang-pairs", "aa_en"], "--lang-pairs aa_en: give pairs of languages"),
    ("mbart25", ["-s", "aa"], "one of --source-lang and --target-lang is missing: give both, or neither"),
    ("mbart25", ["-s", "aa", "-t", "zz"], "there is no '.*dict.zz.txt': give languages whose dictionaries are in"),
    ("mbart25", ["-s", "aa", "-t", "en", "--langs", "aa,bb"], "the model does not know 'en': --langs has aa,bb"),
    ("mbart25", ["-s", "aa", "-t", "en", "--prepend-bos"], "trained with no --prepend-bos"),
    ("mbart25", ["-s", "en", "-t", "aa"], "the checkpoint was trained for aa-en, and here it is en-aa: give the same"),
    ("mbart25", ["-s", "bb", "-t", "en"], "the checkpoint was trained for aa-en, and here it is bb-en: give the same"),
]


@pytest.mark.parametrize("kind, flags, message", BAD)
def test_bad_input_is_one_line(world, kind, flags, message):
    base = world.base(kind)
    with pytest.raises(UserError, match=message) as raised:
        run(
            *("fairseq-generate", world.data, *world.flags(kind), "--path", base, "--gen-subset", "valid"),
            *(*IN_PROCESS, *flags),
        )
    assert "\n" not in str(raised.value)


def test_flags_that_disagree_with_the_checkpoints_are_refused(world, tmp_path):
    base = world.base("m2m")
    flags = [flag for flag in world.flags("m2m") if flag != "--decoder-langtok"]
    common = (
        *("fairseq-generate", world.data, "--path", base, "--gen-subset", "valid", *IN_PROCESS),
        "-s",
        "aa",
        "-t",
        "en",
    )
    with pytest.raises(UserError, match="trained with --decoder-langtok, and this command is not so: add it"):
        run(*common, *flags)
    with pytest.raises(UserError, match=f"is of --task {MULTI}.*: use --task tg_{MULTI}"):
        run(*common, *flags[:2], "--task", "tg_translation")
    with pytest.raises(UserError, match="no --langs: give the languages of the model's pretraining"):
        run(*common, *flags[:2], "--task", f"tg_{BART}")
    with pytest.raises(UserError, match="trained with --decoder-langtok"):
        run(
            *("fairseq-train", world.data, *flags, "--arch", "tg_transformer", "--base-checkpoint", base),
            *("--criterion", "actor_cross_entropy", "--save-dir", tmp_path, "--max-tokens", "400", *IN_PROCESS),
        )
    assert not list(tmp_path.iterdir())


def test_places_of_symbols_may_be_given_in_either_way(world):
    expected = hypotheses(world.generate("m2m", "aa-en", world.base("m2m"), "--beam", "1"))
    langtoks = ["--langtoks", "{'main': ('src', 'tgt')}", "--encoder-langtok", "tgt"]  # which --langtoks goes before
    assert hypotheses(world.generate("m2m", "aa-en", world.base("m2m"), "--beam", "1", *langtoks)) == expected


def without(flags, *names):
    """Flags without these and their values."""
    return [flag for name, flag in zip(["", *flags], flags) if not {name, flag} & {*names}]


def test_languages_from_a_file_are_in_its_order(world, tmp_path):
    """Whether the checkpoint is fairseq's, which has the file's name, or ours, which has the languages."""
    file, other, base = tmp_path / "langs.txt", tmp_path / "other.txt", tmp_path / "base"
    file.write_text("en\naa\nbb\n")
    other.write_text("aa\nbb\nen\n")
    flags, (task, _, model) = without(world.flags("m2m"), "--langs"), KINDS["m2m"]
    common = ["--max-tokens", "400", "--max-update", "2", "--optimizer", "adam", *IN_PROCESS, "--lang-dict", file]
    theirs = [*without(flags, "--task"), "--task", task]
    run("fairseq-train", world.data, *theirs, *shlex.split(model), *common, "--save-dir", base)
    actors = ["--arch", "tg_transformer", "--base-checkpoint", base / "checkpoint_last.pt"]
    actors += ["--criterion", "actor_cross_entropy"]
    run("fairseq-train", world.data, *flags, *actors, *common, "--save-dir", tmp_path / "tg")
    generate = ["fairseq-generate", world.data, *flags, "-s", "aa", "-t", "en", "--gen-subset", "valid", *IN_PROCESS]
    message = "was trained with --langs en,aa,bb, and here it is aa,bb,en: give the same"
    for path in (base, tmp_path / "tg"):
        checkpoint = path / "checkpoint_last.pt"
        assert len(hypotheses(run(*generate, "--path", checkpoint, "--lang-dict", file))) == 12
        with pytest.raises(UserError, match=message):
            run(*generate, "--path", checkpoint, "--lang-dict", other)
    with pytest.raises(UserError, match=message):
        run("fairseq-train", world.data, *flags, *actors, *common, "--lang-dict", other, "--save-dir", tmp_path / "no")
    assert not list((tmp_path / "no").iterdir())
    assert load_checkpoint(str(base / "checkpoint_last.pt"))["cfg"]["task"].lang_dict == str(file)
    file.unlink()
    checkpoint = tmp_path / "tg" / "checkpoint_last.pt"
    with pytest.raises(UserError, match=message):
        run(*generate, "--path", checkpoint, "--lang-dict", other)
    run_tg("compile", checkpoint, tmp_path / "model.tg", "--no-subword")
    assert Translator.load(str(tmp_path / "model.tg"), source_lang="aa", target_lang="en").translate(["a1"])


def test_another_dictionary_is_refused(world, tmp_path):
    """One of the same size, in another order: of a model of many languages, and of one pair."""
    symbols = [f"{word} 1" for word in Dictionary.load(str(world.directory / "dict.txt")).symbols[4:]]
    symbols += [f"__{lang}__ 1" for lang in ("aa", "bb", "en")]
    for name, lines in (("fixed", symbols), ("other", [*symbols[1:], symbols[0]])):
        (tmp_path / f"{name}.txt").write_text("\n".join([*lines, ""]))
    fixed, other = (["--fixed-dictionary", tmp_path / f"{name}.txt"] for name in ("fixed", "other"))
    flags, (task, _, model) = world.flags("m2m"), KINDS["m2m"]
    common = ["--max-tokens", "400", "--max-update", "2", "--optimizer", "adam", *IN_PROCESS]
    theirs = [*without(flags, "--task"), "--task", task, *shlex.split(model), *fixed]
    run("fairseq-train", world.data, *theirs, *common, "--save-dir", tmp_path / "base")
    base = tmp_path / "base" / "checkpoint_last.pt"
    tg = world.train("m2m", tmp_path / "tg", "--base-checkpoint", base, "--max-update", "2", *fixed)
    generate = ["fairseq-generate", world.data, *flags, "-s", "aa", "-t", "en", "--gen-subset", "valid", *IN_PROCESS]
    for path in (base, tg):
        assert len(hypotheses(run(*generate, "--path", path, *fixed))) == 12
        with pytest.raises(UserError, match=r"trained with --fixed-dictionary .*fixed.txt, which has other symbols"):
            run(*generate, "--path", path, *other)
    (tmp_path / "fixed.txt").rename(tmp_path / "moved.txt")
    moved = ["--fixed-dictionary", tmp_path / "moved.txt"]
    assert len(hypotheses(run(*generate, "--path", tg, *moved))) == 12
    with pytest.raises(UserError, match="the model was trained with other dictionaries: these are as large"):
        run(*generate, "--path", tg, *other)
    # fairseq would put the symbols behind the others, and translate into any language
    (tmp_path / "without.txt").write_text("\n".join([*symbols[:-2], ""]))
    for path in (base, tg):
        with pytest.raises(UserError, match=r"without.txt has no __bb__, __en__: give the dictionary that the model"):
            run(*generate, "--path", path, "--fixed-dictionary", tmp_path / "without.txt")


def test_pairs_from_a_file_are_recorded(world, tmp_path):
    """fairseq takes the name of a file for --lang-pairs, too."""
    (tmp_path / "pairs").write_text("aa-en,en-bb\n")
    tg = world.train("m2m", tmp_path / "tg", "--lang-pairs", tmp_path / "pairs")
    assert load_checkpoint(tg)["cfg"]["task"]["lang_pairs"] == "aa-en,en-bb"
    (tmp_path / "pairs").unlink()
    run_tg("compile", tg, tmp_path / "model.tg", "--no-subword")
    assert Translator.load(str(tmp_path / "model.tg"), source_lang="aa", target_lang="en").translate(["a1"])


def test_what_does_not_know_symbols_says_so(world, tmp_path):
    with pytest.raises(UserError, match="sources are changed without their language symbols"):
        world.train("m2m", tmp_path / "changed", "--source-noise", "0.1")
    with pytest.raises(UserError, match="actor_policy_gradient does not know this task's language symbols"):
        world.train("m2m", tmp_path / "rewarded", "--criterion", "actor_policy_gradient")


@pytest.mark.parametrize(
    "kind, changed", [("m2m", {"encoder_langtok": "tgt"}), ("mbart50", {"decoder_langtok": False})]
)
def test_flags_that_take_the_place_of_recorded_ones_are_compared(world, kind, changed, tmp_path):
    """fairseq-validate and the hub write what they are given over a checkpoint's own record."""
    tg, actors = world.train(kind, tmp_path / "tg", "--max-update", "1"), str(tmp_path / "actor.safetensors")
    run_tg("actor", "export", tg, actors)
    pair = {"data": world.data, "source_lang": "aa", "target_lang": "en"}
    others = {"langs": ",".join(reversed(LANGUAGES))}
    for path, given, wrong in ((tg, pair, changed), (world.base(kind), {**pair, "actor_weights": actors}, others)):
        (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([path], arg_overrides=given)
        assert model.sites()
        with pytest.raises(UserError, match=f"the checkpoint was trained with --{next(iter(wrong)).replace('_', '-')}"):
            checkpoint_utils.load_model_ensemble_and_task([path], arg_overrides={**given, **wrong})


def test_symbols_that_a_model_puts_between_words_are_not_printed(world):
    """Of a pair that it was not trained for, say."""
    flags = [*world.flags("m2m"), "-s", "aa", "-t", "bb", "--path", world.base("m2m"), *IN_PROCESS]
    flags += ["--input", world.directory / "valid.aa-en.aa", "--max-len-b", "8", "--beam", "5", "--nbest", "5"]
    printed = [run("fairseq-interactive", world.data, *flags, *more) for more in ([], ["--keep-inference-langtok"])]
    plain, kept = ([line for line in text.splitlines() if line.startswith("D-")] for text in printed)
    assert "__bb__" in str(kept) and "__en__" in str(kept) and "__" not in str(plain)
