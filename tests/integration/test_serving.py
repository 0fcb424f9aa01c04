"""Greedy translation as users call it: the fast path inside fairseq's commands, compiled files, and the benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

from fairseq_tg.errors import UserError
from tests.conftest import FAMILIES, IN_PROCESS, USER_DIR, hypotheses, run_process, run_tg

LINES = ["w1 w2 w3", "", "w5", "w4 w4 w0 w8 w2"]


@pytest.fixture(scope="module")
def trained(workspace, tmp_path_factory):
    """A tg checkpoint of every family, trained until it does something else than its base."""
    directory = tmp_path_factory.mktemp("trained")
    flags = ["--max-epoch", "2", "--lr", "0.1"]
    return {base: workspace.train(base, directory / base, *flags) for base in FAMILIES}


@pytest.fixture(scope="module")
def compiled(workspace, trained, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("compiled") / "model.tg"
    printed = run_tg("compile", trained["transformer"], path)
    assert "model.tg: xx-yy, gate actors, float32" in printed
    return path


def numbers(output: str, kind: str) -> List[List[float]]:
    """The scores of all hypotheses (H-) or of their tokens (P-), by sentence."""
    lines = sorted(line.split("\t") for line in output.splitlines() if line.startswith(kind))
    return [[float(word) for word in fields[1].split()] for fields in lines]


@pytest.mark.parametrize("base", FAMILIES)
@pytest.mark.parametrize("batch", [1, 30])
def test_generate_prints_the_same_on_the_fast_path(workspace, trained, base, batch):
    flags = ["--beam", "1", "--batch-size", batch]
    fast = workspace.generate(trained[base], *flags)
    slow = workspace.generate(trained[base], *flags, "--no-fast-greedy")
    assert hypotheses(fast) == hypotheses(slow) and len(hypotheses(fast)) == 30
    for kind in ("H-", "P-"):
        for ours, theirs in zip(numbers(fast, kind), numbers(slow, kind)):
            assert ours == pytest.approx(theirs, abs=2e-4)


def test_generate_with_a_prefix(workspace, trained):
    flags = ["--beam", "1", "--prefix-size", "2"]
    fast = workspace.generate(trained["transformer"], *flags)
    assert hypotheses(fast) == hypotheses(workspace.generate(trained["transformer"], *flags, "--no-fast-greedy"))


def test_interactive_takes_the_fast_path(workspace, trained):
    flags = [workspace.data, "--user-dir", USER_DIR, "--task", "tg_translation", "--path", trained["transformer"]]
    flags += ["--beam", "1", "--max-len-b", "20", *IN_PROCESS]
    text = "".join(f"{line}\n" for line in LINES if line)
    fast, slow = (run_process("fairseq-interactive", *flags, *more, stdin=text) for more in ([], ["--no-fast-greedy"]))
    assert fast.returncode == slow.returncode == 0, fast.stderr + slow.stderr
    assert hypotheses(fast.stdout) == hypotheses(slow.stdout) and len(hypotheses(fast.stdout)) == 3


def test_validation_with_bleu_takes_the_fast_path(workspace, tmp_path):
    """The weights change between validations: --eval-bleu has to see those of the moment."""
    flags = ["--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 20}', "--max-epoch", "2", "--lr", "0.1"]
    scores = []
    for more in ([], ["--no-fast-greedy"]):
        log = tmp_path / f"log{len(scores)}"
        workspace.train(
            "transformer", tmp_path / str(len(scores)), *flags, *more, "--log-format", "json", "--log-file", log
        )
        valid = [json.loads(line[line.index("{") :]) for line in log.read_text().splitlines() if "valid_bleu" in line]
        scores.append([entry["valid_bleu"] for entry in valid])
    assert scores[0] == scores[1] and len(set(scores[0])) == 2


def translate(path: Path, data: bytes, *flags: str) -> subprocess.CompletedProcess:
    """fairseq-tg translate in a Python that has neither fairseq nor torch."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['fairseq', 'torch'])); from fairseq_tg.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "translate", str(path), *flags]
    return subprocess.run(command, input=data, capture_output=True, timeout=60)


@pytest.mark.parametrize("flags", [[], ["--batch-size", "4"], ["--batch-size", "2", "--threads", "2"]])
def test_a_compiled_model_translates_as_fairseq_does(workspace, trained, compiled, flags):
    printed = workspace.generate(trained["transformer"], "--beam", "1")
    sources = [line.split("\t") for line in printed.splitlines() if line.startswith("S-")]
    source = {int(fields[0][2:]): fields[1] for fields in sources}
    expected = hypotheses(printed)
    text = "".join(f"{source[i]}\n" for i in range(30))
    done = translate(compiled, text.encode(), "--max-len-b", "20", *flags)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines() == [expected[i] for i in range(30)]


def test_the_command_is_installed(compiled):
    done = run_process("fairseq-tg", "translate", compiled, stdin="w1\n")
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (0, 1, "")


def test_an_actor_file_compiles_to_the_same_model(workspace, trained, compiled, tmp_path):
    run_tg("actor", "export", trained["transformer"], tmp_path / "a.safetensors")
    flags = ["--data", workspace.data, "--actor-weights", tmp_path / "a.safetensors"]
    run_tg("compile", workspace.bases["transformer"], tmp_path / "model.tg", *flags)
    assert (tmp_path / "model.tg").read_bytes() == compiled.read_bytes()


def test_int8_is_smaller(workspace, trained, compiled, tmp_path):
    run_tg("compile", trained["transformer"], tmp_path / "small.tg", "--int8")
    assert (tmp_path / "small.tg").stat().st_size < compiled.stat().st_size
    done = translate(tmp_path / "small.tg", b"w1 w2\n")
    assert done.returncode == 0 and done.stdout.count(b"\n") == 1, done.stderr


def test_a_stream_survives_what_it_meets(compiled):
    """Empty lines, a carriage return, bytes that are no UTF-8, a line too long, no newline at the end."""
    lines = [b"w1 w2", b"", b"w1 w2\r", b"w1 \xff\xfe w2", b"w3 " * 5000, "w1 \u202e\u05d0 \t\x00".encode(), b"w1 w2"]
    done = translate(compiled, b"\n".join(lines), "--batch-size", "3")
    output = done.stdout.decode().splitlines()
    assert done.returncode == 1 and len(output) == len(lines)
    assert output[0] == output[2] == output[6] != "" and output[1] == output[4] == ""
    errors = done.stderr.decode().splitlines()
    assert errors[0].startswith("fairseq_tg: line 4: not UTF-8")
    assert errors[1].startswith("fairseq_tg: line 5: a line of 5000 tokens: this model takes up to 1023; split it")
    assert errors[2] == "fairseq_tg: error: 1 line was not translated: see above" and len(errors) == 3


def test_each_line_is_answered_at_once(compiled):
    program = Path(sys.executable).parent / "fairseq-tg"
    with subprocess.Popen(
        [str(program), "translate", str(compiled)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        answers = []
        for line in ("w1 w2", "w3"):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            answers.append(process.stdout.readline())  # would wait for ever, if it waited for more
        process.stdin.close()
        assert process.wait(30) == 0
    assert all(answer.strip() for answer in answers)


def test_the_reader_of_a_stream_may_leave(compiled):
    command = f"yes 'w1 w2' | head -n 2000 | {Path(sys.executable).parent}/fairseq-tg translate {compiled} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout.count("\n") == 1 and "Traceback" not in done.stderr


BAD = {
    "compile none.pt m.tg": r"none\.pt",
    "compile {lstm} m.tg": "because of a LSTMModel: only Transformers are compiled",
    "compile {transformer} m.tg --data {empty}": "there are no dictionaries of the model in",
    "compile {transformer} m.tg --sentencepiece-model sp.model": "is not the dictionary's subword model",
    "compile {transformer} nowhere/m.tg": "cannot write 'nowhere/m.tg'",
    "compile {transformer} m.tg --actor-weights none": "no actor file at 'none'",
    "translate {compiled} --threads 5000": "5000 threads: give one to 1024",
    "translate {transformer}": "is no compiled model, or a damaged one",
    "bench --data {data} --base {transformer} --actor {transformer} --actor {transformer}": "the same name",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_ends_in_one_line(workspace, compiled, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    names = {"empty": "empty", "compiled": compiled, "data": workspace.data, **workspace.bases}
    with pytest.raises(UserError, match=BAD[command]) as error:
        run_tg(*command.format(**names).split())
    assert "\n" not in str(error.value)
    assert not (tmp_path / "m.tg").exists()


def test_a_checkpoint_whose_data_has_gone_asks_for_it(workspace, tmp_path, monkeypatch):
    import torch

    state = torch.load(workspace.bases["transformer"])
    state["cfg"]["task"]["data"] = "gone"
    torch.save(state, tmp_path / "base.pt")
    with pytest.raises(UserError, match=r"not where it was trained \('gone'\): give --data"):
        run_tg("compile", tmp_path / "base.pt", tmp_path / "m.tg")


@pytest.mark.parametrize("base", ["transformer", "lstm"])
def test_bench_compares_what_there_is(workspace, trained, base, tmp_path):
    flags = ["--data", workspace.data, "--base", workspace.bases[base], "--actor", trained[base], "--subset", "valid"]
    flags += ["--sentences", "3", "--batched-sentences", "6", "--turns", "2", "--max-len-b", "9", "--out", tmp_path]
    more = ["--peer", "ctranslate2", "--cont", workspace.bases[base]] if base == "transformer" else []
    printed = run_tg("bench", *flags, *more)
    found = json.loads((tmp_path / "bench.json").read_text())
    names = {"fairseq greedy", "fairseq beam 4", "fast greedy base", "fairseq greedy tg", "fast greedy tg"}
    if base == "transformer":
        names |= {f"compiled {model} {precision}" for model in ("tg", "cont.") for precision in ("float32", "int8")}
        names.add("fast greedy cont.")
        searches = ("greedy", "beam 4", "greedy cont.")
        names |= {f"CTranslate2 {search} {precision}" for search in searches for precision in ("float32", "int8")}
        assert found["systems"]["compiled tg float32"]["bleu"] == found["systems"]["fairseq greedy tg"]["bleu"]
        assert found["bounds"]["tg float32"]["weights"] > found["bounds"]["base float32"]["weights"]
        assert found["systems"]["compiled tg float32"]["peak_bytes"] < found["systems"]["fairseq greedy"]["peak_bytes"]
    assert set(found["systems"]) == names and all(name in printed for name in names)
    assert found["systems"]["fast greedy base"]["bleu"] == found["systems"]["fairseq greedy"]["bleu"]
    for system in found["systems"].values():
        spread = system["single_tokens_per_second"]
        assert 0 < spread["low"] <= spread["median"] <= spread["high"]
    assert (tmp_path / "bench.txt").read_text() in printed
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
