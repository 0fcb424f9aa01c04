"""Oracle k-best corpora through the real commands: what is in them, and that nothing gets lost."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from fairseq import options
from fairseq.data import Dictionary, data_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_tg.corpus.directory import CorpusDirectory
from fairseq_tg.corpus.launch import ShardJob, build_on_slurm
from fairseq_tg.decoding.corpus_run import CorpusRun
from fairseq_tg.errors import UserError
from fairseq_tg.objectives import get_objective
from tests.conftest import IN_PROCESS, USER_DIR, hypotheses, run, run_process, run_tg, write_corpus

BEAM = 4
FORK = multiprocessing.get_context("fork")
BASE = "fconv"  # the tiny base that has learnt the most


@pytest.fixture(scope="module")
def data(workspace, tmp_path_factory) -> str:
    """Sentences of all kinds, in the dictionaries of the bases: empty ones and a long one among them."""
    directory = tmp_path_factory.mktemp("data")
    write_corpus(directory, {"train": 37, "valid": 5})
    source = (directory / "train.xx").read_text().splitlines()
    target = (directory / "train.yy").read_text().splitlines()
    source[3], target[8], source[20] = "", "", " ".join(["w1"] * 1100)
    (directory / "train.xx").write_text("\n".join(source) + "\n")
    (directory / "train.yy").write_text("\n".join(target) + "\n")
    dictionaries = ["--srcdict", f"{workspace.data}/dict.xx.txt", "--tgtdict", f"{workspace.data}/dict.yy.txt"]
    prefixes = ["--trainpref", directory / "train", "--validpref", directory / "valid"]
    destination = ["--destdir", directory / "bin", "--workers", "1"]
    run("fairseq-preprocess", "-s", "xx", "-t", "yy", *prefixes, *dictionaries, *destination)
    return str(directory / "bin")


def flags(workspace, data: str, out: Any, *more: Any) -> List[str]:
    return [
        *(data, "--user-dir", USER_DIR, "--task", "tg_translation", "--path", workspace.bases[BASE], "--gen-subset"),
        *("train", "--beam", str(BEAM), "--max-len-b", "20", "--kbest-dir", str(out), "--kbest-block", "6"),
        *("--batch-size", "4", *IN_PROCESS, *map(str, more)),
    ]


def build(workspace, data: str, out: Any, *more: Any) -> Tuple[str, Dict[str, Any]]:
    printed = run("fairseq-generate", *flags(workspace, data, out, *more))
    return printed, CorpusDirectory(str(out)).manifest or {}


def root_of(workspace, data: str, out: Any) -> Any:
    """All options of a command that builds a corpus, as fairseq-generate has them."""
    args = options.parse_args_and_arch(options.get_generation_parser(), flags(workspace, data, out))
    return convert_namespace_to_omegaconf(args)


def pairs(path: Any) -> List[Tuple[str, str]]:
    """The training split of a data directory, as text."""
    sides = []
    for lang in ("xx", "yy"):
        dictionary = Dictionary.load(f"{path}/dict.{lang}.txt")
        dataset = data_utils.load_indexed_dataset(f"{path}/train.xx-yy.{lang}")
        sides.append([dictionary.string(dataset[i]) for i in range(len(dataset))])
    return list(zip(*sides))


def files(path: Any) -> Dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(Path(path).iterdir()) if p.is_file()}


def exit_code(function: Any, *args: Any) -> int:
    """Run a function in a process of its own, as one that holds a lock ends."""
    process = FORK.Process(target=function, args=args)
    process.start()
    process.join()
    return process.exitcode


@pytest.fixture(scope="module")
def whole(workspace, data, tmp_path_factory) -> Path:
    """A corpus built in one go, with its k-best lists."""
    out = tmp_path_factory.mktemp("whole") / "corpus"
    build(workspace, data, out, "--kbest-jsonl")
    return out


def lists(path: Path) -> List[Dict[str, Any]]:
    with gzip.open(path / "kbest.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def test_top1_is_the_best_of_the_beam(workspace, data, whole):
    stored = lists(whole)
    assert [entry["id"] for entry in stored] == list(range(37))
    objective, original = get_objective("sbleu"), pairs(data)
    chosen = iter(pairs(whole))
    for entry in stored:
        source, reference = original[entry["id"]]
        if "skipped" in entry:
            continue
        scores = [objective.score(h["text"], reference) for h in entry["hypotheses"]]
        assert len(scores) == BEAM and scores == pytest.approx([h["objective"] for h in entry["hypotheses"]])
        assert entry["chosen"] == [scores.index(max(scores))]
        assert next(chosen) == (source, entry["hypotheses"][entry["chosen"][0]]["text"])
    assert next(chosen, None) is None


def test_the_lists_are_those_of_fairseqs_own_beam_search(workspace, data, whole):
    plain = run(
        *("fairseq-generate", data, "--path", workspace.bases[BASE], "--gen-subset", "train", "--nbest", str(BEAM)),
        *("--beam", str(BEAM), "--max-len-b", "20", "--skip-invalid-size-inputs-valid-test", *IN_PROCESS),
        *("--required-batch-size-multiple", "1"),
    )
    found: Dict[int, List[str]] = {}
    for line in plain.splitlines():
        if line.startswith("H-"):
            number, _, text = line.split("\t")
            found.setdefault(int(number[2:]), []).append(text)
    for entry in lists(whole):
        if "skipped" not in entry:
            assert [h["text"] for h in entry["hypotheses"]] == found[entry["id"]]


def test_every_source_is_there_once_or_skipped_with_a_reason(whole):
    manifest = CorpusDirectory(str(whole)).manifest
    assert manifest["skipped"] == [
        {"id": 3, "reason": "empty source: there are no words"},
        {"id": 8, "reason": "empty target: there are no words"},
        {"id": 20, "reason": "too long source: 1101 tokens, 1022 allowed"},
    ]
    assert manifest["counts"]["pairs"] == len(pairs(whole)) == 34
    assert manifest["recipe"]["signature"] == get_objective("sbleu").signature
    assert manifest["command"].startswith("fairseq-generate") and "--kbest-dir" in manifest["command"]


def test_generate_prints_and_scores_what_was_chosen(workspace, data, tmp_path):
    printed, manifest = build(workspace, data, tmp_path / "x", "--scoring", "sacrebleu")
    assert sorted(hypotheses(printed).values()) == sorted(target for _, target in pairs(tmp_path / "x"))
    plain = run(
        *("fairseq-generate", data, "--path", workspace.bases[BASE], "--gen-subset", "train", "--scoring", "sacrebleu"),
        *("--beam", str(BEAM), "--max-len-b", "20", "--skip-invalid-size-inputs-valid-test", *IN_PROCESS),
    )

    def bleu(output: str) -> float:
        return float(output.splitlines()[-1].split("BLEU = ")[1].split()[0])

    assert bleu(printed) > bleu(plain) + 2  # the oracle's score
    assert manifest["means"]["chosen"] > manifest["means"]["rank 1"]
    assert "complete, 34 pairs of 37 source sentences; skipped: 1 empty source, 1 empty target" in printed


def test_fairseq_train_takes_the_corpus_as_it_is(workspace, whole, tmp_path):
    train = workspace.train_flags(BASE, "--save-dir", tmp_path, "--max-update", "2")
    run("fairseq-train", whole, *train[1:])
    assert (tmp_path / "checkpoint_last.pt").exists()  # with a validation on the original's own split


def test_the_same_command_again_finds_it_complete(workspace, data, whole, capsys):
    before = files(whole)
    with pytest.raises(SystemExit) as end:
        build(workspace, data, whole, "--kbest-jsonl")
    assert end.value.code == 0 and files(whole) == before
    assert "complete, 34 pairs" in run_tg("corpus", "status", whole)


def test_another_command_in_the_same_directory_is_refused(workspace, data, whole):
    with pytest.raises(UserError, match='begun with other settings: objective was "sbleu", is "chrf"; signature was'):
        build(workspace, data, whole, "--kbest-jsonl", "--objective", "chrf")


@pytest.mark.parametrize("batching", [["--batch-size", "1"], ["--batch-size", "30"], ["--max-tokens", "60"]])
def test_batching_does_not_change_the_corpus(workspace, data, whole, tmp_path, batching):
    build(workspace, data, tmp_path / "x", *batching, "--kbest-block", "13")
    assert pairs(tmp_path / "x") == pairs(whole)


@pytest.mark.parametrize("objective", ["chrf", "ter", "meteor", "nist", "tests.unit.test_objectives:shorter_is_better"])
def test_stored_lists_are_used_again(workspace, data, whole, tmp_path, objective):
    build(workspace, data, tmp_path / "direct", "--objective", objective)
    _, manifest = build(workspace, data, tmp_path / "stored", "--objective", objective, "--kbest-from", whole)
    assert pairs(tmp_path / "stored") == pairs(tmp_path / "direct")
    assert manifest["counts"]["pairs"] == 34


def test_stored_lists_without_a_reference_are_decoded_now(workspace, data, whole, tmp_path):
    """The sentence with an empty target was skipped there, and is wanted here."""
    for name, more in (("direct", ()), ("stored", ("--kbest-from", whole))):
        build(workspace, data, tmp_path / name, "--selection", "mbr", *more)
    assert pairs(tmp_path / "stored") == pairs(tmp_path / "direct") and len(pairs(tmp_path / "stored")) == 35


def test_stored_lists_of_another_search_are_refused(workspace, data, whole, tmp_path):
    with pytest.raises(UserError, match="made with other settings: beam was 4, is 3"):
        build(workspace, data, tmp_path / "x", "--kbest-from", whole, "--beam", "3")
    build(workspace, data, tmp_path / "bare")
    with pytest.raises(UserError, match="has no stored k-best lists: build it with --kbest-jsonl"):
        build(workspace, data, tmp_path / "y", "--kbest-from", tmp_path / "bare")


def test_full_thd_comb_and_topn(workspace, data, whole, tmp_path):
    original, stored = pairs(data), [entry for entry in lists(whole) if "skipped" not in entry]
    for name in ("full", "thd", "comb", "topn:2"):
        build(workspace, data, tmp_path / name, "--selection", name, "--kbest-from", whole)
    assert len(pairs(tmp_path / "full")) == BEAM * len(stored)
    assert len(pairs(tmp_path / "topn:2")) == 2 * len(stored)
    expected = []
    for entry in stored:
        source, gold = original[entry["id"]]
        expected += [(source, entry["hypotheses"][entry["chosen"][0]]["text"]), (source, gold)]
    assert pairs(tmp_path / "comb") == expected
    # the greedy output, decoded in the same run, is fairseq's own
    greedy = hypotheses(
        run(
            *("fairseq-generate", data, "--path", workspace.bases[BASE], "--gen-subset", "train", "--beam", "1"),
            *("--max-len-b", "20", "--skip-invalid-size-inputs-valid-test", "--required-batch-size-multiple", "1"),
            *IN_PROCESS,
        )
    )
    objective, better = get_objective("sbleu"), []
    for entry in stored:
        source, gold = original[entry["id"]]
        floor = objective.score(greedy[entry["id"]], gold)
        ranked = sorted(entry["hypotheses"], key=lambda h: -h["objective"])
        better += [(source, h["text"]) for h in ranked if h["objective"] > floor]
    assert pairs(tmp_path / "thd") == better and 0 < len(better) < BEAM * len(stored)
    manifest = CorpusDirectory(str(tmp_path / "thd")).manifest
    none = [entry for entry in manifest["skipped"] if entry["reason"].startswith("nothing chosen")]
    assert len({source for source, _ in better}) <= 34 - len(none)


def test_mbr_needs_no_reference(workspace, data, tmp_path):
    for path in Path(data).iterdir():
        if not path.name.startswith("train.xx-yy.yy"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    _, manifest = build(workspace, str(tmp_path), tmp_path / "x", "--selection", "mbr", "--objective", "chrf")
    assert manifest["counts"]["pairs"] == 35  # the sentence without a target too
    with pytest.raises(UserError, match=r"has no yy side of train: --selection top1 compares with a reference"):
        build(workspace, str(tmp_path), tmp_path / "y")
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize("shards", [2, 3, 9])
def test_shards_merged_are_one_build(workspace, data, whole, tmp_path, shards):
    """In directories of their own, as on machines of their own; 9 are more than there are blocks."""
    for shard in range(shards):
        try:
            build(workspace, data, tmp_path / str(shard), "--kbest-jsonl", "--kbest-shard", f"{shard}/{shards}")
        except SystemExit as end:
            assert end.code == 0  # a shard without any block
    directories = [tmp_path / str(shard) for shard in range(shards)]
    run_tg("corpus", "merge", *directories, "--out", tmp_path / "out")
    ours, theirs = files(tmp_path / "out"), files(whole)
    for content in (ours, theirs):
        manifest = json.loads(content.pop("manifest.json"))
        content["rest"] = json.dumps(
            {k: v for k, v in manifest.items() if k != "command"}
        ).encode()  # it names the directory
    assert ours == theirs


def test_missing_and_double_shards_are_refused(workspace, data, tmp_path):
    for name, shard in (("a", "0/2"), ("b", "0/2"), ("c", "1/2")):
        build(workspace, data, tmp_path / name, "--kbest-shard", shard)
    a, b, c = (str(tmp_path / name) for name in "abc")
    for directories, message in (
        ([a], "source ids 6 to 11 are missing"),
        ([a, b, c], "source ids 0 to 5 are there more than once"),
        ([a, data], "is no k-best corpus"),
    ):
        with pytest.raises(UserError, match=message):
            run_tg("corpus", "merge", *directories, "--out", tmp_path / "out")
    assert not list(tmp_path.glob("out/train*"))


def test_fairseqs_own_shard_flags_are_honoured(workspace, data, whole, tmp_path):
    for shard in (0, 1):
        build(workspace, data, tmp_path / "x", "--num-shards", "2", "--shard-id", shard)
    run_tg("corpus", "merge", tmp_path / "x")
    assert pairs(tmp_path / "x") == pairs(whole)
    half = ("--batch-size", "5", "--num-shards", "2", "--shard-id")
    halves = [hypotheses(workspace.generate(workspace.bases[BASE], *half, i)) for i in "01"]
    assert len(halves[0]) + len(halves[1]) == len({**halves[0], **halves[1]}) == 30
    with pytest.raises(UserError, match="not both"):
        build(workspace, data, tmp_path / "y", "--num-shards", "2", "--shard-id", "1", "--kbest-shard", "0/2")


SLOW = "tests.integration.test_corpus:slow_objective"


def slow_objective(hypothesis: str, reference: str) -> float:
    """Takes a while, so that a kill finds the build at work."""
    time.sleep(0.006)
    return -abs(len(hypothesis) - len(reference))


def test_killed_at_any_instant_it_ends_as_if_it_had_not_been(workspace, data, tmp_path):
    options = ("--objective", SLOW, "--kbest-jsonl")
    out, generator, kills = tmp_path / "corpus", random.Random(5), 0
    while not CorpusDirectory(str(out)).complete and kills < 60:
        process = FORK.Process(target=build, args=(workspace, data, out, *options))
        process.start()
        process.join(generator.uniform(0.3, 1.1))
        kills += process.is_alive()
        process.kill()
        process.join()
    assert kills >= 3
    try:
        build(workspace, data, out, *options)
    except SystemExit as end:
        assert end.code == 0
    build(workspace, data, tmp_path / "undisturbed", *options)
    ours, theirs = files(out), files(tmp_path / "undisturbed")
    for content in (ours, theirs):
        manifest = json.loads(content["manifest.json"])
        manifest.pop("command")  # names the program and the directory
        content["manifest.json"] = json.dumps(manifest).encode()
    assert ours == theirs
    assert not list(out.glob("*.tmp*")) and not (out / "blocks").exists()


def test_a_full_disk_stops_it_and_keeps_what_was_committed(workspace, data, whole, tmp_path):
    """A limit on the size of a file stands for the end of the disk."""
    out = tmp_path / "corpus"
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900)); from fairseq_cli.generate import cli_main; cli_main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, *flags(workspace, data, out, "--kbest-jsonl")], capture_output=True, text=True
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("fairseq_tg: error: cannot write")
    if CorpusDirectory(str(out)).manifest is None:
        assert not out.exists() or not list(out.glob("*.json"))
    build(workspace, data, out, "--kbest-jsonl")
    assert pairs(out) == pairs(whole)


def test_status_of_a_build_under_way(workspace, data, tmp_path):
    build(workspace, data, tmp_path / "x", "--kbest-shard", "0/2")
    shown = run_tg("corpus", "status", tmp_path / "x")
    assert "building, 19 of 37 source sentences done (51.4%)" in shown
    assert "skipped: 1 empty source" in shown and "at rank 1" in shown and "begun with: fairseq-generate" in shown
    with pytest.raises(UserError, match="is no k-best corpus"):
        run_tg("corpus", "status", tmp_path)


def test_damage_is_named(workspace, data, whole, tmp_path):
    out = tmp_path / "x"
    build(workspace, data, out)
    (out / "train.xx-yy.yy.bin").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"train.xx-yy.yy.bin' is missing or damaged"):
        run_tg("corpus", "status", out)
    build(workspace, data, tmp_path / "y", "--kbest-shard", "0/2")
    block = tmp_path / "y" / "blocks" / "000002.jsonl.gz"
    block.write_bytes(block.read_bytes()[:-3])
    assert exit_code(build, workspace, data, tmp_path / "y", "--kbest-shard", "0/2") == 1
    with pytest.raises(UserError, match=r"000002.jsonl.gz' is damaged: delete"):
        CorpusDirectory(str(tmp_path / "y")).blocks.read(2)
    (tmp_path / "y" / "blocks" / "000002.json").unlink()
    build(workspace, data, tmp_path / "y", "--kbest-shard", "0/2")


def test_build_launches_shards_and_merges(workspace, data, whole, tmp_path):
    command = flags(workspace, data, tmp_path / "x", "--kbest-jsonl")
    plugin = command.index("--user-dir")
    del command[plugin : plugin + 4]  # it knows its own plugin and task
    done = run_process("fairseq-tg", "corpus", "build", "--shards", "2", "--", *command)
    assert done.returncode == 0, done.stderr
    assert "complete, 34 pairs" in done.stdout
    assert pairs(tmp_path / "x") == pairs(whole) and lists(tmp_path / "x") == lists(whole)
    done = run_process("fairseq-tg", "corpus", "build", "--shards", "2", "--", *command, "--beam", "999")
    assert done.returncode == 1 and "--beam 999 is too large" in done.stderr


def test_a_preempted_job_is_queued_again():
    job = ShardJob(["data"], 1, 2, threads=1)
    assert job.checkpoint().function is job and job.command()[-2:] == ["--kbest-shard", "1/2"]


def test_another_engine_chooses_the_same(workspace, data, tmp_path):
    """An unmodified Transformer, with CTranslate2: the search is another program's, all else is the same."""
    for engine in ("fairseq", "ctranslate2"):
        more = ("--path", workspace.bases["transformer_prenorm"], "--kbest-engine", engine, "--kbest-jsonl")
        build(workspace, data, tmp_path / engine, *more)
    ours, theirs = lists(tmp_path / "ctranslate2"), lists(tmp_path / "fairseq")
    for a, b in zip(ours, theirs):
        assert a["id"] == b["id"] and a.get("skipped") == b.get("skipped")
    agree = [a["hypotheses"][a["chosen"][0]] for a in ours if "chosen" in a]
    expected = [b["hypotheses"][b["chosen"][0]] for b in theirs if "chosen" in b]
    same = sum(a["tokens"] == b["tokens"] for a, b in zip(agree, expected))
    assert same >= 0.9 * len(expected)
    # Not closer: it leaves out the dictionary's padding symbols, to which a tiny model gives some probability
    assert all(abs(a["score"] - b["score"]) < 0.3 for a, b in zip(agree, expected) if a["tokens"] == b["tokens"])


def test_what_another_engine_cannot_do_is_refused(workspace, data, tmp_path):
    base = ("--path", workspace.bases["transformer_prenorm"], "--kbest-engine", "ctranslate2")
    with pytest.raises(UserError, match="ctranslate2 does not know --unkpen: use the engine fairseq"):
        build(workspace, data, tmp_path / "x", *base, "--unkpen", "1")
    with pytest.raises(UserError, match="CTranslate2 cannot convert"):
        build(workspace, data, tmp_path / "y", "--kbest-engine", "ctranslate2")  # a ConvS2S


def test_jobs_of_a_cluster(workspace, data, whole, tmp_path):
    """With submitit's local executor in the place of Slurm."""
    command = flags(workspace, data, tmp_path / "x")
    build_on_slurm(command, str(tmp_path / "x"), shards=2, threads=1, parameters={"timeout_min": 5}, cluster="local")
    assert pairs(tmp_path / "x") == pairs(whole)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--objective", "bleu"], "unknown objective 'bleu'"),
        (["--selection", "best"], "unknown selection 'best'"),
        (["--kbest-engine", "marian"], "unknown engine 'marian': --kbest-engine takes one of fairseq, ctranslate2"),
        (["--kbest-shard", "2/2"], "--kbest-shard 2/2: give I/N"),
        (["--beam", "99"], "--beam 99 is too large for a dictionary of"),
        (["--kbest-block", "0"], "--kbest-block 0"),
        (["--objective", "tests.unit.test_objectives:not_a_number"], r"gave nan for sentence \d+, hypothesis"),
        (["--objective", "tests.unit.test_objectives:explode"], r"raised RuntimeError: boom for sentence \d+"),
        (["--retain-dropout"], "--retain-dropout does not go with --kbest-dir"),
        (["--prefix-size", "1"], "--prefix-size does not go with --kbest-dir"),
        (["--kbest-from", "/nowhere"], "'/nowhere' has no stored k-best lists"),
    ],
)
def test_bad_options(workspace, data, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        build(workspace, data, tmp_path / "x", *options)
    assert not list((tmp_path / "x").rglob("train*")) and not CorpusDirectory(str(tmp_path / "x")).complete


def test_sentences_that_no_batch_has_room_for_are_skipped(workspace, data, tmp_path):
    _, manifest = build(workspace, data, tmp_path / "x", "--max-tokens", "5")
    over = [entry["id"] for entry in manifest["skipped"] if "5 allowed" in entry["reason"]]
    assert len(over) > 1 and manifest["counts"]["pairs"] == 37 - len(manifest["skipped"]) == len(pairs(tmp_path / "x"))


def test_no_other_training_data_comes_along(workspace, data, tmp_path):
    """fairseq-train reads train1, train2, ... together with train."""
    for path in Path(data).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
        if path.name.startswith("valid"):
            (tmp_path / path.name.replace("valid", "train1")).write_bytes(path.read_bytes())
    build(workspace, str(tmp_path), tmp_path / "x")
    names = {path.name.split(".")[0] for path in (tmp_path / "x").glob("*.bin")}
    assert names == {"train", "valid"}


def test_an_unknown_word_is_no_match(workspace, data, tmp_path):
    """What the reference's unknown words are written as is not what a hypothesis' are."""
    run = CorpusRun(workspace.task(), root_of(workspace, data, tmp_path))
    unknown = workspace.task().target_dictionary.unk()
    assert run.to_text([unknown]) != run.to_text([unknown], True)


def test_other_commands_build_no_corpus(workspace, tmp_path):
    with pytest.raises(UserError, match="--kbest-dir builds a corpus with fairseq-generate: leave it out"):
        workspace.train(BASE, tmp_path / "save", "--kbest-dir", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_merge_needs_the_data_it_was_built_from(workspace, data, tmp_path):
    build(workspace, data, tmp_path / "x", "--kbest-shard", "0/1")
    for shard in ("0/2", "1/2"):
        build(workspace, data, tmp_path / "y", "--kbest-shard", shard)
    with pytest.raises(UserError, match="is not the data that the corpus was built from"):
        run_tg("corpus", "merge", tmp_path / "y", "--out", tmp_path / "z", "--data", workspace.data)
    run_tg("corpus", "merge", tmp_path / "y", "--out", tmp_path / "w", "--data", data)
    assert pairs(tmp_path / "w") == pairs(tmp_path / "x")


def test_a_base_with_another_dictionary(workspace, tmp_path):
    write_corpus(tmp_path, {"train": 5, "valid": 5})
    prefixes = ["--trainpref", tmp_path / "train", "--validpref", tmp_path / "valid"]
    run("fairseq-preprocess", "-s", "xx", "-t", "yy", *prefixes, "--destdir", tmp_path / "bin", "--workers", "1")
    with pytest.raises(UserError, match=r"does not fit the data \(size mismatch for encoder.embed_tokens.weight"):
        build(workspace, str(tmp_path / "bin"), tmp_path / "x")
    assert not (tmp_path / "x").exists()
