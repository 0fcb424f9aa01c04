"""From ids to words, as fairseq's commands do it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import List

import pytest
import sacrebleu
from fairseq import options, tasks
from fairseq.data import Dictionary
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_tg import text as text_module
from fairseq_tg.corpus.scoring import WordBLEU
from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.subset import read_subset, read_subsets
from fairseq_tg.subwords import WordOptions
from fairseq_tg.text import Words
from tests.conftest import USER_DIR, run, task_config

MOSES = WordOptions(tokenizer="moses")


def dictionary(*symbols: str) -> Dictionary:
    made = Dictionary()
    for symbol in symbols:
        made.add_symbol(symbol)
    return made


def test_subwords_are_joined_and_tokens_detokenised() -> None:
    made = dictionary("it", "&apos;s", "a", "do@@", "g", ",", ".")
    tokens = [*range(4, 11), made.eos()]
    assert Words(made)(tokens) == "it &apos;s a dog , ."
    assert Words.of(made, MOSES, "en")(tokens) == "it's a dog,."
    pieces = dictionary("\u2581a", "\u2581do", "g")
    assert Words(pieces)([4, 5, 6, 2]) == "a dog"
    assert Words(pieces, subwords="none")([4, 5, 6]) == "\u2581a \u2581do g"
    assert Words.of(dictionary("do@-@", "g"), WordOptions(bpe="characters"), "en")([4, 5]) == "do@-@g"
    assert (Words(made)([3]), Words(made)([3], reference=True)) == ("<unk>", "<<unk>>")


@settings(deadline=None)
@given(tokens=st.lists(st.integers(0, 9)), reference=st.booleans(), subwords=st.sampled_from(["none", "subword_nmt"]))
def test_ids_become_what_fairseqs_dictionary_gives(tokens: List[int], reference: bool, subwords: str) -> None:
    made = dictionary("a", "do@@", "g", "__en__", ",", "\u2581x")
    words = Words(made, subwords=subwords, marks={7})
    assert words(tokens, reference) == made.string(tokens, subwords, reference, extra_symbols_to_ignore={7})


def test_the_vocabulary_is_looked_through_once(monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(text_module, "guess_subwords", lambda symbols: calls.append(len(symbols)))
    words = Words(dictionary("a", "b"))
    assert [words([4, 5, 2]) for _ in range(3)] == ["a b"] * 3 and calls == [6]


@pytest.mark.parametrize(
    "given, message",
    [
        (WordOptions(tokenizer="mose"), "--tokenizer mose: fairseq has moses, nltk, space"),
        (WordOptions(bpe="bpe"), "--bpe bpe: fairseq has .*sentencepiece"),
        (WordOptions(bpe="sentencepiece", sentencepiece_model="none.model"), "--bpe sentencepiece cannot .*none.model"),
    ],
)
def test_what_cannot_be_decoded_is_said(given: WordOptions, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Words.of(dictionary("a"), given, "en")


def test_fairseqs_commands_take_the_flags(workspace) -> None:
    given = WordOptions(tokenizer="moses", bpe="subword_nmt", bpe_codes="codes")
    flags = [workspace.data, "--user-dir", USER_DIR, "--path", "x", *given.flags("de", "en")]
    args = options.parse_args_and_arch(options.get_generation_parser(), flags)
    assert (args.tokenizer, args.bpe, args.bpe_codes, args.target_lang) == ("moses", "subword_nmt", "codes", "en")
    assert WordOptions().flags("de", "en") == []
    assert WordOptions(sentencepiece_model="m").flags("de", "en") == []  # which fairseq takes with --bpe alone
    flags = [workspace.data, "--arch", "transformer", "--eval-bleu", *given.validation_flags(["a", "b@@"], "de")]
    args = options.parse_args_and_arch(options.get_training_parser(), flags)
    assert (args.eval_bleu_detok, json.loads(args.eval_bleu_detok_args)) == ("moses", {"target_lang": "de"})
    assert args.eval_bleu_remove_bpe == "subword_nmt"
    assert WordOptions().validation_flags(["a", "b"], "de") == ["--eval-bleu-detok", "space"]
    usual = WordOptions(sacrebleu_tokenizer="13a")  # as stages of before had it, without being told
    assert usual.given() == {} and usual.flags("de", "en") == ["--sacrebleu-tokenizer=13a"]
    # what marks do not join is decoded, with its files by fairseq's names
    decoded = WordOptions(bpe="byte_bpe", sentencepiece_model="m", sacrebleu_tokenizer="char")
    subwords = ["--bpe=byte_bpe", "--sentencepiece-model-path=m"]
    assert decoded.flags("de", "ja") == ["--sacrebleu-tokenizer=char", *subwords]
    assert decoded.validation_flags(["a", "\u2581"], "ja")[2:] == ["--sacrebleu-tokenizer=char", *subwords]
    pieces = WordOptions(bpe="sentencepiece", sentencepiece_model="m")
    assert pieces.validation_flags(["a", "b"], "ja")[2:] == ["--eval-bleu-remove-bpe", "sentencepiece"]


class Limits:
    def __init__(self, *limits: int) -> None:
        self.limits = limits

    def max_positions(self):
        return self.limits


def test_a_subset_is_read_in_words(tmp_path: Path) -> None:
    (tmp_path / "test.xx").write_text("it &apos;s a d@@ og .\nd@@ og\n")
    (tmp_path / "test.yy").write_text("er , d@@ er H@@ und .\nH@@ und\n")
    flags = ["-s", "xx", "-t", "yy", "--testpref", tmp_path / "test", "--workers", "1", "--destdir", tmp_path / "bin"]
    run("fairseq-preprocess", *flags, "--trainpref", tmp_path / "test", "--thresholdtgt", "2")
    task = tasks.setup_task(task_config(str(tmp_path / "bin")))
    plain = read_subset(task, "test", Limits(7, 7))
    assert plain.references == ["er <<unk>> <<unk>> er Hund <<unk>>", "Hund"]
    assert plain.source_text == ["it &apos;s a dog .", "dog"]
    assert read_subset(task, "test", Limits(7, 7), MOSES).source_text == ["it 's a dog.", "dog"]  # xx is not English
    assert len(read_subset(task, "test", Limits(7, 7), most=1).sources) == 1
    assert len(read_subset(task, "test", Limits(7, 3)).sources) == 2  # a target may be long that no model reads
    for limits in ((6, 9), (9, 6)):
        with pytest.raises(UserError, match=r"'test' has a sentence of \d tokens, and the model takes up to 6: leave"):
            read_subset(task, "test", Limits(*limits), scores_targets=True)
    with pytest.raises(UserError, match="--subset test,test has a name twice"):
        read_subsets(task, ["test", "test"], Limits(7, 7))


def test_word_bleu_is_sacrebleus() -> None:
    hypotheses = ["a dog runs over the green grass .", "two men", ""]
    references = ["the dog runs over green grass .", "two men sit on a bench", "no"]
    scorer = WordBLEU()
    for hypothesis, reference in zip(hypotheses, references):
        scorer.add_string(reference, hypothesis)
    expected = sacrebleu.corpus_bleu(hypotheses, [references])
    assert scorer.score() == pytest.approx(expected.score) and expected.score > 5
    assert scorer.result_string().startswith(expected.format()) and "|tok:13a|" in scorer.result_string()
    assert WordBLEU().score() == 0
