"""The examples for released models, on tiny models of the same tasks, in files of the releases' names."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece

from tests.conftest import IN_PROCESS, REPO, USER_DIR, run
from tests.multilingual import _BART, _TRANSFORMER

LANGUAGES = ("de_DE", "en_XX", "fr_XX")
TRAIN = "--optimizer adam --lr 0.01 --max-tokens 2000 --max-epoch 3 --no-epoch-checkpoints --log-format none --seed 3"
#: By example: the base's options, and what its release has beside the checkpoint
RELEASES = {
    "m2m_100": ("--encoder-langtok src --decoder-langtok", _TRANSFORMER, "418M_last_checkpoint.pt", "spm.128k.model"),
    "mbart50": (
        "--encoder-langtok src --decoder-langtok --lang-tok-style mbart",
        *(_BART, "model.pt", "sentence.bpe.model"),
    ),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of two languages, and a SentencePiece model of both with its dictionary."""
    directory, generator = tmp_path_factory.mktemp("text"), random.Random(2)
    syllables = [a + b for a in "bdgklmnprst" for b in "aeiou"]
    words = ["".join(generator.choices(syllables, k=2)) for _ in range(60)]
    for split, size in (("train", 200), ("valid", 10), ("test", 10)):
        lines = [generator.choices(words, k=generator.randint(2, 6)) for _ in range(size)]
        (directory / f"{split}.de_DE").write_text("".join(" ".join(line) + "\n" for line in lines))
        (directory / f"{split}.en_XX").write_text("".join(" ".join(w.upper() for w in line) + "\n" for line in lines))
    sentencepiece.SentencePieceTrainer.train(
        input=f"{directory}/train.de_DE,{directory}/train.en_XX",
        model_prefix=f"{directory}/pieces",
        vocab_size=90,
        minloglevel=2,
    )
    symbols = [line.split("\t")[0] for line in (directory / "pieces.vocab").read_text().splitlines()[3:]]
    (directory / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in symbols))
    return directory


@pytest.mark.parametrize("example", RELEASES)
def test_an_example_of_a_release(request: pytest.FixtureRequest, text: Path, example: str, tmp_path: Path) -> None:
    if not request.config.getoption("--thorough"):
        pytest.skip("takes a minute")
    flags, model, checkpoint, pieces = RELEASES[example]
    release, data = tmp_path / "release", tmp_path / "bin"
    release.mkdir()
    pieces_model = sentencepiece.SentencePieceProcessor(model_file=f"{text}/pieces.model")
    for path in text.glob("*.??_??"):
        lines = [" ".join(pieces_model.encode(line, out_type=str)) for line in path.read_text().splitlines()]
        (tmp_path / path.name).write_text("\n".join(lines) + "\n")
    run(
        *("fairseq-preprocess", "-s", "de_DE", "-t", "en_XX", "--trainpref", tmp_path / "train", "--validpref"),
        *(tmp_path / "valid", "--srcdict", text / "dict.txt", "--tgtdict", text / "dict.txt", "--destdir", data),
    )
    run(
        *("fairseq-train", data, "--user-dir", USER_DIR, "--task", "translation_multi_simple_epoch", "--langs"),
        *(",".join(LANGUAGES), "--lang-pairs", "de_DE-en_XX,en_XX-de_DE", *shlex.split(flags), *shlex.split(model)),
        *(*shlex.split(TRAIN), "--save-dir", tmp_path / "base", *IN_PROCESS),
    )
    shutil.copy(tmp_path / "base" / "checkpoint_best.pt", release / checkpoint)
    shutil.copy(text / "pieces.model", release / pieces)
    dictionary = (text / "dict.txt").read_text()
    (release / "data_dict.128k.txt").write_text(dictionary)
    (release / "model_dict.128k.txt").write_text(dictionary + "".join(f"__{lang}__ 1\n" for lang in LANGUAGES))
    (release / "ML50_langs.txt").write_text("".join(f"{lang}\n" for lang in LANGUAGES))
    for lang in LANGUAGES:
        (release / f"dict.{lang}.txt").write_text(dictionary)

    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = ["bash", REPO / f"examples/{example}/run.sh", release, text, "de_DE", "en_XX", tmp_path / "work"]
    command += ["--epochs", "1", "--workers", "1"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((tmp_path / "work" / "report" / "report.json").read_text())
    assert report["sentences"] == 10 and report["scores"]["values"]["tg"]
    assert (tmp_path / "work" / "de_DE-en_XX.safetensors").is_file()
