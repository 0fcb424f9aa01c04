"""The documentation is true: its commands run as they are written, its options exist, its links lead somewhere.

A fenced block says in its first line what it is:

- ``bash``: commands that are run here, in the order of the page, in a directory with data-bin, base.pt and sp.model of
  the demo's language; pages under docs/ go on in what README.md's commands have made. ``bash languages`` is in one with
  those of a model of three languages.
- ``python``: run there, too.
- ``console FILE``: commands that need more than there is here (a cluster, another corpus, hours); FILE is the test,
  benchmark or Makefile that runs them. A shell script has them literally; a test takes them from the page, by
  `tests.documented`, with paths and sizes of its own.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest
import sentencepiece
from fairseq import utils as fairseq_utils

from fairseq_tg.cli import get_parser
from tests.conftest import AT_THE_END, COMMANDS, IN_PROCESS, REPO, TRAIN_BASE, USER_DIR, run, run_forked, run_tg
from tests.documented import Block, blocks
from tests.multilingual import make_world

PAGES = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]
BASE = """--arch transformer --encoder-embed-dim 32 --decoder-embed-dim 32 --encoder-ffn-embed-dim 64
    --decoder-ffn-embed-dim 64 --encoder-layers 1 --decoder-layers 1 --encoder-attention-heads 2
    --decoder-attention-heads 2 --share-all-embeddings"""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a reader who has a base and its data: the demo's language, in subwords, and little of it."""
    directory = tmp_path_factory.mktemp("documentation")
    text = directory / "text"
    subprocess.run([sys.executable, REPO / "examples/toy/make_data.py", text, "--train", "600"], check=True)
    sides = [f"{text}/train.{side}" for side in ("src", "tgt")]
    sentencepiece.SentencePieceTrainer.train(
        input=",".join(sides), model_prefix=str(directory / "sp"), vocab_size=180, hard_vocab_limit=False, minloglevel=2
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(directory / "sp.model"))
    # (fairseq drops the last batch of a set whose size is no multiple of 8)
    for split, size in {"all": 600, "train": 24, "valid": 8, "test": 8}.items():
        for side in ("src", "tgt"):
            lines = (text / f"{'train' if split == 'all' else split}.{side}").read_text().splitlines()[:size]
            encoded = [" ".join(pieces.encode(line, out_type=str)) for line in lines]
            (directory / f"{split}.{side}").write_text("\n".join(encoded) + "\n")
    shutil.copy(directory / "valid.src", directory / "mono.src")
    # (a beam of 35 is for dictionaries of at least 70 symbols)
    prepare = ["fairseq-preprocess", "--padding-factor", "128", "-s", "src", "-t", "tgt", "--workers", "1"]
    prepare += ["--validpref", directory / "valid"]
    known = directory / "base-bin" / "dict.src.txt"
    run(*prepare, "--trainpref", directory / "all", "--destdir", directory / "base-bin", "--joined-dictionary")
    run(
        *(*prepare, "--trainpref", directory / "train", "--testpref", directory / "test"),
        *("--destdir", directory / "data-bin", "--srcdict", known, "--tgtdict", known),
    )
    flags = [*shlex.split(f"{BASE} {TRAIN_BASE} {AT_THE_END}"), "--max-tokens", "300", *IN_PROCESS]
    run("fairseq-train", directory / "base-bin", *flags, "--save-dir", directory / "base")
    shutil.copy(directory / "base" / "checkpoint_last.pt", directory / "base.pt")
    for name in ("fairseq_tg", "user_dir_configs", "benchmarks", "docs"):
        (directory / name).symlink_to(REPO / name)
    return directory


@pytest.fixture(scope="module")
def languages(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a reader who has a model of many languages."""
    directory = tmp_path_factory.mktemp("languages")
    world = make_world(shared / "world")
    shutil.copytree(world.data, directory / "data-bin")
    for path in (directory / "data-bin").glob("valid.*"):  # what is read at the end of all
        shutil.copy(path, path.with_name(path.name.replace("valid", "test")))
    shutil.copy(world.base("m2m"), directory / "base.pt")
    (directory / "fairseq_tg").symlink_to(USER_DIR)
    return directory


def run_command(command: str) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "fairseq-tg" and "|" not in words:
        run_tg(*words[1:])
    elif words[0] == "fairseq-hydra-train":
        done = run_forked(*words)
        assert done.returncode == 0, done.stderr[-2000:]
    elif words[0] in COMMANDS and "|" not in words:
        try:
            run(*words)
        except SystemExit as end:
            assert not end.code  # a shard without a sentence has nothing to do
    else:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        script = ["bash", "-euo", "pipefail", "-c", command]
        done = subprocess.run(script, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        assert words[0] != "echo" or done.stdout.strip(), "nothing was translated"


def run_python(text: str) -> Any:
    """Run a block, and give the value of its last line."""
    tree = ast.parse(text)
    names: Dict[str, Any] = {}
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    exec(compile(tree, "documentation", "exec"), names)
    return eval(compile(ast.Expression(last.value), "documentation", "eval"), names)


def test_every_command_runs(demo, languages, monkeypatch):
    # fairseq takes the same package under another path for another of that name
    paths = {str(directory / "fairseq_tg") for directory in (demo, languages)}
    monkeypatch.setattr(fairseq_utils.import_user_module, "memo", {*paths, USER_DIR}, raising=False)
    for page in PAGES:
        for block in blocks(page):
            monkeypatch.chdir(languages if block.about == "languages" else demo)
            try:
                if block.language == "python":
                    assert len(run_python(block.text)) == 2
                for command in block.commands() if block.language == "bash" else []:
                    run_command(command)
            except (Exception, SystemExit) as error:
                raise AssertionError(f"{block.where}: {type(error).__name__}: {error}") from error
    assert (languages / "pairs/report/en-bb/report.html").is_file()
    made = ["work/report/report.html", "report/report.json", "tg.pt", "hydra/checkpoint_last.pt"]
    assert [name for name in made if not (demo / name).is_file()] == []
    same = ["lists", "pseudo-2", "merged"]  # by sbleu, the default; the README's is by sbleu+2
    assert len({(demo / name / "train.src-tgt.tgt.bin").read_bytes() for name in same}) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_not_run_here_is_run_elsewhere(page):
    for block in blocks(page):
        assert block.language in ("bash", "python", "console"), f"{block.where}: say what this block is"
        if block.language != "console":
            continue
        runner = (REPO / block.about).read_text()
        if block.about == "Makefile":
            targets = [command.split()[1] for command in block.commands()]
            assert all(re.search(rf"^{target}:", runner, re.MULTILINE) for target in targets), block.where
        elif block.about.endswith(".sh"):
            script = Block("", "", "", runner).commands()
            assert set(block.commands()) <= set(script), f"{block.where} is not what {block.about} runs"
        else:
            name = str(page.relative_to(REPO))
            taken = re.findall(rf'documented\(\s*"{re.escape(name)}",\s*"([^"]+)"', runner)
            left = [command for command in block.commands() if not command.startswith(tuple(taken))]
            assert not left, f"{block.about} does not take {left} from {block.where}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_benchmarks_have_the_options_that_are_named(page):
    for name, words in re.findall(r"python (benchmarks/\w+\.py)([^`#\n]*)", page.read_text()):
        known = (REPO / name).read_text()
        given = [word for word in words.split() if word.startswith("--")]
        assert [word for word in given if not re.search(rf'"(--)?{word[2:]}"', known)] == [], f"{page.name}: {name}"


def subcommands(parser: argparse.ArgumentParser) -> Dict[str, argparse.ArgumentParser]:
    found = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0]) if found else {}  # type: ignore[arg-type]


@pytest.mark.parametrize("page", [*PAGES, *sorted(REPO.glob("examples/*/README.md"))], ids=str)
def test_options_that_are_named_exist(page):
    """Of `fairseq-tg`, in running text as in blocks: up to the -- behind which fairseq's are."""
    fenced = [command for block in blocks(page) for command in block.commands()]
    outside = re.sub(r"^```.*\n(?:.*\n)*?```$", "", page.read_text(), flags=re.MULTILINE)
    running = re.findall(r"`(fairseq-tg [^`]+)`", outside)
    for command in [*running, *(command.split("#")[0] for command in fenced if command.startswith("fairseq-tg"))]:
        words, parser = command.split()[1:], get_parser()
        while words and words[0] in subcommands(parser):
            parser = subcommands(parser)[words.pop(0)]
        words = words[: words.index("--")] if "--" in words else words
        known = parser._option_string_actions
        assert [word for word in words if word.startswith("--") and word.split("=")[0] not in known] == [], command


@pytest.mark.parametrize("page", [*PAGES, *REPO.glob("*.md"), *REPO.glob("examples/*/README.md")], ids=str)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_front_door_is_short():
    readme = (REPO / "README.md").read_text()
    assert len(readme.partition("## What it gains")[0].split()) <= 500


def test_the_reference_has_every_option_there_is():
    reference = REPO / "docs" / "reference.md"
    made = subprocess.run(
        [sys.executable, "-c", "from make_reference import reference; print(reference(), end='')"],
        cwd=reference.parent, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(REPO)},
    )  # fmt: skip
    assert made.stdout == reference.read_text(), "run python docs/make_reference.py"
