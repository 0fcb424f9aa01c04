"""Oracle k-best corpora through the real commands: what is chosen, what is in them, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Dict, List

import pytest
import sacrebleu
import torch
from fairseq.data import Dictionary

from fairseq_tg.corpus.directory import CorpusDirectory
from fairseq_tg.corpus.run import CorpusRun
from fairseq_tg.errors import UserError
from fairseq_tg.objectives import get_objective
from tests.conftest import IN_PROCESS, hypotheses, run, write_corpus
from tests.integration.corpora import BASE, BEAM, build, lists, pairs, root_of


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


def test_the_last_line_scores_words(workspace, data, tmp_path):
    """Without a flag: by default, fairseq counts matches of symbols, here of pieces that make up words."""
    shutil.copytree(data, tmp_path / "pieces")
    lines = (tmp_path / "pieces" / "dict.yy.txt").read_text().splitlines()
    pieces = [line.replace(" ", "@@ ", 1) if line.startswith(("W3", "W4", "W5")) else line for line in lines]
    (tmp_path / "pieces" / "dict.yy.txt").write_text("".join(f"{line}\n" for line in pieces))
    printed, manifest = build(workspace, str(tmp_path / "pieces"), tmp_path / "x")
    texts = {kind: {} for kind in "TD"}
    for line in printed.splitlines():
        if line[:2] in ("T-", "D-"):
            texts[line[0]][line.split("\t")[0][2:]] = line.split("\t")[-1]
    hyps, refs = ([texts[kind][i] for i in sorted(texts["T"])] for kind in "DT")
    expected = sacrebleu.corpus_bleu(hyps, [refs])
    assert len(refs) == 34 and any("W3W" in text for text in refs) and not any("@@" in text for text in hyps + refs)
    assert printed.splitlines()[-1].startswith(f"Generate train with beam=4: {expected.format()} nrefs:1|case:mixed")
    assert manifest["recipe"]["text"]["subwords"] == "subword_nmt"
    assert (tmp_path / "x" / "dict.yy.txt").read_bytes() == (tmp_path / "pieces" / "dict.yy.txt").read_bytes()


def test_fairseq_train_takes_the_corpus_as_it_is(workspace, whole, tmp_path):
    train = workspace.train_flags(BASE, "--save-dir", tmp_path, "--max-update", "2")
    run("fairseq-train", whole, *train[1:])
    assert (tmp_path / "checkpoint_last.pt").exists()  # with a validation on the original's own split


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


def test_the_native_engine_finds_what_fairseq_finds(workspace, data, tmp_path):
    base = ("--path", workspace.bases["transformer_prenorm"], "--kbest-jsonl", "--beam", "7", "--unkpen", "0.5")
    _, manifest = build(workspace, data, tmp_path / "fairseq", *base, "--kbest-engine", "fairseq")
    assert manifest["recipe"]["engine"] == "fairseq"
    _, manifest = build(workspace, data, tmp_path / "default", *base, "--kbest-block", "9")
    assert manifest["recipe"]["engine"] == "native"
    ours, theirs = lists(tmp_path / "default"), lists(tmp_path / "fairseq")
    assert len(ours) == len(theirs) > 30
    for a, b in zip(ours, theirs):
        assert a.get("chosen") == b.get("chosen") and a.get("skipped") == b.get("skipped")
        for x, y in zip(a.get("hypotheses", []), b.get("hypotheses", []), strict=True):
            assert x["tokens"] == y["tokens"]
            assert abs(x["score"] - y["score"]) < 1e-4 and abs(x["log_prob"] - y["log_prob"]) < 1e-3
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        build(workspace, data, tmp_path / "threads", *base, "--kbest-block", "9")
    finally:
        torch.set_num_threads(threads)
    for name in manifest["files"]:
        assert (tmp_path / "threads" / name).read_bytes() == (tmp_path / "default" / name).read_bytes()


def without_padding_symbols(base: str, data: Path, out: Path) -> Path:
    """A base and its data without the symbols that fill dictionaries up, to which CTranslate2 gives no probability."""
    shutil.copytree(data, out)
    for path in out.glob("dict.*.txt"):
        path.write_text("".join(line for line in path.open() if not line.startswith("madeupword")))
    old, new = (len(Dictionary.load(str(directory / "dict.yy.txt"))) for directory in (data, out))
    assert new < old
    state = torch.load(base, weights_only=False)
    state["model"] = {
        name: tensor[:new].clone() if tensor.dim() == 2 and len(tensor) == old else tensor
        for name, tensor in state["model"].items()
    }
    torch.save(state, out / "base.pt")
    return out / "base.pt"


def test_another_engine_finds_the_same_or_likelier(workspace, data, tmp_path):
    """A Transformer with CTranslate2, which goes on where fairseq's search ends; all else is the same."""
    base = without_padding_symbols(workspace.bases["transformer_prenorm"], Path(data), tmp_path / "bin")
    flags = ("--path", base, "--kbest-jsonl", "--min-len", "0")  # else CTranslate2 shares out what the end would have
    for engine in ("fairseq", "ctranslate2"):
        build(workspace, tmp_path / "bin", tmp_path / engine, *flags, "--kbest-engine", engine)
    chosen, same = [], 0
    for a, b in zip(lists(tmp_path / "ctranslate2"), lists(tmp_path / "fairseq")):
        assert a["id"] == b["id"] and a.get("skipped") == b.get("skipped")
        found, expected = ({h["text"]: h["score"] for h in entry.get("hypotheses", [])} for entry in (a, b))
        # At the limit of 20 words, CTranslate2 leaves out what the end of sentence would cost
        common = [text for text in expected if text in found and len(text.split()) < 20]
        assert [found[text] for text in common] == pytest.approx([expected[text] for text in common], abs=1e-4)
        likelier = zip(found.values(), expected.values())
        assert len(found) == len(expected) and all(ours > theirs - 1e-4 for ours, theirs in likelier)
        if "skipped" not in a:
            mine, fairseqs = ([entry["hypotheses"][i]["text"] for i in entry["chosen"]] for entry in (a, b))
            chosen.append(mine == fairseqs)
            same += list(found) == list(expected)
    assert len(chosen) == 34 and sum(chosen) >= 30 and same > 20  # 31 and 22


def test_what_another_engine_cannot_do_is_refused(workspace, data, tmp_path):
    base = ("--path", workspace.bases["transformer_prenorm"], "--kbest-engine", "ctranslate2")
    with pytest.raises(UserError, match="ctranslate2 does not know --unkpen: use the engine fairseq"):
        build(workspace, data, tmp_path / "x", *base, "--unkpen", "1")
    with pytest.raises(UserError, match="CTranslate2 cannot convert"):
        build(workspace, data, tmp_path / "y", "--kbest-engine", "ctranslate2")  # a ConvS2S
    trained = workspace.train("transformer", tmp_path / "tg", "--max-update", "1")
    with pytest.raises(UserError, match=r"ctranslate2 does not know actors, which '.*' has: use the engine native"):
        build(workspace, data, tmp_path / "z", "--path", trained, "--kbest-engine", "ctranslate2")


@pytest.mark.parametrize(
    "options, message",
    [
        (["--objective", "bleu"], "unknown objective 'bleu'"),
        (["--selection", "best"], "unknown selection 'best'"),
        (
            ["--kbest-engine", "marian"],
            "unknown engine 'marian': --kbest-engine takes one of fairseq",
        ),
        (["--kbest-shard", "2/2"], "--kbest-shard 2/2: give I/N"),
        (["--beam", "99"], "--beam 99 is too large for a dictionary of"),
        (["--kbest-block", "0"], "--kbest-block 0"),
        (["--objective", "tests.unit.test_objectives:not_a_number"], r"gave nan for sentence \d+, hypothesis"),
        (["--objective", "tests.unit.test_objectives:explode"], r"raised RuntimeError: boom for sentence \d+"),
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


def test_a_base_with_another_dictionary(workspace, tmp_path):
    write_corpus(tmp_path, {"train": 5, "valid": 5})
    prefixes = ["--trainpref", tmp_path / "train", "--validpref", tmp_path / "valid"]
    run("fairseq-preprocess", "-s", "xx", "-t", "yy", *prefixes, "--destdir", tmp_path / "bin", "--workers", "1")
    with pytest.raises(
        UserError, match=r"does not fit the data or the options \(size mismatch for encoder.embed_tokens.weight"
    ):
        build(workspace, str(tmp_path / "bin"), tmp_path / "x")
    assert not (tmp_path / "x").exists()
