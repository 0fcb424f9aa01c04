"""Sources segmented otherwise or disturbed, once in a corpus and anew in every epoch; dropout at search time."""

from __future__ import annotations

import itertools
import json
import random
import shlex
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

import pytest
import sentencepiece
import torch
from fairseq.data import Dictionary, data_utils

from fairseq_tg.corpus.assemble import merge
from fairseq_tg.corpus.directory import CorpusDirectory
from fairseq_tg.corpus.sources import ChangingSources, SourceChanges, disturb
from fairseq_tg.errors import UserError
from fairseq_tg.loading.checkpoints import load_checkpoint
from fairseq_tg.segmentations import Splits
from tests.conftest import BASES, IN_PROCESS, TRAIN_BASE, USER_DIR, run
from tests.integration.corpora import files, lists, pairs, without_command

SYLLABLES = ("ka", "lo", "mi", "ran", "to", "ve", "su")


class Pieces(NamedTuple):
    """Data in the pieces of a SentencePiece model, and a base of it."""

    data: str
    model: str
    base: str

    def sampled(self) -> List[str]:
        return ["--bpe", "sentencepiece", "--sentencepiece-model", self.model, "--source-sampling", "0.1"]

    def build(self, out: Path, *more: Any) -> Dict[str, Any]:
        run(
            *("fairseq-generate", self.data, "--user-dir", USER_DIR, "--task", "tg_translation", "--path", self.base),
            *("--gen-subset", "train", "--beam", "3", "--max-len-b", "20", "--kbest-dir", out, "--kbest-block", "8"),
            *("--batch-size", "4", "--kbest-jsonl", *IN_PROCESS, *more),
        )
        return CorpusDirectory(str(out)).manifest or {}

    def train(self, save_dir: Path, *more: Any) -> Any:
        run(
            *("fairseq-train", self.data, "--user-dir", USER_DIR, "--task", "tg_translation", "--arch", "tg_fconv"),
            *("--base-checkpoint", self.base, "--criterion", "actor_cross_entropy", "--optimizer", "adam"),
            *("--lr", "0.05", "--max-tokens", "150", "--log-format", "none", "--disable-validation", "--cpu"),
            *("--save-dir", save_dir, *more),
        )
        return load_checkpoint(f"{save_dir}/checkpoint_last.pt")["model"]


@pytest.fixture(scope="module")
def pieces(tmp_path_factory) -> Pieces:
    directory = tmp_path_factory.mktemp("pieces")
    chance = random.Random(3)
    words = ["".join(chance.choices(SYLLABLES, k=chance.randint(1, 4))) for _ in range(60)]
    lines = [" ".join(chance.choices(words, k=chance.randint(2, 6))) for _ in range(60)]
    (directory / "text").write_text("\n".join(lines) + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=str(directory / "text"), model_prefix=str(directory / "sp"), vocab_size=50, minloglevel=2
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / "sp.model"))
    for side, given in (("xx", lines), ("yy", [line[::-1] for line in lines])):
        encoded = [" ".join(processor.encode(line, out_type=str)) for line in given]
        for split, part in (("train", encoded[:24]), ("valid", encoded[50:])):
            (directory / f"{split}.{side}").write_text("\n".join(part) + "\n")
    known = [processor.id_to_piece(i) for i in range(3, len(processor))]
    (directory / "dict").write_text("".join(f"{piece} 1\n" for piece in known))
    prefixes = ["--trainpref", directory / "train", "--validpref", directory / "valid"]
    run(
        *("fairseq-preprocess", "-s", "xx", "-t", "yy", *prefixes, "--destdir", directory / "bin", "--workers", "1"),
        *("--srcdict", directory / "dict", "--tgtdict", directory / "dict"),
    )
    train = shlex.split(f"{BASES['fconv']} {TRAIN_BASE} --max-epoch 3")
    run("fairseq-train", directory / "bin", *train, "--save-dir", directory / "base", *IN_PROCESS)
    return Pieces(str(directory / "bin"), f"{directory}/sp.model", f"{directory}/base/checkpoint_last.pt")


def words(text: str) -> str:
    return text.replace(" ", "").replace("\u2581", " ").strip()


def test_sampled_segmentations_have_the_models_probabilities(pieces):
    """As often as SentencePiece's own sampling gives them, from a lattice of the sentence."""
    dictionary = Dictionary.load(f"{pieces.data}/dict.xx.txt")
    sentence = data_utils.load_indexed_dataset(f"{pieces.data}/train.xx-yy.xx")[0]
    changes = SourceChanges(dictionary, 0.1, 0.0, pieces.model, seed=1)
    sampled = [changes.apply(sentence, number) for number in range(2000)]
    assert all(words(dictionary.string(tokens)) == words(dictionary.string(sentence)) for tokens in sampled)
    assert all(tokens[-1] == dictionary.eos() for tokens in sampled)
    processor = sentencepiece.SentencePieceProcessor(model_file=pieces.model)
    text = words(dictionary.string(sentence))
    sampling = {"enable_sampling": True, "alpha": 0.1, "nbest_size": -1}
    theirs = Counter(" ".join(processor.encode(text, out_type=str, **sampling)) for _ in range(2000))
    ours = Counter(map(dictionary.string, sampled))
    assert len(ours) > 3 and all(abs(ours[text] - count) < 100 for text, count in theirs.items())
    again = SourceChanges(dictionary, 0.1, 0.0, pieces.model, seed=1)
    assert torch.equal(again.apply(sentence, 7), sampled[7])  # whatever was sampled before
    different = (changes.apply(sentence, 7, epoch) for epoch in range(1, 5))
    assert any(not torch.equal(tokens, sampled[7]) for tokens in different)


def test_what_is_not_the_models_stays(pieces):
    dictionary = Dictionary.load(f"{pieces.data}/dict.xx.txt")
    changes = SourceChanges(dictionary, 0.1, 0.0, pieces.model, seed=1)
    unknown = torch.tensor([dictionary.unk(), dictionary.unk(), dictionary.eos()])
    sentence = data_utils.load_indexed_dataset(f"{pieces.data}/train.xx-yy.xx")[0]
    assert all(torch.equal(changes.apply(unknown, number), unknown) for number in range(20))
    changes.limit((len(sentence), 9))
    assert all(len(changes.apply(sentence, number)) <= len(sentence) for number in range(50))


def test_subwords_are_split_into_subwords():
    dictionary = Dictionary()
    for piece in ("\u2581abc", "\u2581ab", "\u2581a", "bc", "b", "c", "\u2581xyz"):
        dictionary.add_symbol(piece)
    sentence = dictionary.encode_line(
        "\u2581abc \u2581xyz \u2581abc bc \u2581abc \u2581ab", add_if_not_exist=False
    ).long()
    changes = SourceChanges(dictionary, None, 0.0, None, seed=1, splitting=0.25)
    changed = [changes.apply(sentence, number) for number in range(400)]
    assert {words(dictionary.string(tokens)) for tokens in changed} == {"abc xyz abcbc abc ab"}
    longer = sum(len(tokens) > len(sentence) for tokens in changed)
    assert 100 < longer < 200  # half are not touched, and some of the others by chance not
    assert all(torch.equal(changes.apply(sentence, number), changed[number]) for number in range(20))


def test_marks_of_bpe_stay_where_words_go_on():
    symbols = ["ab@@", "abc", "a@@", "b@@", "bc", "c", "b"]
    splits = Splits(symbols, "subword_nmt")
    found = {splits.sample((0, 1), 0.9, random.Random(number)) for number in range(200)}
    texts = {" ".join(symbols[i] for i in word) for word in found}
    assert texts <= {
        f"{left} {right}" for left in ("ab@@", "a@@ b@@") for right in ("abc", "a@@ bc", "a@@ b@@ c", "ab@@ c")
    }
    assert len(texts) > 3


def test_noise_leaves_words_out_and_swaps_neighbours():
    sentence = [(word,) for word in range(30)]
    changed = [disturb(sentence, 0.2, random.Random(number)) for number in range(200)]
    left = sum(map(len, changed)) / (200 * 30)
    assert left == pytest.approx(0.8, abs=0.02)
    swapped = sum(a > b for one in changed for a, b in itertools.pairwise(one)) / sum(map(len, changed))
    assert 0.1 < swapped < 0.25
    assert disturb([(1,), (2,)], 0.999, random.Random(1)) == [(1,)]


def test_a_corpus_of_sampled_sources(pieces, tmp_path):
    manifest = pieces.build(tmp_path / "whole", *pieces.sampled(), "--source-noise", "0.1")
    assert manifest["recipe"]["source"].items() >= {"sampling": 0.1, "noise": 0.1, "seed": 1}.items()
    dictionary = Dictionary.load(f"{pieces.data}/dict.xx.txt")
    stored, built, original = lists(tmp_path / "whole"), pairs(tmp_path / "whole"), pairs(pieces.data)
    assert [dictionary.string(entry["source"]) for entry in stored] == [source for source, _ in built]
    assert sum(a != b for (a, _), (b, _) in zip(built, original)) > 12
    # what was translated is what is in the corpus: translated anew from there, it gives the same lists
    again = run(
        *("fairseq-generate", tmp_path / "whole", "--path", pieces.base, "--gen-subset", "train", "--beam", "3"),
        *("--nbest", "3", "--max-len-b", "20", "--required-batch-size-multiple", "1", *IN_PROCESS),
    )
    found: Dict[int, List[str]] = {}
    for line in again.splitlines():
        if line.startswith("H-"):
            found.setdefault(int(line.split("\t")[0][2:]), []).append(line.split("\t")[2])
    target = Dictionary.load(f"{pieces.data}/dict.yy.txt")
    for entry in stored:
        assert [target.string(h["tokens"]) for h in entry["hypotheses"]] == found[entry["id"]]
    # in shards, and from the lists, it is the same
    for shard in ("0/2", "1/2"):
        pieces.build(tmp_path / "parts", *pieces.sampled(), "--source-noise", "0.1", "--kbest-shard", shard)
    merge([str(tmp_path / "parts")], str(tmp_path / "parts"))
    pieces.build(tmp_path / "from", *pieces.sampled(), "--source-noise", "0.1", "--kbest-from", tmp_path / "whole")
    for other in ("parts", "from"):
        ours, theirs = files(tmp_path / "whole"), files(tmp_path / other)
        assert without_command(ours.pop("manifest.json")) == without_command(theirs.pop("manifest.json"))
        assert ours == theirs
    with pytest.raises(UserError, match=r"made with other settings: .*source\.noise was 0.1"):
        pieces.build(tmp_path / "x", *pieces.sampled(), "--kbest-from", tmp_path / "whole")


def test_dropout_at_search_time(pieces, tmp_path):
    """Other lists than without, the same in shards."""
    plain = pieces.build(tmp_path / "plain")
    whole = pieces.build(tmp_path / "whole", "--retain-dropout")
    assert plain["recipe"]["dropout"] is None and whole["recipe"]["dropout"]["seed"] == 1
    assert plain["files"]["kbest.jsonl.gz"] != whole["files"]["kbest.jsonl.gz"]
    for shard in ("1/2", "0/2"):
        pieces.build(tmp_path / "parts", "--retain-dropout", "--kbest-shard", shard)
    assert merge([str(tmp_path / "parts")], str(tmp_path / "parts"))["files"] == whole["files"]
    with pytest.raises(UserError, match="--retain-dropout does not go with --kbest-engine ctranslate2"):
        pieces.build(tmp_path / "x", "--retain-dropout", "--kbest-engine", "ctranslate2")


def test_training_on_sampled_sources_resumes_exactly(pieces, tmp_path):
    """Also with processes that load data, which live through all epochs."""
    whole = pieces.train(tmp_path / "whole", *pieces.sampled(), "--max-epoch", "3", "--num-workers", "1")
    plain = pieces.train(tmp_path / "plain", "--max-epoch", "3", "--num-workers", "0")
    part = [*pieces.sampled(), "--num-workers", "0", "--save-interval-updates", "1"]
    pieces.train(tmp_path / "part", *part, "--max-update", "3")
    resumed = pieces.train(tmp_path / "part", *part, "--max-epoch", "3")
    actors = [name for name in whole if "actor" in name]
    assert actors and all(torch.equal(whole[name], resumed[name]) for name in actors)
    assert any(not torch.equal(whole[name], plain[name]) for name in actors)


def test_sources_change_from_epoch_to_epoch(pieces):
    dictionary = Dictionary.load(f"{pieces.data}/dict.xx.txt")
    sources = data_utils.load_indexed_dataset(f"{pieces.data}/train.xx-yy.xx")
    examples = [{"id": i, "source": sources[i], "target": sources[i]} for i in range(20)]
    dataset = ChangingSources(examples, SourceChanges(dictionary, 0.1, 0.0, pieces.model, seed=1))

    def epoch(number: int) -> str:
        dataset.set_epoch(number)
        assert all(torch.equal(dataset[i]["target"], sources[i]) for i in range(20))
        return json.dumps([dataset[i]["source"].tolist() for i in range(20)])

    first, second, again = epoch(1), epoch(2), epoch(1)
    assert first == again != second


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--source-sampling", "0.5"], "--source-sampling needs the model .* --sentencepiece-model FILE"),
        (["--source-sampling", "0"], "--source-sampling 0.0: give a number above 0"),
        (["--source-splitting", "1"], "--source-splitting 1.0: give a probability of at most 0.5"),
        (["--source-noise", "1.5"], "--source-noise 1.5: give a probability"),
    ],
)
def test_bad_changes(pieces, tmp_path, flags, message):
    with pytest.raises(UserError, match=message):
        pieces.build(tmp_path / "x", *flags)
    assert not (tmp_path / "x").exists()


def test_changes_are_not_for_translating(pieces, tmp_path):
    with pytest.raises(UserError, match="--source-sampling, --source-splitting and --source-noise are for training"):
        run(
            *("fairseq-generate", pieces.data, "--user-dir", USER_DIR, "--task", "tg_translation"),
            *("--path", pieces.base, "--gen-subset", "valid", *pieces.sampled(), *IN_PROCESS),
        )


def test_a_model_that_is_no_unigram_model(pieces, tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        input=str(Path(pieces.model).with_name("text")),
        **{"model_prefix": str(tmp_path / "bpe"), "vocab_size": 40, "model_type": "bpe", "minloglevel": 2},
    )
    flags = ["--bpe", "sentencepiece", "--sentencepiece-model", tmp_path / "bpe.model", "--source-sampling", "0.1"]
    with pytest.raises(UserError, match="is no unigram model of SentencePiece"):
        pieces.build(tmp_path / "x", *flags)
