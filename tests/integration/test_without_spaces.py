"""A language that is written without spaces, through every command: its words are counted the same way in all."""

from __future__ import annotations

import gzip
import json
import random
import re
import shlex
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple

import pytest
import sacrebleu
import sentencepiece
from fairseq.data import Dictionary
from fairseq.data.encoders.bytes import Bytes
from fairseq.data.encoders.characters import Characters

from fairseq_tg.corpus.directory import CorpusDirectory
from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.subset import read_subset
from fairseq_tg.loading.checkpoints import load_checkpoint
from fairseq_tg.subwords import WordOptions
from fairseq_tg.tasks import layer, validation
from fairseq_tg.tasks.loading import load_model
from tests.conftest import BASES, IN_PROCESS, TRAIN_BASE, USER_DIR, run, run_tg
from tests.multilingual import World, make_world

HAN = [chr(0x4E00 + 37 * i) for i in range(60)]
#: A word is one to three characters, or a word in Latin letters
WORDS = [HAN[i] if i % 3 == 0 else HAN[i] + HAN[-i] + HAN[i // 2] * (i % 2) for i in range(1, 20)] + ["Signal", "Web"]


def sentences(count: int, seed: int) -> List[List[str]]:
    """Source and target."""
    chance = random.Random(seed)
    numbers = [chance.choices(range(len(WORDS)), k=chance.randint(3, 9)) for _ in range(count)]
    return [[" ".join(f"w{i}" for i in s), "".join(WORDS[i] for i in s) + "。"] for s in numbers]


class Language(NamedTuple):
    """Data, a base and the text of its targets, by split."""

    data: Path
    base: Path
    text: Dict[str, List[str]]

    def generate(self, split: str, path: Path, *flags: Any) -> str:
        return run(
            *("fairseq-generate", self.data, "--user-dir", USER_DIR, "--task", "tg_translation", "--path", path),
            *("--gen-subset", split, "--max-len-b", "40", *IN_PROCESS, *flags),
        )

    def greedy(self, split: str, path: Path, *flags: Any) -> List[str]:
        """The greedy translations, in the data's order."""
        lines = re.findall(r"^D-(\d+)\t[^\t]*\t(.*)$", self.generate(split, path, "--beam", "1", *flags), re.MULTILINE)
        return [text for _, text in sorted((int(number), text) for number, text in lines)]


def make(directory: Path, language: str, encode: Callable[[str], str], epochs: int = 12) -> Language:
    text: Dict[str, List[str]] = {}
    for seed, (split, count) in enumerate((("train", 120), ("valid", 16), ("test", 16))):
        source, text[split] = map(list, zip(*sentences(count, seed)))
        (directory / f"{split}.src").write_text("\n".join(source) + "\n")
        (directory / f"{split}.{language}").write_text("\n".join(map(encode, text[split])) + "\n")
    splits = [word for split in ("train", "valid", "test") for word in (f"--{split}pref", directory / split)]
    run(*("fairseq-preprocess", "-s", "src", "-t", language, *splits, "--destdir", directory / "bin", "--workers", "1"))
    train = shlex.split(f"{BASES['fconv']} {TRAIN_BASE} --max-epoch {epochs}")
    run("fairseq-train", directory / "bin", *train, "--save-dir", directory / "base", *IN_PROCESS)
    return Language(directory / "bin", directory / "base" / "checkpoint_last.pt", text)


@pytest.fixture(scope="module")
def language(tmp_path_factory) -> Language:
    """Of a name that says nothing, in subwords."""
    directory = tmp_path_factory.mktemp("unspaced")
    (directory / "text").write_text("\n".join(target for _, target in sentences(120, 0)) + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=str(directory / "text"),
        model_prefix=str(directory / "sp"),
        vocab_size=90,
        character_coverage=1.0,
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(directory / "sp.model"))
    return make(directory, "tgt", lambda line: " ".join(pieces.encode(line, out_type=str)))


@pytest.fixture(scope="module")
def recipe(language, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "work"
    flags = ["--data", language.data, "--base", language.base, "--out", out, "--beam", "4", "--workers", "1"]
    flags += ["--epochs", "1", "--max-tokens", "400", "--rounds", "1", "--selection", "top1"]
    return out, flags, run_tg("run", *flags)


def bleu(outputs: List[str], references: List[str], tokenizer: str = "zh") -> float:
    return sacrebleu.corpus_bleu(outputs, [references], tokenize=tokenizer).score


def test_run_scores_what_sacrebleu_scores(language, recipe):
    out, _, printed = recipe
    assert "words are counted by sacreBLEU's zh: tgt is written without spaces (--sacrebleu-tokenizer)" in printed
    found = json.loads((out / "report" / "report.json").read_text())
    joined = ["--remove-bpe", "sentencepiece"]
    for name, path in (("greedy", language.base), ("tg", out / "actor" / "checkpoint_best.pt")):
        expected = bleu(language.greedy("test", path, *joined), language.text["test"])
        assert found["scores"]["values"][name]["BLEU"] == pytest.approx(expected)
        assert found["sets"]["test"]["bleu"][name] == pytest.approx(expected)
    assert expected > 3
    signatures = found["scores"]["signatures"]
    assert "|tok:zh|" in signatures["BLEU"] and "|tok:zh|" in signatures["METEOR"]
    assert "TER" not in signatures and "no TER: zh counts characters" in (out / "report" / "report.txt").read_text()


def test_the_corpus_is_chosen_by_these_words(recipe, language):
    out, _, _ = recipe
    recorded = CorpusDirectory(str(out / "pseudo-bin")).manifest["recipe"]
    assert "|tok:zh|" in recorded["signature"] and recorded["objective"].startswith("sbleu")
    extra = int(recorded["objective"].partition("+")[2] or 0)
    checked = 0
    with gzip.open(out / "pseudo-bin" / "kbest.jsonl.gz", "rt") as lines:
        for sentence in map(json.loads, lines):
            reference = language.text["train"][sentence["id"]]
            for hypothesis in sentence["hypotheses"]:
                metric = sacrebleu.BLEU(effective_order=True, tokenize="zh")
                found = metric.sentence_score(hypothesis["text"], [reference])
                if extra:
                    lengths = found.sys_len, found.ref_len + extra
                    found = metric.compute_bleu(
                        found.counts, found.totals, *lengths, smooth_method="add-k", smooth_value=1
                    )
                assert hypothesis["objective"] == pytest.approx(found.score)
                checked += 1
    assert checked == 480


def test_validations_choose_by_these_words(language, recipe):
    out, _, _ = recipe
    path = out / "actor" / "checkpoint_best.pt"
    expected = bleu(language.greedy("valid", path, "--remove-bpe", "sentencepiece"), language.text["valid"])
    assert load_checkpoint(str(path))["extra_state"]["best"] == pytest.approx(expected, abs=0.006)
    assert json.loads((out / "actor" / "stage.json").read_text())["settings"]["sacrebleu_tokenizer"] == "zh"


def test_other_words_are_other_settings(recipe, tmp_path):
    out, flags, _ = recipe
    files = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    run_tg("run", *flags)
    run_tg("run", *flags, "--sacrebleu-tokenizer", "zh")  # which it found itself
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == files
    with pytest.raises(UserError, match=r"was begun with other settings: .*signature was .*zh"):
        run_tg("run", *flags, "--sacrebleu-tokenizer", "char")
    refused = {
        "chinese": "--sacrebleu-tokenizer chinese: sacreBLEU has none, zh, 13a",
        "13a": "the references of test have 1.0 words each, as 13a counts them",
    }
    for name, message in refused.items():
        other = [tmp_path / "out" if flag == out else flag for flag in flags]
        with pytest.raises(UserError, match=message) as raised:
            run_tg("run", *other, "--sacrebleu-tokenizer", name)
        assert "\n" not in str(raised.value) and not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="--objective ter: an edit rate of characters"):
        run_tg("run", *other, "--objective", "ter")


@pytest.mark.parametrize("more", [[], ["--scoring", "sacrebleu"], ["--sacrebleu-tokenizer", "char"]])
def test_generate_ends_with_the_score_of_these_words(language, more, tmp_path):
    printed = language.generate("train", language.base, "--beam", "4", "--kbest-dir", tmp_path / "x", *more)
    tokenizer = more[1] if "char" in more else "zh"
    chosen = dict(re.findall(r"^D-(\d+)\t[^\t]*\t(.*)$", printed, re.MULTILINE))
    expected = bleu([chosen[str(i)] for i in range(120)], language.text["train"], tokenizer)
    assert f": BLEU = {expected:.2f} " in printed.splitlines()[-1]
    assert f"|tok:{tokenizer}|" in CorpusDirectory(str(tmp_path / "x")).manifest["recipe"]["signature"]


@pytest.mark.parametrize(
    "bpe, encode, name, tokenizer, epochs",
    [("characters", Characters.encode, "tgt", "zh", 14), ("bytes", Bytes.encode, "ja", "char", 3)],
)
def test_data_of_characters_is_scored_as_text_in_validations(bpe, encode, name, tokenizer, epochs, tmp_path):
    """As fairseq-generate and reports do it. Japanese needs no further package."""
    made = make(tmp_path, name, encode, epochs)
    flags = WordOptions(bpe=bpe).validation_flags(Dictionary.load(f"{made.data}/dict.{name}.txt").symbols, name)
    run(
        *("fairseq-train", made.data, "--user-dir", USER_DIR, "--task", "tg_translation", "--arch", "tg_fconv"),
        *("--base-checkpoint", made.base, "--criterion", "actor_cross_entropy", "--optimizer", "adam", *IN_PROCESS),
        *("--max-epoch", "1", "--max-tokens", "2000", "--save-dir", tmp_path / "tg", "--log-format", "none"),
        *("--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric", "--eval-bleu", *flags),
        *("--eval-bleu-args", '{"beam": 1, "max_len_b": 40}'),
    )
    path = tmp_path / "tg" / "checkpoint_best.pt"
    expected = bleu(made.greedy("valid", path, "--bpe", bpe), made.text["valid"], tokenizer)
    assert load_checkpoint(str(path))["extra_state"]["best"] == pytest.approx(expected, abs=0.006) and expected > 0.1
    model, task = load_model(str(path), str(made.data))
    subset = read_subset(task, "valid", model, WordOptions(bpe=bpe))
    assert subset.references == made.text["valid"] and subset.tokenizer == tokenizer


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def test_every_pair_of_a_corpus_is_counted_in_its_own_way(world, monkeypatch, tmp_path):
    monkeypatch.setattr(layer, "find_tokenizer", lambda language, *_: "char" if language == "bb" else "13a")
    printed = run(
        *("fairseq-generate", world.data, *world.flags("m2m"), "--lang-pairs", "en-aa,en-bb", *IN_PROCESS, "--path"),
        *(world.base("m2m"), "--gen-subset", "valid", "--beam", "3", "--max-len-b", "20", "--kbest-jsonl"),
        *("--kbest-dir", tmp_path / "x"),
    )
    assert "|tok:by-language|" in printed.splitlines()[-1]
    signature = CorpusDirectory(str(tmp_path / "x")).manifest["recipe"]["signature"]
    assert re.fullmatch(r"en-aa nrefs:.*\|tok:13a\|.*; en-bb nrefs:.*\|tok:char\|.*", signature)
    references = [(world.directory / f"valid.{x}-en.{x}").read_text().splitlines() for x in ("aa", "bb")]
    with gzip.open(tmp_path / "x" / "kbest.jsonl.gz", "rt") as lines:
        found = list(map(json.loads, lines))
    for sentence, reference in zip(sorted(found, key=lambda one: one["id"]), [*references[0], *references[1]]):
        metric = sacrebleu.BLEU(effective_order=True, tokenize="13a" if sentence["id"] < 12 else "char")
        for hypothesis in sentence["hypotheses"]:
            expected = metric.sentence_score(hypothesis["text"], [reference]).score
            assert hypothesis["objective"] == pytest.approx(expected)


def test_validations_of_several_languages_count_each_text_by_itself(world, monkeypatch, tmp_path):
    flags = ["--lang-pairs", "en-aa,en-bb", "--eval-bleu", "--eval-bleu-args", '{"beam": 1}']
    flags += ["--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"]
    best = []
    for name, usual in (("plain", True), ("each", False)):
        monkeypatch.setattr(validation, "all_usual", lambda *_, usual=usual: usual)
        world.train("m2m", tmp_path / name, *flags)
        best.append(load_checkpoint(str(tmp_path / name / "checkpoint_best.pt"))["extra_state"]["best"])
    assert best[0] == best[1] > 0  # each of these is divided by spaces
    asked = []
    monkeypatch.setattr(validation, "divide_any", lambda text: asked.append(text) or " ".join(text))
    world.train("m2m", tmp_path / "letters", *flags)
    assert len(asked) >= 48 and any(re.fullmatch(r"(a\d ?)+", text) for text in asked)


def test_two_ways_of_counting_at_once_are_refused(language, tmp_path):
    with pytest.raises(UserError, match="--eval-tokenized-bleu counts what spaces divide: give it or"):
        run(
            *("fairseq-train", language.data, "--user-dir", USER_DIR, "--task", "tg_translation", "--arch", "tg_fconv"),
            *("--base-checkpoint", language.base, "--criterion", "actor_cross_entropy", "--eval-bleu", *IN_PROCESS),
            *("--eval-tokenized-bleu", "--sacrebleu-tokenizer", "zh", "--max-tokens", "400", "--save-dir", tmp_path),
        )
