"""Translation as users call it: the fast path inside fairseq's commands, compiled files, and the benchmark."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Iterator, List

import pytest

from fairseq_tg.compiled import Translator, translator
from fairseq_tg.compiled.engine import EngineError
from fairseq_tg.compiled.filter import AHEAD, WINDOW, Filter
from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.measure import probe
from fairseq_tg.evaluation.systems import System
from tests.conftest import FAMILIES, IN_PROCESS, USER_DIR, hypotheses, run_forked, run_process, run_tg
from tests.documented import documented

LOG2_E = 1.4426950408889634
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
@pytest.mark.parametrize("beam, batch", [(1, 1), (1, 30), (4, 30)])
def test_generate_prints_the_same_on_the_fast_path(workspace, trained, base, beam, batch):
    flags = ["--beam", beam, "--nbest", beam, "--batch-size", batch]
    fast = workspace.generate(trained[base], *flags)
    slow = workspace.generate(trained[base], *flags, "--no-fast-search" if beam > 1 else "--no-fast-greedy")
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
    fast, slow = (run_forked("fairseq-interactive", *flags, *more, stdin=text) for more in ([], ["--no-fast-greedy"]))
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


def test_a_compiled_model_searches_as_fairseq_does(workspace, trained, compiled):
    printed = workspace.generate(trained["transformer"], "--beam", "4", "--nbest", "2", "--lenpen", "0.5")
    lines = [line.split("\t") for line in printed.splitlines()]
    source = {int(fields[0][2:]): fields[1] for fields in lines if fields[0].startswith("S-")}
    found = {i: [fields[1:] for fields in lines if fields[0] == f"H-{i}"] for i in source}
    text = "".join(f"{source[i]}\n" for i in range(30))
    flags = ["--max-len-b", "20", "--beam", "4", "--nbest", "2", "--lenpen", "0.5", "--scores", "--batch-size", "7"]
    done = translate(compiled, f"{text}\n".encode(), *flags)
    assert done.returncode == 0, done.stderr
    *output, no_score, none = [line.split("\t") for line in done.stdout.decode().splitlines()]
    expected = [hypothesis for i in range(30) for hypothesis in found[i]]
    assert [text for _, text in output] == [text for _, text in expected] and no_score == none == [""]
    # which fairseq prints of bits
    for (ours, _), (theirs, _) in zip(output, expected):
        assert float(ours) * LOG2_E == pytest.approx(float(theirs), abs=2e-4)


def test_one_process_serves_many_actors(workspace, trained, compiled, tmp_path):
    run_tg("compile", workspace.bases["transformer"], tmp_path / "base.tg")
    run_tg("compile", workspace.bases["transformer"], tmp_path / "small.tg", "--int8")
    run_tg("actor", "export", trained["transformer"], tmp_path / "a.safetensors")
    other = workspace.train("transformer", tmp_path / "rnn", "--actor", "rnn", "--actor-sites", "all", "--lr", "0.1")
    run_tg("actor", "export", other, tmp_path / "b.safetensors")
    run_tg("compile", other, tmp_path / "other.tg")
    maps = workspace.train("transformer", tmp_path / "maps", "--actor-sites", "maps", "--lr", "0.1")
    run_tg("actor", "export", maps, tmp_path / "c.safetensors")
    run_tg("compile", maps, tmp_path / "maps.tg")
    with_maps = {"three": tmp_path / "c.safetensors"}
    files = {"one": tmp_path / "a.safetensors", "two": tmp_path / "b.safetensors"}
    lines = [line for line in LINES * 3 if line]
    translator = Translator.load(str(tmp_path / "base.tg"), actors=files)
    assert translator.actors == ["one", "two"]
    expected = {"one": compiled, "two": tmp_path / "other.tg", None: tmp_path / "base.tg"}
    outputs = {name: Translator.load(str(path)).translate(lines) for name, path in expected.items()}
    assert len({tuple(output) for output in outputs.values()}) == 3
    for name, output in outputs.items():
        assert translator.translate(lines, actor=name) == output
    assert len(Translator.load(str(tmp_path / "small.tg"), actors=files).translate(lines, actor="two")) == len(lines)
    # Actors beside the base's maps are in the place of its matrices: in a file of its own, on a base, and not at all
    beside = Translator.load(str(tmp_path / "base.tg"), actors=with_maps)
    alone = Translator.load(str(tmp_path / "maps.tg"))
    assert beside.translate(lines, actor="three") == alone.translate(lines) != outputs[None]
    assert beside.translate(lines, actor=None) == alone.translate(lines, actors=False) == outputs[None]
    both = Translator.load(str(tmp_path / "base.tg"), actors={**with_maps, **files})  # some are in its place, some not
    for name, output in {**outputs, "three": alone.translate(lines)}.items():
        assert both.translate(lines, actor=name) == output
    assert len(Translator.load(str(tmp_path / "small.tg"), actors=with_maps).translate(lines)) == len(lines)
    with pytest.raises(ValueError, match="no actor 'three': there are one, two"):
        translator.translate(lines, actor="three")
    flags = [word for name, path in files.items() for word in ("--actor", f"{name}={path}")]
    names = ["one", "two"] * len(lines)
    text = "".join(f"{name}\t{line}\n" for name, line in zip(names, [x for line in lines for x in (line, line)]))
    done = translate(tmp_path / "base.tg", f"{text}w1\n".encode(), *flags, "--batch-size", "2")
    assert done.stdout.decode().splitlines() == [x for pair in zip(outputs["one"], outputs["two"]) for x in pair] + [""]
    assert b"it names no actor: begin it with one of one, two and a tab; its translation is left empty" in done.stderr
    assert translate(tmp_path / "base.tg", b"w1\n", *flags[:2]).returncode == 0  # the only one needs no name
    run_tg("actor", "export", trained["lstm"], tmp_path / "lstm.safetensors")
    for path, on, message in (
        (tmp_path / "lstm.safetensors", "base.tg", "are for a lstm model, the base is a transformer"),
        (tmp_path / "a.safetensors", "other.tg", "on a model that has actors: compile the base alone"),
        (tmp_path / "none", "base.tg", "no actor file at"),
    ):
        with pytest.raises(ValueError, match=message):
            Translator.load(str(tmp_path / on), actors={"x": str(path)})


def test_memory_does_not_grow_with_the_stream(compiled):
    """Of the windows of a stream some are under way, however many there are."""

    def lines(count: int) -> Iterator[bytes]:
        for i in range(count):
            read.append(len(written))
            yield f"w{i % 9} w{i % 7}\n".encode()

    read: List[int] = []
    written: List[bytes] = []
    target = SimpleNamespace(write=written.append, flush=lambda: None)
    translator = Translator.load(str(compiled), threads=2, max_len_b=5)
    assert Filter(translator, batch_size=4).run(lines(2000), target) == 0  # type: ignore[arg-type]
    assert len(written) == 2000
    assert max(at - done for at, done in enumerate(read)) <= 4 * WINDOW * AHEAD


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
    lines = [
        b"w1 w2",
        b"",
        b"w1 w2\r",
        b"w1 \xff\xfe w2",
        b"w3 " * 100_000,
        "w1 \u202e\u05d0 \t\x00".encode(),
        b"w1 w2",
    ]
    done = translate(compiled, b"\n".join(lines), "--batch-size", "3")
    output = done.stdout.decode().splitlines()
    assert done.returncode == 1 and len(output) == len(lines)
    assert output[0] == output[2] == output[6] != "" and output[1] == output[4] == ""
    errors = done.stderr.decode().splitlines()
    assert errors[0].startswith("fairseq_tg: line 4: not UTF-8")
    assert errors[1].startswith("fairseq_tg: line 5: a line of 100000 tokens: this model takes up to 1023; split it")
    assert errors[2] == "fairseq_tg: error: 1 line was not translated: see above" and len(errors) == 3


def test_messages_that_nobody_hears_are_not_among_the_translations(compiled):
    """Python's print writes to standard output where standard error is closed."""
    lines = b"w1 w2\n\xff\n" + b"w3 " * 100_000 + b"\nw1 w2\n"
    for stderr in ("2>&-", "2>/dev/full"):
        command = f"{shlex.quote(sys.executable)} -m fairseq_tg.cli translate {shlex.quote(str(compiled))} {stderr}"
        done = subprocess.run(["bash", "-c", command], input=lines, stdout=subprocess.PIPE)
        output = done.stdout.decode().splitlines()
        assert done.returncode == 1 and len(output) == 4 and output[0] == output[3] != "" == output[2]


def test_the_mark_at_the_beginning_of_a_file_is_no_part_of_its_first_word(compiled):
    """Windows' editors write it; the word would be an unknown one. Elsewhere it is a character as any other."""
    marked, plain = (translate(compiled, line + b"\nw1", "--scores").stdout for line in (b"\xef\xbb\xbfw1", b"w1"))
    assert marked == plain and len(set(plain.splitlines())) == 1
    second = translate(compiled, b"w1\n\xef\xbb\xbfw1", "--scores").stdout
    assert len(set(second.splitlines())) == 2


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
    "compile {transformer} m.tg --data {empty}": "there are no dictionaries of the model in",
    "compile {transformer} m.tg --sentencepiece-model sp.model": "is not the dictionary's subword model",
    "compile {transformer} nowhere/m.tg": "cannot write 'nowhere/m.tg'",
    "compile {transformer} m.tg --actor-weights none": "no actor file at 'none'",
    "translate {compiled} --beam 4 --nbest 5": "the 5 best of a beam of 4: give a beam of at least as many",
    "translate {compiled} --beam 500": "a beam of 500: a dictionary of [0-9]+ allows one to [0-9]+",
    "translate {compiled} --actor file": "--actor file: give a name and a file",
    "translate {compiled} --actor a=x --actor a=y": "give every actor a name of its own",
    "translate {compiled} --threads 5000": "5000 threads: give one to 1024",
    "translate {transformer}": "is a checkpoint: compile it, with fairseq-tg compile",
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


@pytest.mark.parametrize("error", [MemoryError("Unable to allocate 9 GiB"), EngineError("not enough memory for this")])
@pytest.mark.parametrize("command", ["translate {compiled}", "explain {compiled} w1"])
def test_a_model_that_does_not_fit_ends_in_one_line(compiled, monkeypatch, command, error):
    def make(*args, **kwargs):
        raise error

    monkeypatch.setattr(translator, "Engine", make)
    with pytest.raises(UserError, match="not enough memory"):
        run_tg(*command.format(compiled=compiled).split())


def test_a_checkpoint_whose_data_has_gone_asks_for_it(workspace, tmp_path, monkeypatch):
    import torch

    state = torch.load(workspace.bases["transformer"])
    state["cfg"]["task"]["data"] = "gone"
    torch.save(state, tmp_path / "base.pt")
    with pytest.raises(UserError, match=r"not where it was trained \('gone'\): give --data"):
        run_tg("compile", tmp_path / "base.pt", tmp_path / "m.tg")


def test_a_compiled_model_is_ready_sooner_and_takes_less_memory(workspace, trained, compiled):
    """Both in processes of their own, which import what they need."""
    paths = {"compiled": str(compiled), "fairseq": trained["transformer"]}
    found = {kind: probe(System(kind, kind, path, workspace.data), [[5, 6, 2]]) for kind, path in paths.items()}
    for name in ("start_seconds", "peak_bytes"):
        assert 0 < found["compiled"][name] < found["fairseq"][name]


@pytest.mark.parametrize("base", ["transformer", "lstm"])
@pytest.mark.usefixtures("forked_probes")
def test_bench_compares_what_there_is(workspace, trained, base, tmp_path):
    own = {"data-bin": workspace.data, "base.pt": workspace.bases[base]}
    own["checkpoints/checkpoint_last.pt"] = trained[base]
    words = documented("docs/decoding.md", "fairseq-tg bench", own)[1:]
    more = ["--cont", workspace.bases[base]]
    if base != "transformer":
        words, more = words[: words.index("--peer")], []
    few = ["--sentences", "3", "--batched-sentences", "6", "--turns", "2", "--max-len-b", "9", "--subset", "valid"]
    printed = run_tg(*words, *more, *few, "--out", tmp_path)
    found = json.loads((tmp_path / "bench.json").read_text())
    models = ("base", "tg", "cont.") if base == "transformer" else ("base", "tg")
    names = {f"fairseq {search}{model}" for search in ("greedy", "beam 4") for model in ("", " tg")}
    names |= {f"fast {search} {model}" for search in ("greedy", "beam 4") for model in models}
    names |= {f"compiled {m}{search} {p}" for m in models for search in ("", " beam 4") for p in ("float32", "int8")}
    if base == "transformer":
        searches = ("greedy", "beam 4", "greedy cont.")
        names |= {f"CTranslate2 {search} {precision}" for search in searches for precision in ("float32", "int8")}
        assert found["systems"]["compiled tg float32"]["bleu"] == found["systems"]["fairseq greedy tg"]["bleu"]
        assert found["bounds"]["tg float32"]["weights"] > found["bounds"]["base float32"]["weights"]
        assert {(r["of"], r["to"]) for r in found["ratios"]} >= {
            ("compiled base beam 4 int8", "CTranslate2 beam 4 int8"),
            ("compiled tg float32", "compiled base float32"),
        }
    assert found["systems"]["compiled tg beam 4 float32"]["bleu"] == found["systems"]["fairseq beam 4 tg"]["bleu"]
    assert set(found["systems"]) == names and all(name in printed for name in names)
    assert found["systems"]["fast greedy base"]["bleu"] == found["systems"]["fairseq greedy"]["bleu"]
    for system in found["systems"].values():
        spread = system["single_tokens_per_second"]
        assert 0 < spread["low"] <= spread["median"] <= spread["high"]
    assert (tmp_path / "bench.txt").read_text() in printed
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("forked_probes")
def test_a_system_that_does_not_start_is_one_line(workspace):
    with pytest.raises(
        UserError, match=r"tg, in a process of its own, failed with status 1: no checkpoint at 'none\.pt'"
    ):
        probe(System("tg", "fast", "none.pt", workspace.data), [[5, 6, 2]])


@pytest.mark.usefixtures("forked_probes")
def test_bench_of_some_engines(workspace, tmp_path):
    flags = ["--data", workspace.data, "--base", workspace.bases["fconv"], "--subset", "valid", "--out", tmp_path]
    few = ["--sentences", "1", "--batched-sentences", "2", "--turns", "1", "--max-len-b", "5"]
    run_tg("bench", *flags, *few, "--engines", "compiled")
    searches = ("base", "base beam 4")
    names = {f"compiled {search} {precision}" for search in searches for precision in ("float32", "int8")}
    assert set(json.loads((tmp_path / "bench.json").read_text())["systems"]) == names
