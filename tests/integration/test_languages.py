"""Models of many languages: their symbols are where they belong, in every task that has them."""

from __future__ import annotations

import gzip
import json
import shlex

import pytest
import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.data import Dictionary, data_utils
from fairseq.dataclass.configs import GenerationConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf

from fairseq_tg.compiled.translator import Translator
from fairseq_tg.corpus.drawing import Candidates
from fairseq_tg.errors import UserError
from fairseq_tg.loading.checkpoints import fingerprint, load_checkpoint, split_tensors
from fairseq_tg.tasks import multi_simple_epoch
from tests.conftest import IN_PROCESS, REPO, USER_DIR, hypotheses, run, run_forked, run_tg, stir
from tests.multilingual import _BART, BART, KINDS, MULTI, PAIRS
from tests.service import Server

PAIR = "aa-en"
OF_MANY = [kind for kind in KINDS if KINDS[kind][0] == MULTI]


def make_task(world, kind, *flags):
    pair = [] if flags else ["-s", "aa", "-t", "en"]
    parser = options.get_generation_parser()
    words = [world.data, *world.flags(kind), "--path", "unused", *pair, *map(str, flags)]
    return tasks.setup_task(convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words)).task)


def batch_of(task):
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    return dataset.collater([dataset[i] for i in range(4)])


def symbols(task, kind):
    """Of the source language, of the target language."""
    style = "[{}]" if KINDS[kind][2] is _BART else "__{}__"
    return [task.target_dictionary.index(style.format(lang)) for lang in PAIR.split("-")]


@pytest.mark.parametrize("kind", KINDS)
def test_symbols_are_where_the_model_wants_them(world, kind):
    task = make_task(world, kind)
    batch = batch_of(task)
    aa, en = symbols(task, kind)
    bos, eos, pad = (getattr(task.target_dictionary, name)() for name in ("bos", "eos", "pad"))
    source = [[token for token in row if token != pad] for row in batch["net_input"]["src_tokens"].tolist()]
    target = [[token for token in row if token != pad] for row in batch["target"].tolist()]
    given = batch["net_input"]["prev_output_tokens"].tolist()
    before, after, starts, ends, first = {
        "m2m": ([aa], [eos], [en], [eos], [eos, en]),
        "tagged": ([en], [eos], [], [eos], [eos]),
        "replaced": ([], [aa], [], [eos], [en]),
        "mbart50": ([aa], [eos], [en], [eos], [eos, en]),
        "mbart25": ([], [eos, aa], [], [eos, en], [en]),
        "bos": ([bos], [eos, aa], [bos], [eos, en], [en, bos]),
    }[kind]
    words = {task.source_dictionary.index(f"a{i}{end}") for i in range(8) for end in ("", "x")}
    for row in source:
        assert row[: len(before)] == before and row[-len(after) :] == after
        assert set(row[len(before) : len(row) - len(after)]) <= words
    for row, shifted in zip(target, given):
        assert row[: len(starts)] == starts and row[-len(ends) :] == ends
        assert shifted[: len(first)] == first
        inner = row[len(starts) : len(row) - len(ends)]
        assert task.strip(row) == inner
        assert task.strip([*starts, *inner[:1], en, *inner[1:], aa, *ends]) == inner  # as a search may put them
    known = Dictionary.load(f"{world.data}/dict.en.txt")
    assert {task.target_dictionary[i] for i in range(len(known), len(task.target_dictionary))} == {
        task.target_dictionary[mark] for mark in task.marks - {bos}
    }
    assert task.empty_sizes == (len(before) + len(after), len(starts) + len(ends))


@pytest.mark.parametrize("kind", OF_MANY)
def test_translations_are_those_of_fairseqs_own_task(world, kind):
    base = world.base(kind)
    for pair in ("aa-en", "en-bb"):
        found = hypotheses(world.generate(kind, pair, base, "--beam", "3"))
        own = world.generate(kind, pair, base, "--beam", "3", "--required-batch-size-multiple", "1", tg=False)
        assert found == hypotheses(own) and len(found) == 12
        languages = {word[0] for text in found.values() for word in text.split()}
        assert languages <= {"E" if pair.endswith("en") else pair[-1]} or kind != "m2m"


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_actor_changes_nothing(world, kind, tmp_path):
    tg, base = world.train(kind, tmp_path, "--lr", "0"), world.base(kind)
    for beam in ("1", "3"):
        outputs = [hypotheses(world.generate(kind, PAIR, path, "--beam", beam)) for path in (base, tg)]
        assert outputs[0] == outputs[1] and len(outputs[0]) == 12


@pytest.mark.parametrize("kind", KINDS)
def test_teacher_forced_is_incremental_is_native(world, kind):
    task = make_task(world, kind)
    arch = "tg_bart" if KINDS[kind][2] is _BART else "tg_transformer"
    config = OmegaConf.create({"_name": arch, "base_checkpoint": world.base(kind), "actor": "ff"})
    model = stir(task.build_model(config), 0.3).eval()
    generation = OmegaConf.structured(GenerationConfig(beam=1, max_len_b=15))
    model.prepare_for_inference_(OmegaConf.create({"generation": generation}))
    batch = batch_of(task)
    fast = task.build_generator([model], generation)
    slow = task.build_generator([model], generation, seq_gen_cls=SequenceGenerator)
    found, expected = (task.inference_step(generator, [model], batch) for generator in (fast, slow))
    assert fast._engine is not None
    eos = batch["net_input"]["prev_output_tokens"][0, 0].item()
    for row, ((a,), (b,)) in enumerate(zip(found, expected)):
        assert a["tokens"].tolist() == b["tokens"].tolist()
        assert torch.allclose(a["positional_scores"], b["positional_scores"], atol=1e-4)
        given = torch.tensor([[eos, *a["tokens"][:-1].tolist()]])
        inputs = {name: batch["net_input"][name][row : row + 1] for name in ("src_tokens", "src_lengths")}
        with torch.no_grad():
            forced = model.get_normalized_probs(model(**inputs, prev_output_tokens=given), log_probs=True)[0]
        assert torch.allclose(forced.gather(1, a["tokens"][:, None])[:, 0], a["positional_scores"], atol=1e-4)


@pytest.mark.parametrize("kind", ["m2m", "mbart25", "mbart50"])
def test_a_search_leaves_nothing_behind_in_a_model(world, kind):
    """fairseq's BART remembers the beam of the last generator that was made for it, and then misses sources."""
    task = make_task(world, kind)
    arch = "tg_bart" if KINDS[kind][2] is _BART else "tg_transformer"
    config = OmegaConf.create({"_name": arch, "base_checkpoint": world.base(kind)})
    (base,), _ = checkpoint_utils.load_model_ensemble([world.base(kind)], task=task)
    for model in (base.eval(), task.build_model(config).eval()):
        batch = batch_of(task)
        before = model(**batch["net_input"])[0].detach()
        for beam in (4, 3):
            generation = OmegaConf.structured(GenerationConfig(beam=beam, max_len_b=5))
            generator = task.build_generator([model], generation, seq_gen_cls=SequenceGenerator)
            found = task.inference_step(generator, [model], batch)
            assert {len(hypotheses) for hypotheses in found} == {beam}
            assert torch.equal(model(**batch["net_input"])[0], before)


def build(world, kind, out, *flags):
    return run(
        *("fairseq-generate", world.data, *world.flags(kind), "--path", world.base(kind), "--gen-subset", "train"),
        *("--beam", "3", "--max-len-b", "10", "--batch-size", "32", "--kbest-dir", out, "--kbest-jsonl"),
        *("--kbest-block", "50", *IN_PROCESS, *flags),
    )


def lists(out):
    with gzip.open(out / "kbest.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def test_a_corpus_of_several_pairs(world, tmp_path):
    """Built in one go, accounted for by pair, the same as pair by pair; without a symbol of a language anywhere."""
    build(world, "m2m", tmp_path / "all")
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
    build(world, "m2m", tmp_path / "one", "-s", "en", "-t", "bb", "--kbest-engine", "fairseq")
    one = lists(tmp_path / "one")
    assert [[h["tokens"] for h in s["hypotheses"]] for s in one] == [
        [h["tokens"] for h in s["hypotheses"]] for s in found[360:]
    ]
    for index in range(2):
        build(world, "m2m", tmp_path / "shards", "--kbest-shard", f"{index}/2")
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
    build(world, kind, tmp_path / "corpus", *pair)
    assert json.loads((tmp_path / "corpus" / "manifest.json").read_text())["recipe"]["engine"] == "native"
    words = Dictionary.load(str(world.directory / "dict.txt"))
    found = lists(tmp_path / "corpus")
    assert len(found) == sentences
    for sentence in found:
        assert all(4 <= token < len(words) for h in sentence["hypotheses"] for token in h["tokens"])
    build(world, kind, tmp_path / "fairseq", *pair, "--kbest-engine", "fairseq")
    for own, theirs in zip(found, lists(tmp_path / "fairseq")):
        assert len(own["hypotheses"]) == len(theirs["hypotheses"])
        for a, b in zip(own["hypotheses"], theirs["hypotheses"]):
            assert (a["tokens"], a["score"]) == (b["tokens"], pytest.approx(b["score"], abs=1e-4))


@pytest.mark.parametrize("kind", ["m2m", "bos"])
def test_lists_are_trained_on_with_their_symbols(world, kind, tmp_path):
    """The best hypothesis of a list is in a batch as the same target is in that of any training."""
    pair, corpus = ["-s", "aa", "-t", "en"], tmp_path / "corpus"
    build(world, kind, corpus, *pair)
    task = make_task(world, kind)
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


def test_interactive_translates_what_generate_does(world, tmp_path):
    for kind in ("m2m", "mbart25"):
        base = world.base(kind)
        expected = hypotheses(world.generate(kind, PAIR, base, "--beam", "2"))
        printed = run(
            *("fairseq-interactive", world.data, *world.flags(kind), "-s", "aa", "-t", "en", "--path", base),
            *("--input", world.directory / "valid.aa-en.aa", "--beam", "2", "--max-len-b", "20", *IN_PROCESS),
        )
        assert hypotheses(printed) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_models_are_told_the_languages(world, kind, tmp_path):
    out = tmp_path / "model.tg"
    printed = run_tg("compile", world.base(kind), out, "--data", world.data, "--no-subword")
    one_pair = KINDS[kind][0] == BART  # which such a model was made for
    assert ("aa-en, no actors" if one_pair else "3 languages, no actors") in printed
    for pair in ("aa-en",) if one_pair else ("aa-en", "en-bb"):
        source, target = pair.split("-")
        translator = Translator.load(str(out), source_lang=source, target_lang=target, max_len_b=20)
        name = world.directory / f"valid.{pair if target == 'en' else f'{target}-{source}'}.{source}"
        found = translator.translate(name.read_text().splitlines())
        expected = hypotheses(world.generate(kind, pair, world.base(kind), "--beam", "1"))
        assert dict(enumerate(found)) == expected
    shown = json.loads(run_tg("explain", out, "a1 a2", "--json", "--source-lang", "aa", "--target-lang", "en"))
    assert shown["translations"]["greedy"]["text"] == translator.of_pair("aa", "en").translate(["a1 a2"])[0]
    tg = world.train(kind, tmp_path / "tg", "--max-update", "2")
    run_tg("actor", "export", tg, tmp_path / "actor.safetensors")
    acted = Translator.load(str(out), source_lang="aa", target_lang="en", actors={"a": tmp_path / "actor.safetensors"})
    assert acted.actors == ["a"] and acted.translate(["a1 a2"], actor="a")
    if one_pair:
        assert Translator.load(str(out)).translate(["a1 a2"]) == translator.of_pair("aa", "en").translate(["a1 a2"])
    else:
        with pytest.raises(ValueError, match="give --source-lang and --target-lang, of aa,bb,en"):
            Translator.load(str(out))
    with pytest.raises(ValueError, match="this model does not know 'zz': it has aa,bb,en"):
        Translator.load(str(out), source_lang="zz", target_lang="en")


def test_one_server_for_all_pairs(world, tmp_path):
    out = tmp_path / "model.tg"
    run_tg("compile", world.base("m2m"), out, "--data", world.data, "--no-subword")
    server = Server(out)
    try:
        listed = [(item["code"], item["targets"]) for item in server.ask("/languages")[1]]
        assert listed == [(code, ["aa", "bb", "en"]) for code in ("aa", "bb", "en")]
        for source, target, line in (("aa", "en", "a1 a2 a3"), ("en", "bb", "E4 E5"), ("bb", "aa", "b1 b6")):
            translator = Translator.load(str(out), source_lang=source, target_lang=target)
            assert server.translate(line, source=source, target=target) == {
                "translatedText": translator.translate([line])[0]
            }
        page = server.translate("a1 <b>a2</b> a3", source="aa", target="en", format="html")["translatedText"]
        assert page.count("<b>") == page.count("</b>") == 1 and "__" not in page
        assert server.translate("a1", source="aa", target="en", actions=True)["actions"][0]["source"][0] == "__aa__"
        fields = {"q": "a1", "source": "auto", "target": "en"}
        assert server.ask("/translate", fields)[:2] == (
            400,
            {"error": "Invalid request: this server cannot detect languages: give the source language"},
        )
        assert server.translate("a1 e2", source="en", target="en") == {"translatedText": "a1 e2"}
    finally:
        assert server.stop() == 0


def test_other_symbols_are_not_compiled(world, tmp_path, monkeypatch):
    monkeypatch.setattr(multi_simple_epoch, "PLACES", ("",))  # there are no others yet
    with pytest.raises(UserError, match="cannot be compiled: what symbols it has of its languages"):
        run_tg("compile", world.base("m2m"), tmp_path / "model.tg", "--data", world.data, "--no-subword")
    assert not list(tmp_path.iterdir())


def test_training_goes_on_exactly(world, tmp_path):
    whole = world.train("m2m", tmp_path / "whole", "--max-epoch", "2")
    world.train("m2m", tmp_path / "parts", "--max-epoch", "1")
    parts = world.train("m2m", tmp_path / "parts", "--max-epoch", "2")
    (a, b) = (split_tensors(load_checkpoint(path)["model"])[1] for path in (whole, parts))
    assert all(torch.equal(a[name], b[name]) for name in a) and a


def test_training_goes_on_exactly_in_a_pass_of_several_epochs(world, tmp_path):
    """Of 480 sentences, 100 an epoch: the second of five is the first of a training that goes on."""
    epochs = ["--virtual-epoch-size", "100", "--sampling-method", "temperature", "--sampling-temperature", "2"]
    whole = world.train("m2m", tmp_path / "whole", *epochs, "--max-epoch", "3")
    world.train("m2m", tmp_path / "parts", *epochs, "--max-epoch", "1")
    parts = world.train("m2m", tmp_path / "parts", *epochs, "--max-epoch", "3")
    (a, b) = (split_tensors(load_checkpoint(path)["model"])[1] for path in (whole, parts))
    assert all(torch.equal(a[name], b[name]) for name in a) and a


HYDRA = {
    "m2m": ("tg_transformer", ["lang_pairs='aa-en,en-bb'", "encoder_langtok=src", "decoder_langtok=true"]),
    "mbart25": ("tg_bart", ["source_lang=aa", "target_lang=en"]),
}


@pytest.mark.parametrize("kind", HYDRA)
def test_hydra_trains_a_model_of_many_languages(world, kind, tmp_path):
    arch, options = HYDRA[kind]
    done = run_forked(
        *("fairseq-hydra-train", "--config-dir", REPO / "user_dir_configs", "--config-name", "tg"),
        *(f"+model._name={arch}", f"model.base_checkpoint={world.base(kind)}", "optimization.max_update=2"),
        *(f"task._name=tg_{KINDS[kind][0]}", f"task.data={world.data}", "+task.langs='aa,bb,en'"),
        *(f"+task.{option}" for option in options),
        *(f"common.user_dir={USER_DIR}", "dataset.num_workers=0", "common.cpu=true"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = world.generate(kind, PAIR, f"{tmp_path}/checkpoints/checkpoint_last.pt", "--beam", "1")
    assert len(hypotheses(found)) == 12


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
    expected = hypotheses(world.generate("m2m", PAIR, world.base("m2m"), "--beam", "1"))
    langtoks = ["--langtoks", "{'main': ('src', 'tgt')}", "--encoder-langtok", "tgt"]  # which --langtoks goes before
    assert hypotheses(world.generate("m2m", PAIR, world.base("m2m"), "--beam", "1", *langtoks)) == expected


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


def test_a_corpus_is_for_the_pairs_it_was_built_for(world, tmp_path):
    build(world, "m2m", tmp_path / "corpus", "--lang-pairs", "aa-en,en-bb")
    assert world.train("m2m", tmp_path / "some", "--lang-pairs", "en-bb", data=tmp_path / "corpus")
    with pytest.raises(UserError, match="is of aa-en,en-bb, not of en-aa: build one of that pair"):
        world.train("m2m", tmp_path / "other", "--lang-pairs", "aa-en,en-aa", data=tmp_path / "corpus")
    build(world, "mbart25", tmp_path / "one", "-s", "aa", "-t", "en")
    with pytest.raises(UserError, match="was trained for aa-en, and here it is en-aa"):
        world.train("mbart25", tmp_path / "other", "-s", "en", "-t", "aa", data=tmp_path / "one")
    assert not list((tmp_path / "other").iterdir())


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
