"""Bad input ends in one clear line on standard error, a non-zero status and nothing written."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import torch

from fairseq_tg.compiled.engine import Engine, EngineError
from fairseq_tg.errors import UserError
from tests.conftest import (
    IN_PROCESS,
    USER_DIR,
    Workspace,
    hypotheses,
    run,
    run_forked,
    run_process,
    run_tg,
    write_corpus,
)


class Evil:
    def __reduce__(self):
        return (os.system, ("touch pwned",))


@pytest.fixture()
def files(workspace, tmp_path):
    """A directory with every kind of file that a user might give by mistake."""
    (tmp_path / "text.pt").write_text("not a checkpoint\n")
    content = Path(workspace.bases["transformer"]).read_bytes()
    (tmp_path / "cut.pt").write_bytes(content[: len(content) // 2])
    torch.save({"weights": torch.zeros(3)}, tmp_path / "other.pt")
    state = torch.load(workspace.bases["transformer"])
    torch.save({**state, "extra_state": Evil()}, tmp_path / "evil.pt")
    state["cfg"]["model"]._name = state["cfg"]["model"].arch = "lightconv"
    torch.save(state, tmp_path / "lightconv.pt")
    return tmp_path


@pytest.fixture(scope="module")
def other_data(tmp_path_factory):
    """A data directory with more words than the bases know."""
    directory = tmp_path_factory.mktemp("other")
    write_corpus(directory, {"train": 20, "valid": 5})
    with open(directory / "train.xx", "a") as source, open(directory / "train.yy", "a") as target:
        print(*(f"unheard{i}" for i in range(20)), file=source)
        print(*(f"UNHEARD{i}" for i in range(20)), file=target)
    flags = ["--trainpref", directory / "train", "--validpref", directory / "valid", "--joined-dictionary"]
    run("fairseq-preprocess", "-s", "xx", "-t", "yy", *flags, "--destdir", directory / "bin", "--workers", "1")
    return str(directory / "bin")


def test_a_base_is_not_saved_over(workspace, tmp_path):
    base = tmp_path / "checkpoints" / "checkpoint_best.pt"
    base.parent.mkdir()
    shutil.copy(workspace.bases["lstm"], base)
    before = base.read_bytes()
    (tmp_path / "link").symlink_to(base.parent)
    for directory in (base.parent, tmp_path / "link"):
        with pytest.raises(UserError, match="is where this training saves its checkpoints: give another --save-dir"):
            Workspace(workspace.data, {"lstm": str(base)}).train("lstm", directory, "--max-update", "1")
    assert base.read_bytes() == before and len(list(base.parent.iterdir())) == 1
    shutil.copy(base, base.with_name("base.pt"))  # which no training writes
    assert Workspace(workspace.data, {"lstm": str(base.with_name("base.pt"))}).train(
        "lstm", tmp_path / "tg", "--max-update", "1"
    )


TRAINING = [
    (["--base-checkpoint", ""], "no base: give --base-checkpoint"),
    (["--base-checkpoint", "{files}/none.pt"], "no checkpoint at '{files}/none.pt'"),
    (["--base-checkpoint", "{files}"], "no checkpoint at '{files}'"),
    (["--base-checkpoint", "{files}/text.pt"], "'{files}/text.pt' is no fairseq checkpoint"),
    (["--base-checkpoint", "{files}/cut.pt"], "'{files}/cut.pt' is no fairseq checkpoint"),
    (["--base-checkpoint", "{files}/other.pt"], "'{files}/other.pt' is no fairseq checkpoint"),
    (["--base-checkpoint", "{files}/evil.pt"], "'{files}/evil.pt' is refused: its pickle asks for posix.system"),
    (["--base-checkpoint", "{files}/lightconv.pt"], "is a lightconv model, which --arch tg_transformer cannot wrap"),
    (["--arch", "tg_fconv"], "is a transformer model, which --arch tg_fconv cannot wrap: use --arch tg_transformer"),
    (["--actor", "gates"], "unknown actor 'gates': --actor takes one of gate, ff, ff2, rnn, linear"),
]


@pytest.mark.parametrize("flags, message", TRAINING, ids=[message[:30] for _, message in TRAINING])
def test_training(workspace, files, flags, message, capsys):
    before = sorted(files.rglob("*"))
    flags = [flag.format(files=files) for flag in flags]
    with pytest.raises(UserError) as error:
        run("fairseq-train", *workspace.train_flags("transformer", "--save-dir", files / "save", *flags))
    (line,) = str(error.value).splitlines()
    assert message.format(files=files) in line
    assert sorted(files.rglob("*")) == before and not os.path.exists("pwned")


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--actor-hidden", "-3"], "--actor-hidden -3: give a size"),
        (["--actor-rank", "-3"], "--actor-rank -3: give a rank"),
        (["--actor-layers", "both"], "--actor-layers both: give all or last"),
        (["--criterion", "actor_cross_entropy", "--arch", "transformer_tiny"], "this model has none: use --arch tg_"),
    ],
)
def test_training_options(workspace, tmp_path, flags, message):
    all_flags = workspace.train_flags("transformer", "--save-dir", tmp_path, *flags)
    if "transformer_tiny" in flags:
        at = all_flags.index("--base-checkpoint")
        del all_flags[at : at + 2]
    with pytest.raises(UserError, match=message):
        run("fairseq-train", *all_flags)
    assert not list(tmp_path.rglob("*.pt"))


def test_actors_are_trained_with_their_task(workspace, tmp_path):
    with pytest.raises(UserError, match="--arch tg_transformer is trained with --task tg_translation"):
        workspace.train("transformer", tmp_path, "--task", "translation")
    with pytest.raises(UserError, match="--actor-weights is for translating"):
        workspace.train("transformer", tmp_path, "--actor-weights", "actor.safetensors")


def test_another_dictionary(workspace, other_data, tmp_path):
    message = r"the base has a source dictionary of \d+ entries, the data one of \d+: give the data directory"
    with pytest.raises(UserError, match=message):
        run("fairseq-train", other_data, *workspace.train_flags("transformer", "--save-dir", tmp_path)[1:])
    tg = workspace.train("transformer", tmp_path / "tg", "--max-update", "1")
    with pytest.raises(UserError, match=message):
        run("fairseq-generate", other_data, "--user-dir", USER_DIR, "--task", "tg_translation", "--path", tg)


def test_another_order_of_a_dictionary(workspace, tmp_path):
    """Of as many words: each would stand for another."""
    tg, data = workspace.train("transformer", tmp_path / "tg", "--max-update", "1"), tmp_path / "bin"
    shutil.copytree(workspace.data, data)
    lines = (data / "dict.yy.txt").read_text().splitlines()
    for side in ("xx", "yy"):
        (data / f"dict.{side}.txt").write_text("\n".join([*lines[1:], lines[0], ""]))
    with pytest.raises(UserError, match="the model was trained with other dictionaries: these are as large"):
        run("fairseq-generate", data, "--user-dir", USER_DIR, "--task", "tg_translation", "--path", tg)


def test_sides_of_different_length(workspace, tmp_path):
    write_corpus(tmp_path, {"train": 20, "valid": 5})
    with open(tmp_path / "valid.xx", "a") as source:
        print("w1 w2", file=source)
    flags = ["--trainpref", tmp_path / "train", "--validpref", tmp_path / "valid", "--workers", "1"]
    flags += ["--srcdict", f"{workspace.data}/dict.xx.txt", "--tgtdict", f"{workspace.data}/dict.yy.txt"]
    run("fairseq-preprocess", "-s", "xx", "-t", "yy", *flags, "--destdir", tmp_path / "bin")
    message = "6 sentences on the source side and 5 on the target side: binarize it again"
    with pytest.raises(UserError, match=message):
        Workspace(str(tmp_path / "bin"), workspace.bases).train("transformer", tmp_path / "tg")
    with pytest.raises(UserError, match=message):
        Workspace(str(tmp_path / "bin"), workspace.bases).generate(workspace.bases["transformer"])


def test_resuming_with_another_actor_or_base(workspace, tmp_path):
    workspace.train("transformer", tmp_path, "--max-update", "1")
    with pytest.raises(UserError, match="the checkpoint's actors have other shapes"):
        workspace.train("transformer", tmp_path, "--max-update", "2", "--actor", "ff")
    shutil.copytree(tmp_path, tmp_path / "lstm")
    state = torch.load(workspace.bases["transformer"])
    state["model"]["encoder.embed_tokens.weight"][5] += 1
    torch.save(state, tmp_path / "other.pt")
    with pytest.raises(UserError, match="these actors belong to another base"):
        workspace.train("transformer", tmp_path, "--max-update", "2", "--base-checkpoint", tmp_path / "other.pt")


def test_translating(workspace, files):
    tg = workspace.train("transformer", files / "tg", "--max-update", "1")
    actor_file = str(files / "actor.safetensors")
    run_tg("actor", "export", tg, actor_file)
    base = workspace.bases["transformer"]
    cases = [
        ([f"{files}/none.pt"], f"no checkpoint at '{files}/none.pt'"),
        ([f"{files}/text.pt"], f"'{files}/text.pt' is no fairseq checkpoint"),
        ([f"{files}/cut.pt"], f"'{files}/cut.pt' is no fairseq checkpoint"),
        ([f"{files}/evil.pt"], f"'{files}/evil.pt' is refused"),
        ([base, "--gen-subset", "dev"], f"there is no split 'dev' in '{workspace.data}': give one that is there"),
        ([base, "-s", "xx", "-t", "zz"], f"there is no '{workspace.data}/dict.zz.txt': give languages whose"),
        ([base, "-s", "yy"], "one of --source-lang and --target-lang is missing: give both, or neither"),
        ([base, "--actor-weights", f"{files}/none"], f"no actor file at '{files}/none'"),
        ([base, "--actor-weights", f"{files}/text.pt"], f"'{files}/text.pt' is no actor file"),
        (
            [workspace.bases["lstm"], "--actor-weights", actor_file],
            "are for tg_transformer, and the base is a lstm model",
        ),
        (
            [workspace.bases["transformer_prenorm"], "--actor-weights", actor_file],
            "these actors belong to another base",
        ),
        ([tg, "--actor-weights", actor_file], "has actors already: give the checkpoint of a model without"),
        ([f"{base}:{base}", "--actor-weights", ":".join([actor_file] * 3)], "3 files in --actor-weights for 2 models"),
    ]
    for flags, message in cases:
        with pytest.raises(UserError) as error:
            workspace.generate(*flags)
        (line,) = str(error.value).splitlines()
        assert message in line


SEARCHES = [
    (["--beam", "0"], "--beam 0: give at least 1"),
    (["--beam", "100000"], "--beam 100000 is too large for a dictionary of {size}: give at most {most}"),
    (["--beam", "4", "--nbest", "9"], "--nbest 9 of a beam of 4: give 1 to 4"),
    (["--beam", "4", "--nbest", "0"], "--nbest 0 of a beam of 4: give 1 to 4"),
    (["--beam", "4", "--nbest", "-1"], "--nbest -1 of a beam of 4: give 1 to 4"),
    (["--lenpen", "nan"], "--lenpen nan: give a number"),
]


@pytest.mark.parametrize("flags, message", SEARCHES, ids=[" ".join(flags) for flags, _ in SEARCHES])
def test_searches(workspace, tmp_path, flags, message):
    """fairseq would find fewer hypotheses than were asked for, without a word, or end in a traceback."""
    base, size = workspace.bases["transformer"], len(workspace.task().target_dictionary)
    message = message.format(size=size, most=(size - 1) // 2)
    (tmp_path / "lines").write_text("w1 w2\n")
    (tmp_path / "corpus").mkdir()
    interactive = ["--user-dir", USER_DIR, "--task", "tg_translation", "--input", tmp_path / "lines", "--path", base]
    for search in (
        lambda: workspace.generate(base, *flags),
        lambda: workspace.generate(base, *flags, "--kbest-dir", tmp_path / "corpus"),
        lambda: run("fairseq-interactive", workspace.data, *interactive, *flags, *IN_PROCESS),
    ):
        with pytest.raises(UserError) as error:
            search()
        assert error.value.args == (message,)
    assert not list((tmp_path / "corpus").iterdir())


LONG = " ".join(["w1"] * 100_000)


@pytest.mark.parametrize("flags", [[], ["--buffer-size", "3", "--batch-size", "3"], ["--max-tokens", "9"]])
def test_a_line_that_is_too_long_is_left_out(workspace, flags):
    """Alone in what is read at once, and among others; too long for the model, and for a batch."""
    lines = ["w1 w2", LONG, "w3", "w4 w4", "w1 " * 2000, "w2 w1"]
    common = [workspace.data, "--user-dir", USER_DIR, "--task", "tg_translation", *IN_PROCESS]
    common += ["--path", workspace.bases["transformer"], "--max-len-b", "20", *flags]
    done = run_forked("fairseq-interactive", *common, stdin="".join(f"{line}\n" for line in lines))
    errors = [line for line in done.stderr.splitlines() if line.startswith("fairseq_tg: ")]
    assert [line[: line.index("tokens")] for line in errors[:-1]] == [
        "fairseq_tg: sentence 1 is left out: it has 100001 ",
        "fairseq_tg: sentence 4 is left out: it has 2001 ",
    ]
    assert errors[-1] == "fairseq_tg: error: 2 of the sentences were too long and not translated: see above"
    assert done.returncode == 1 and "Traceback" not in done.stderr
    short = [line for line in lines if len(line) < 100]
    alone = hypotheses(run_forked("fairseq-interactive", *common, stdin="".join(f"{line}\n" for line in short)).stdout)
    assert hypotheses(done.stdout) == dict(zip((0, 2, 3, 5), alone.values())) and len(alone) == 4


def test_a_shard_without_sentences(workspace):
    shards = ["--num-shards", "2", "--batch-size", "999", "--shard-id"]
    assert hypotheses(workspace.generate(workspace.bases["transformer"], *shards, "0"))
    with pytest.raises(UserError, match="shard 1 has nothing to do: there is 1 batch; give fewer --num-shards"):
        workspace.generate(workspace.bases["transformer"], *shards, "1")


def validate(workspace, path, *flags):
    """The loss that fairseq-validate logs."""
    flags = ["--valid-subset", "valid", "--batch-size", "8", "--log-format", "json", *IN_PROCESS, *flags]
    flags = [workspace.data, "--user-dir", USER_DIR, "--task", "tg_translation", "--path", path, *flags]
    done = run_forked("fairseq-validate", *flags)
    found = re.findall(r'"valid_loss": "([\d.]+)"', done.stdout + done.stderr)
    return found[-1] if found else done.stderr


def test_validating_with_an_actor_file(workspace, tmp_path):
    """fairseq-validate takes the task from the checkpoint, and would leave the file unread."""
    tg = workspace.train("transformer", tmp_path, "--lr", "0.1")
    run_tg("actor", "export", tg, tmp_path / "actor.safetensors")
    base = workspace.bases["transformer"]
    acted = validate(workspace, base, "--actor-weights", tmp_path / "actor.safetensors")
    assert acted == validate(workspace, tg) != validate(workspace, base) and float(acted) > 0
    assert "error: no actor file at 'none'" in validate(workspace, base, "--actor-weights", "none")


#: Of the engine, of numpy where results are to go, and of torch
NO_MEMORY = [
    (EngineError("not enough memory for a batch of 3 sentences"), "not enough memory for a batch of 3 sentences"),
    (MemoryError("Unable to allocate 9 GiB"), r"memory for a batch of \d+ sentences: make it \(--batch-size"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), r"not enough memory for a batch of \d+ sentences"),
]


@pytest.mark.parametrize("error, message", NO_MEMORY, ids=["engine", "numpy", "torch"])
def test_a_search_without_memory(workspace, tmp_path, monkeypatch, error, message):
    def search(*args, **kwargs):
        raise error

    monkeypatch.setattr(Engine, "search", search)
    for flags in ([], ["--kbest-dir", tmp_path / "corpus", "--kbest-engine", "native"]):
        with pytest.raises(UserError, match=message):
            workspace.generate(workspace.bases["transformer"], "--beam", "4", *flags)


@pytest.mark.parametrize(
    "command",
    [
        "fairseq-train {data} --task tg_translation --arch tg_transformer --base-checkpoint {files}/none.pt "
        "--criterion actor_cross_entropy --optimizer adam --max-tokens 100 --save-dir {files}/save",
        "fairseq-generate {data} --task tg_translation --path {files}/evil.pt",
        "fairseq-interactive {data} --task tg_translation --path {files}/cut.pt",
        "fairseq-tg actor export {files}/other.pt {files}/x.safetensors",
    ],
)
def test_a_process_ends_with_one_line_and_status_1(workspace, files, command):
    program, *flags = command.format(data=workspace.data, files=files).split()
    if program != "fairseq-tg":
        flags += ["--user-dir", USER_DIR]
    before = sorted(files.rglob("*"))
    start = run_process if program in ("fairseq-train", "fairseq-tg") else run_forked
    done = start(program, *flags, cwd=files)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    assert [line for line in done.stderr.splitlines() if line.startswith("fairseq_tg: error:")] == [
        done.stderr.splitlines()[-1]
    ]
    assert sorted(files.rglob("*")) == before
