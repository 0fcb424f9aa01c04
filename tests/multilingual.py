"""A toy world of three languages, and bases of every task with language symbols, trained by fairseq's own commands."""

from __future__ import annotations

import random
import shlex
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from tests.conftest import IN_PROCESS, USER_DIR, make_once, run

LANGUAGES = ("aa", "bb", "en")
PAIRS = ("aa-en", "bb-en", "en-aa", "en-bb")
MULTI, BART = "translation_multi_simple_epoch", "translation_from_pretrained_bart"
_SIZES = """--encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 24 --decoder-ffn-embed-dim 24
    --encoder-layers 2 --decoder-layers 2 --encoder-attention-heads 2 --decoder-attention-heads 2 --dropout 0.1"""
_TRANSFORMER = f"--arch transformer {_SIZES} --share-all-embeddings"
_BART = f"--arch mbart_base {_SIZES} --attention-dropout 0"
_OF_MANY = f"--langs {','.join(LANGUAGES)} --lang-pairs {','.join(PAIRS)}"
#: By name: the task's options, which its translations need too, and the model's
KINDS: Dict[str, Any] = {
    "m2m": (MULTI, f"{_OF_MANY} --encoder-langtok src --decoder-langtok", _TRANSFORMER),
    "tagged": (MULTI, f"{_OF_MANY} --encoder-langtok tgt", _TRANSFORMER),
    "replaced": (
        MULTI,
        f"{_OF_MANY} --encoder-langtok src --decoder-langtok --lang-tok-replacing-bos-eos",
        _TRANSFORMER,
    ),
    "mbart50": (MULTI, f"{_OF_MANY} --encoder-langtok src --decoder-langtok --lang-tok-style mbart", _BART),
    "mbart25": (BART, f"--langs {','.join(LANGUAGES)}", _BART),
    "bos": (BART, f"--langs {','.join(LANGUAGES)} --prepend-bos", _BART),
}
_TRAIN = """--optimizer adam --lr 0.005 --clip-norm 1 --lr-scheduler inverse_sqrt --warmup-updates 40 --max-tokens 400
    --max-update 200 --validate-interval 5 --no-epoch-checkpoints
    --no-last-checkpoints --log-format none --seed 3"""


class World(NamedTuple):
    """A data directory of all pairs, and where bases are made when they are asked for."""

    directory: Path

    @property
    def data(self) -> str:
        return str(self.directory / "bin")

    def base(self, kind: str) -> str:
        """The checkpoint of a base, trained with fairseq's own task."""
        task, flags, model = KINDS[kind]
        path = self.directory / kind / "checkpoint_best.pt"

        def make() -> None:
            pair = [] if task == MULTI else ["-s", "aa", "-t", "en"]
            # fairseq 0.12's translation_from_pretrained_bart does not start (see `FromPretrainedBARTTask`): ours does
            name = task if task == MULTI else f"tg_{task}"
            run(
                *("fairseq-train", self.data, "--user-dir", USER_DIR, "--task", name, *shlex.split(flags), *pair),
                *(*shlex.split(model), *shlex.split(_TRAIN), "--save-dir", path.parent, *IN_PROCESS),
            )

        make_once(self.directory / f"{kind}.made", make)
        return str(path)

    def flags(self, kind: str, tg: bool = True) -> List[str]:
        """The task's name and its options."""
        task, flags, _ = KINDS[kind]
        return ["--user-dir", USER_DIR, "--task", f"tg_{task}" if tg else task, *shlex.split(flags)]

    def task(self, kind: str, *flags: Any) -> Any:
        """The task of a kind, for aa-en or as flags say."""
        pair = [] if flags else ["-s", "aa", "-t", "en"]
        parser = options.get_generation_parser()
        words = [self.data, *self.flags(kind), "--path", "unused", *pair, *map(str, flags)]
        return tasks.setup_task(convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words)).task)

    def build(self, kind: str, out: Any, *flags: Any) -> str:
        """Build a corpus, of all pairs or as flags say."""
        return run(
            *("fairseq-generate", self.data, *self.flags(kind), "--path", self.base(kind), "--gen-subset", "train"),
            *("--beam", "3", "--max-len-b", "10", "--batch-size", "32", "--kbest-dir", out, "--kbest-jsonl"),
            *("--kbest-block", "50", *IN_PROCESS, *flags),
        )

    def generate(self, kind: str, pair: str, path: str, *flags: Any, tg: bool = True) -> str:
        source, target = pair.split("-")
        return run(
            *("fairseq-generate", self.data, *self.flags(kind, tg), "-s", source, "-t", target, "--path", path),
            *("--gen-subset", "valid", "--max-len-b", "20", *IN_PROCESS, *flags),
        )

    def train(self, kind: str, save_dir: Any, *flags: Any, data: Any = None) -> str:
        """Train actors; gives the path of the last checkpoint."""
        task, _, model = KINDS[kind]
        arch = "tg_bart" if model is _BART else "tg_transformer"
        pair = [] if task == MULTI else ["-s", "aa", "-t", "en"]
        run(
            *("fairseq-train", data or self.data, *self.flags(kind), *pair, "--arch", arch, "--save-dir", save_dir),
            *("--base-checkpoint", self.base(kind), "--criterion", "actor_cross_entropy", "--optimizer", "adam"),
            *("--max-epoch", "1", "--lr", "0.01", "--max-tokens", "400", *IN_PROCESS, "--log-format", "none", *flags),
        )
        return f"{save_dir}/checkpoint_last.pt"


def batch_of(task: Any) -> Dict[str, Any]:
    """The first sentences of a task's validation data."""
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    return dataset.collater([dataset[i] for i in range(4)])


def make_world(directory: Path) -> World:
    """Sentences whose words are translated one by one; some words of English have two translations.

    Several processes may share a directory.
    """
    directory.mkdir(exist_ok=True)
    make_once(directory / "bin.made", lambda: _make_data(directory))
    return World(directory)


def _make_data(directory: Path) -> None:
    generator = random.Random(5)
    words = range(8)
    vocabulary = [f"{lang}{word}" for lang in ("a", "b", "E") for word in words] + ["a0x", "b0x", "a1x", "b1x"]
    vocabulary += [f"z{number}" for number in range(50)]  # that nobody says: room for a beam of 35
    (directory / "dict.txt").write_text("".join(f"{word} 1\n" for word in vocabulary))
    for lang in ("aa", "bb"):
        for split, size in (("train", 120), ("valid", 12)):
            lines: Dict[str, List[str]] = {lang: [], "en": []}
            for _ in range(size):
                sentence = generator.choices(words, k=generator.randint(1, 6))
                ends = [generator.choice(["", "x"]) if word < 2 else "" for word in sentence]
                lines[lang].append(" ".join(f"{lang[0]}{word}{end}" for word, end in zip(sentence, ends)))
                lines["en"].append(" ".join(f"E{word}" for word in sentence))
            for name, text in lines.items():
                (directory / f"{split}.{lang}-en.{name}").write_text("\n".join(text) + "\n")
        run(
            *("fairseq-preprocess", "-s", lang, "-t", "en", "--destdir", directory / "bin", "--workers", "1"),
            *("--trainpref", directory / f"train.{lang}-en", "--validpref", directory / f"valid.{lang}-en"),
            *("--srcdict", directory / "dict.txt", "--tgtdict", directory / "dict.txt"),
        )
