"""The real commands, from a base to a translation, on every family."""

from __future__ import annotations

import re
import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq.logging import progress_bar

from fairseq_tg.actors import ACTORS
from fairseq_tg.loading.checkpoints import fingerprint, load_checkpoint, split_tensors
from tests.conftest import (
    FAMILIES,
    IN_PROCESS,
    REPO,
    TRAIN_BASE,
    USER_DIR,
    Workspace,
    hypotheses,
    run,
    run_forked,
    run_process,
    run_tg,
)

ALL_FAMILIES = pytest.mark.parametrize("base", FAMILIES)


@pytest.fixture(scope="module")
def trained(workspace, tmp_path_factory):
    """A tg checkpoint of every family, trained for two epochs."""
    directory = tmp_path_factory.mktemp("trained")
    return {base: workspace.train(base, directory / base, "--max-epoch", "2") for base in FAMILIES}


@ALL_FAMILIES
@pytest.mark.parametrize("beam", [1, 4])
def test_a_fresh_actor_translates_as_the_base_does(workspace, tmp_path, base, beam):
    tg = workspace.train(base, tmp_path, "--max-update", "1", "--lr", "0")
    ours = workspace.generate(tg, "--beam", beam)
    theirs = workspace.generate(workspace.bases[base], "--beam", beam)
    assert hypotheses(ours) == hypotheses(theirs) and len(hypotheses(ours)) == 30


@ALL_FAMILIES
def test_training_moves_actors_and_nothing_else(workspace, trained, base):
    saved = load_checkpoint(trained[base])
    base_tensors, actors = split_tensors(saved["model"])
    original = load_checkpoint(workspace.bases[base])["model"]
    assert list(map(str, sorted(base_tensors))) == sorted(original)
    assert all(torch.equal(base_tensors[name], original[name]) for name in original)
    assert fingerprint(base_tensors) in saved["cfg"]["model"]["base_record"]
    assert all(tensor.abs().sum() > 0 for tensor in actors.values())
    assert len(saved["last_optimizer_state"]["state"]) == len(actors)


@ALL_FAMILIES
@pytest.mark.parametrize("beam", [1, 4])
def test_batches_and_single_sentences_translate_alike(workspace, trained, base, beam):
    batched = workspace.generate(trained[base], "--beam", beam, "--batch-size", "30")
    single = workspace.generate(trained[base], "--beam", beam, "--batch-size", "1")
    assert hypotheses(batched) == hypotheses(single)


@ALL_FAMILIES
def test_training_does_something(workspace, trained, base):
    ours = workspace.generate(trained[base], "--score-reference").splitlines()
    theirs = workspace.generate(workspace.bases[base], "--score-reference").splitlines()
    assert [line for line in ours if line.startswith("P-")] != [line for line in theirs if line.startswith("P-")]


@pytest.mark.parametrize("actor", ACTORS.names())
@ALL_FAMILIES
def test_every_actor_trains_and_translates(workspace, tmp_path, base, actor):
    tg = workspace.train(base, tmp_path, "--actor", actor, "--actor-hidden", "5", "--max-update", "3")
    assert len(hypotheses(workspace.generate(tg, "--beam", "2"))) == 30


@pytest.mark.parametrize("flags", ["--actor-rank 2", "--actor-layers last", "--base-dropout", "--label-smoothing 0.1"])
def test_options(workspace, tmp_path, flags):
    tg = workspace.train("transformer", tmp_path, *flags.split(), "--max-update", "2")
    assert len(hypotheses(workspace.generate(tg, "--beam", "1"))) == 30


@ALL_FAMILIES
def test_an_interrupted_training_resumes_exactly(workspace, tmp_path, base):
    flags = ("--actor", "rnn", "--label-smoothing", "0.1")
    straight = load_checkpoint(workspace.train(base, tmp_path / "a", *flags, "--max-epoch", "3"))
    workspace.train(base, tmp_path / "b", *flags, "--max-epoch", "1")
    resumed = load_checkpoint(workspace.train(base, tmp_path / "b", *flags, "--max-epoch", "3"))
    assert fingerprint(resumed["model"]) == fingerprint(straight["model"])
    assert resumed["optimizer_history"][-1]["num_updates"] == straight["optimizer_history"][-1]["num_updates"]


def test_an_interrupted_training_has_no_more_patience(workspace, tmp_path):
    """fairseq counts the validations without a gain in the process, and from none in the next one."""

    def train(out: str, *flags: str) -> int:
        flags = ("--lr", "0", "--patience", "3", "--no-epoch-checkpoints", *flags)  # nothing is ever gained
        state = load_checkpoint(workspace.train("lstm", tmp_path / out, *flags))
        return state["extra_state"]["train_iterator"]["epoch"]

    straight = train("straight", "--max-epoch", "9")
    assert train("resumed", "--max-epoch", "3") == 4  # the one that comes next
    assert train("resumed", "--max-epoch", "9") == straight < 9
    start = str(tmp_path / "resumed" / "checkpoint_last.pt")
    assert train("new", "--max-epoch", "9", "--finetune-from-model", start) == straight  # has a patience of its own


@ALL_FAMILIES
def test_a_tg_checkpoint_stands_alone(workspace, trained, base, tmp_path):
    """Neither base nor its options are needed: only the file, and the dictionaries."""
    (tmp_path / "away").mkdir()
    for name in ("dict.xx.txt", "dict.yy.txt"):
        shutil.copy(f"{workspace.data}/{name}", tmp_path / "away")
    alone = shutil.copy(trained[base], tmp_path / "away" / "tg.pt")
    saved = torch.load(alone)
    saved["cfg"]["model"]["base_checkpoint"] = "/nowhere/base.pt"
    torch.save(saved, alone)
    expected = hypotheses(workspace.generate(trained[base], "--beam", "1"))
    source = (Path(workspace.data).parent / "valid.xx").read_text()
    flags = ["--user-dir", USER_DIR, "--task", "tg_translation", "-s", "xx", "-t", "yy", "--path", alone]
    done = run_forked(
        *("fairseq-interactive", tmp_path / "away", *flags, "--beam", "1", "--max-len-b", "20", "--buffer-size", "7"),
        stdin=source,
    )
    assert done.returncode == 0, done.stderr
    assert hypotheses(done.stdout) == expected


def test_training_goes_on_from_a_tg_checkpoint_where_there_is_no_base(workspace, trained, tmp_path):
    flags = workspace.train_flags("transformer", "--save-dir", tmp_path, "--max-update", "1")
    flags[flags.index("--base-checkpoint") + 1] = trained["transformer"]
    run("fairseq-train", *flags)
    ours, theirs = load_checkpoint(f"{tmp_path}/checkpoint_last.pt"), load_checkpoint(trained["transformer"])
    assert ours["cfg"]["model"]["base_record"] == theirs["cfg"]["model"]["base_record"]


@ALL_FAMILIES
def test_actor_files(workspace, trained, tmp_path, base):
    actor_file, again = tmp_path / "actor.safetensors", tmp_path / "again.pt"
    assert "gate actors for base" in run_tg("actor", "export", trained[base], actor_file)
    assert f"tg_{base}, gate actors on base" in run_tg("actor", "import", workspace.bases[base], actor_file, again)
    for beam in ("1", "4"):
        expected = hypotheses(workspace.generate(trained[base], "--beam", beam))
        on_base = workspace.generate(workspace.bases[base], "--actor-weights", actor_file, "--beam", beam)
        assert hypotheses(on_base) == expected
        assert hypotheses(workspace.generate(str(again), "--beam", beam)) == expected


@ALL_FAMILIES
def test_ensembles(workspace, trained, tmp_path, base):
    other = workspace.train(base, tmp_path, "--actor", "rnn", "--max-update", "5", "--seed", "2")
    together = hypotheses(workspace.generate(f"{trained[base]}:{other}", "--beam", "3"))
    assert len(together) == 30
    doubled = hypotheses(workspace.generate(f"{other}:{other}", "--beam", "3"))
    assert doubled == hypotheses(workspace.generate(other, "--beam", "3"))
    files = [str(tmp_path / name) for name in ("a.safetensors", "b.safetensors")]
    for tg, file in zip((trained[base], other), files):
        run_tg("actor", "export", tg, file)
    base_path = workspace.bases[base]
    on_bases = workspace.generate(f"{base_path}:{base_path}", "--actor-weights", ":".join(files), "--beam", "3")
    assert hypotheses(on_bases) == together


def test_old_checkpoints_with_args(workspace, tmp_path):
    """Before fairseq 0.10 a checkpoint had an argparse namespace `args` and no `cfg`."""
    for base in FAMILIES:
        state = torch.load(workspace.bases[base])
        args = Namespace(**vars(state["cfg"]["model"]))
        args.arch = args._name
        del args._name
        state.update(args=args, cfg=None)
        old = tmp_path / f"{base}.pt"
        torch.save(state, old)
        flags = workspace.train_flags(base, "--save-dir", tmp_path / base, "--max-update", "1", "--lr", "0")
        flags[flags.index("--base-checkpoint") + 1] = old
        run("fairseq-train", *flags)
        tg = f"{tmp_path / base}/checkpoint_last.pt"
        assert hypotheses(workspace.generate(tg, "--beam", "1")) == hypotheses(
            workspace.generate(workspace.bases[base], "--beam", "1")
        )


def test_hydra_trains_a_base_and_its_actors(workspace, tmp_path):
    shutil.copytree(REPO / "user_dir_configs", tmp_path / "user_dir_configs")
    shutil.copytree(workspace.data, tmp_path / "PSEUDO_BIN")
    quick = ["dataset.num_workers=0", "common.cpu=true", f"common.user_dir={USER_DIR}", "optimization.max_update=2"]
    small = [f"model.{side}_{size}" for side in ("encoder", "decoder") for size in ("embed_dim=8", "ffn_embed_dim=16")]
    small += ["model.encoder_attention_heads=2", "model.decoder_attention_heads=2", "model.encoder_layers=1"]
    done = run_forked(
        *("fairseq-hydra-train", "--config-dir", "user_dir_configs", "--config-name", "base_transformer_iwslt16"),
        *("task.data=PSEUDO_BIN", *quick, *(f"+{item}" if "=" in item else item for item in small)),
        *("dataset.max_tokens=400", "checkpoint.save_dir=base"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    tensors = load_checkpoint(f"{tmp_path}/base/checkpoint_last.pt")["model"]
    assert tensors["decoder.layers.4.fc1.weight"].shape == (16, 8)  # the paper's 5 layers, of the sizes given
    assert "decoder.layers.5.fc1.weight" not in tensors and "encoder.layers.1.fc1.weight" not in tensors
    done = run_forked(
        *("fairseq-hydra-train", "--config-dir", "user_dir_configs", "--config-name", "tg_transformer_gate"),
        *("task.data=PSEUDO_BIN", "model.base_checkpoint=base/checkpoint_last.pt", *quick),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for beam in ("1", "3"):
        assert len(hypotheses(workspace.generate(f"{tmp_path}/checkpoints/checkpoint_last.pt", "--beam", beam))) == 30


@pytest.mark.parametrize("base", ["lstm", "fconv"])
def test_hydra_trains_the_other_families(workspace, tmp_path, base):
    done = run_forked(
        *("fairseq-hydra-train", "--config-dir", REPO / "user_dir_configs", "--config-name", f"tg_{base}_gate"),
        *(f"task.data={workspace.data}", f"model.base_checkpoint={workspace.bases[base]}", "optimization.max_update=2"),
        *(f"common.user_dir={USER_DIR}", "dataset.num_workers=0", "common.cpu=true"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(hypotheses(workspace.generate(f"{tmp_path}/checkpoints/checkpoint_last.pt", "--beam", "1"))) == 30


def test_eval_bleu_and_norms_while_training(workspace, tmp_path):
    run(
        *("fairseq-train", *workspace.train_flags("transformer"), "--save-dir", tmp_path, "--max-epoch", "1"),
        *("--eval-bleu", "--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric", "--log-format"),
        *("simple", "--tensorboard-logdir", tmp_path / "tb"),
    )
    for writer in progress_bar._tensorboard_writers.values():
        writer.flush()  # fairseq leaves it to the end of the process
    saved = load_checkpoint(f"{tmp_path}/checkpoint_best.pt")
    logged = str(saved["extra_state"]["metrics"]["valid"])
    assert all(name in logged for name in ("action_norm", "state_norm", "context_norm", "bleu"))
    events = b"".join(path.read_bytes() for path in (tmp_path / "tb" / "valid").rglob("*tfevents*"))
    assert b"action_norm" in events
    assert len(hypotheses(workspace.generate(f"{tmp_path}/checkpoint_best.pt", "--beam", "1"))) == 30


def test_validations_count_unknown_words_as_generation_does(workspace, tmp_path):
    """Those of a reference are no words of a translation, and are as many words in all scores."""
    text = Path(workspace.data).parent
    shutil.copy(text / "valid.xx", tmp_path)
    lines = (text / "valid.yy").read_text().splitlines()
    (tmp_path / "valid.yy").write_text("\n".join(f"{line} new" if i % 5 == 0 else line for i, line in enumerate(lines)))
    known = ["--srcdict", f"{workspace.data}/dict.xx.txt", "--tgtdict", f"{workspace.data}/dict.yy.txt"]
    files = ["--trainpref", tmp_path / "valid", "--validpref", tmp_path / "valid", "--destdir", tmp_path / "bin"]
    run("fairseq-preprocess", "-s", "xx", "-t", "yy", *known, *files, "--workers", "1")
    unknown = Workspace(str(tmp_path / "bin"), workspace.bases)
    best = ["--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric", "--eval-bleu-detok", "space"]
    unknown.train("transformer", tmp_path, "--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 20}', *best)
    path = f"{tmp_path}/checkpoint_best.pt"
    printed = unknown.generate(path, "--beam", "1", "--scoring", "sacrebleu")
    assert "<<unk>>" in printed
    score = float(re.findall(r"BLEU = ([\d.]+)", printed)[-1])
    assert load_checkpoint(path)["extra_state"]["best"] == pytest.approx(score, abs=0.006) and score > 0.5


@pytest.mark.parametrize(
    "arch, sizes",
    [
        ("transformer_chen2018_iwslt16", (278, 507, 5, 2, 0.079)),
        ("transformer_chen2018_wmt", (512, 512, 6, 8, 0.1)),
    ],
)
def test_transformer_presets(workspace, tmp_path, arch, sizes):
    flags = ["--arch", arch, *TRAIN_BASE.split(), "--max-update", "1", "--max-tokens", "50"]
    run("fairseq-train", workspace.data, "--user-dir", USER_DIR, *flags, "--save-dir", tmp_path, *IN_PROCESS)
    model = load_checkpoint(f"{tmp_path}/checkpoint_last.pt")["cfg"]["model"]
    found = (model.decoder_embed_dim, model.decoder_ffn_embed_dim, model.decoder_layers)
    assert (*found, model.decoder_attention_heads, model.dropout) == sizes


@pytest.mark.parametrize("arch, rnn, word", [("lstm_chen2018_iwslt16", 500, 300), ("lstm_chen2018_wmt", 600, 500)])
def test_lstm_presets(workspace, tmp_path, arch, rnn, word):
    flags = ["--arch", arch, *TRAIN_BASE.split(), "--max-update", "1", "--max-tokens", "50"]
    run("fairseq-train", workspace.data, "--user-dir", USER_DIR, *flags, "--save-dir", tmp_path, *IN_PROCESS)
    tensors = load_checkpoint(f"{tmp_path}/checkpoint_last.pt")["model"]
    assert tensors["encoder.lstm.weight_hh_l1_reverse"].shape == (4 * rnn // 2, rnn // 2)  # two layers, both ways
    assert tensors["decoder.layers.1.weight_hh"].shape == (4 * rnn, rnn)
    assert tensors["decoder.layers.0.weight_ih"].shape == (4 * rnn, word + rnn)  # input feeding
    assert tensors["decoder.attention.input_proj.weight"].shape == (rnn, rnn)  # general attention
    assert tensors["decoder.embed_tokens.weight"].shape[1] == word


@pytest.mark.parametrize("base", FAMILIES)
def test_padding_that_someone_typed_is_left_out(workspace, tmp_path, base):
    """In every engine, as in compiled models; whatever is in the same batch."""
    sentences = ["w1 w2 w5 w7", "w3", "w8 w0 w4 w2 w6"]
    typed = ["w1 <pad> w2 w5 <pad> <pad> w7", "<pad> w3", "w8 w0 w4 w2 w6 <pad>"]
    found, slow = [], ["--no-fast-search"]
    for lines, flags in ((sentences, []), (typed, []), (typed, slow), (typed, [*slow, "--buffer-size", "3"])):
        (tmp_path / "input").write_text("\n".join([*lines, ""]))
        printed = run(
            *("fairseq-interactive", workspace.data, "--user-dir", USER_DIR, "--task", "tg_translation", *IN_PROCESS),
            *("--path", workspace.bases[base], "--input", tmp_path / "input", "--beam", "3", "--max-len-b", "20"),
            *flags,
        )
        found.append(hypotheses(printed))
    assert found[1:] == [found[0]] * 3 and len(found[0]) == 3


def test_user_dir(tmp_path):
    done = run_process("python", "-m", "fairseq_tg", cwd=tmp_path)
    assert done.stdout.strip() == USER_DIR
