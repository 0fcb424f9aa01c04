"""Bases of other kinds: with an adaptive softmax, trained to align, ensembles; and those that are refused by name."""

from __future__ import annotations

import shlex

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_tg.criterions.adaptive import adaptive_log_probs
from fairseq_tg.errors import UserError
from fairseq_tg.loading.checkpoints import fingerprint, load_checkpoint, split_tensors
from tests.conftest import BASES, IN_PROCESS, TRAIN_BASE, Workspace, hypotheses, run, run_tg, sample

ADAPTIVE = "--adaptive-softmax-cutoff 8 --criterion adaptive_loss --ddp-backend legacy_ddp"
KINDS = {
    "transformer_adaptive": f"{BASES['transformer']} {ADAPTIVE}",
    "lstm_adaptive": f"{BASES['lstm']} {ADAPTIVE}",
    "transformer_checkpointed": f"{BASES['transformer']} --checkpoint-activations",
    "transformer_noisy": f"{BASES['transformer']} --quant-noise-pq 0.3 --quant-noise-pq-block-size 4",
    "transformer_align": BASES["transformer"].replace("--arch transformer", "--arch transformer_align"),
}


@pytest.fixture(scope="module")
def kinds(workspace, tmp_path_factory):
    directory = tmp_path_factory.mktemp("kinds")
    for name, flags in KINDS.items():
        short = TRAIN_BASE.replace("--max-epoch 12", "--max-epoch 3")
        run(
            "fairseq-train",
            workspace.data,
            *shlex.split(f"{flags} {short}"),
            "--save-dir",
            directory / name,
            *IN_PROCESS,
        )
    return Workspace(workspace.data, {name: f"{directory / name}/checkpoint_last.pt" for name in KINDS})


@pytest.mark.parametrize("kind", KINDS)
def test_actors_on_other_kinds(kinds, kind, tmp_path):
    """A fresh actor changes nothing; a trained one does; the oracle and the fast path say what fairseq says."""
    base = kinds.bases[kind]
    fresh = kinds.train(kind, tmp_path / "fresh", "--lr", "0", "--max-update", "1")
    everywhere = ["--actor-sites", "maps"] if kind.endswith("adaptive") else []
    tg = kinds.train(kind, tmp_path / "tg", "--lr", "0.1", "--max-update", "8", "--report-accuracy", *everywhere)
    for beam in ("1", "3"):
        expected = hypotheses(kinds.generate(base, "--beam", beam))
        assert hypotheses(kinds.generate(fresh, "--beam", beam)) == expected and len(expected) == 30
        slow = hypotheses(kinds.generate(tg, "--beam", beam, "--no-fast-search"))
        assert hypotheses(kinds.generate(tg, "--beam", beam)) == slow
    scores = [kinds.generate(path, "--beam", "1") for path in (base, tg)]
    assert scores[0] != scores[1]
    built = kinds.generate(base, "--beam", "3", "--kbest-dir", tmp_path / "corpus")
    assert "complete, 30 pairs of 30 source sentences" in built


def test_rounded_weights_are_refused_by_name(workspace, tmp_path):
    """fairseq translates with them in 8 bits, of a base alone; a fresh actor would change something."""
    state = torch.load(workspace.bases["transformer"])
    state["cfg"]["model"].quant_noise_scalar = 0.5
    checkpoint_utils.torch_persistent_save(state, str(tmp_path / "rounded.pt"))
    with pytest.raises(UserError, match="was trained with --quant-noise-scalar"):
        Workspace(workspace.data, {"transformer": str(tmp_path / "rounded.pt")}).train("transformer", tmp_path / "tg")


@torch.no_grad()
def test_dropout_of_a_base_leaves_its_weights_alone(kinds):
    """fairseq's --quant-noise-pq writes what it leaves out into the weights."""
    model, batch = kinds.actor_model("transformer_noisy", base_dropout=True), sample(kinds.task())
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    outputs = [model.train()(**batch["net_input"])[0] for _ in range(2)]
    assert not torch.equal(*outputs)  # dropout is on
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.named_parameters())


def test_an_adaptive_softmax_is_fairseqs(kinds):
    """What is trained through are the probabilities that fairseq decodes with."""
    model, batch = kinds.actor_model("transformer_adaptive").eval(), sample(kinds.task())
    output = model(**batch["net_input"])
    found = adaptive_log_probs(model.decoder.adaptive_softmax, output[0])
    expected = model.get_normalized_probs(output, log_probs=True)
    assert torch.allclose(found, expected, atol=1e-5) and torch.allclose(
        found.exp().sum(-1), torch.ones(found.shape[:2])
    )


def test_every_actor_of_a_base_with_an_adaptive_softmax_acts(kinds):
    """An LSTM has a map for its output that it then leaves out: an actor beside that would have no gradient."""
    model, batch = kinds.actor_model("lstm_adaptive", actor_sites="maps").train(), sample(kinds.task())
    assert model.decoder.additional_fc is not None
    adaptive_log_probs(model.decoder.adaptive_softmax, model(**batch["net_input"])[0]).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


def test_an_adaptive_softmax_is_refused_by_name(kinds, tmp_path):
    with pytest.raises(UserError, match="cannot be compiled because of --adaptive-softmax-cutoff"):
        run_tg("compile", kinds.bases["transformer_adaptive"], tmp_path / "model.tg", "--no-subword")
    with pytest.raises(UserError, match="it does not know --adaptive-softmax-cutoff; use the engine fairseq"):
        kinds.generate(
            kinds.bases["transformer_adaptive"],
            "--beam",
            "3",
            "--kbest-dir",
            tmp_path / "x",
            "--kbest-engine",
            "native",
        )


def test_one_actor_file_for_all_members_of_an_ensemble(workspace, tmp_path):
    base, file = workspace.bases["transformer"], f"{tmp_path}/a.safetensors"
    tg = workspace.train("transformer", tmp_path / "tg", "--lr", "0.1", "--max-update", "6")
    run_tg("actor", "export", tg, file)
    for_all = hypotheses(workspace.generate(f"{base}:{base}", "--beam", "2", "--actor-weights", file))
    assert for_all == hypotheses(workspace.generate(tg, "--beam", "2"))
    with pytest.raises(UserError, match="2 files in --actor-weights for 1 models: give one, or one for each"):
        workspace.generate(base, "--beam", "2", "--actor-weights", f"{file}:{file}")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"pipeline_model_parallel": True}, "is a pipeline-parallel model"),
        ({"moe_freq": 4}, "is a mixture of experts"),
        ({"base_layers": 1}, "is a mixture of experts"),
    ],
)
def test_models_in_parts_are_refused_by_name(workspace, options, message, tmp_path):
    state = torch.load(workspace.bases["transformer"])
    vars(state["cfg"]["model"]).update(options)
    checkpoint_utils.torch_persistent_save(state, str(tmp_path / "parts.pt"))
    with pytest.raises(UserError, match=message):
        workspace.generate(str(tmp_path / "parts.pt"), "--beam", "1")
    with pytest.raises(UserError, match=message):
        Workspace(workspace.data, {"transformer": str(tmp_path / "parts.pt")}).train("transformer", tmp_path / "tg")
    assert not (tmp_path / "tg").exists()


@pytest.mark.parametrize("kind", ["transformer", "lstm", "fconv"])
def test_a_half_precision_base_stays_as_it_is(workspace, kind, tmp_path):
    """Saved, gone on with, exported and translated with; fairseq would save it in single precision."""
    base, file = str(tmp_path / "half.pt"), f"{tmp_path}/a.safetensors"
    state = torch.load(workspace.bases[kind])
    state["model"] = {name: tensor.half() for name, tensor in state["model"].items()}
    torch.save(state, base)
    half = Workspace(workspace.data, {kind: base})
    half.train(kind, tmp_path / "tg", "--lr", "0.1", "--max-update", "6")
    tg = half.train(kind, tmp_path / "tg", "--lr", "0.1", "--max-epoch", "2", "--max-update", "12")
    saved, actors = split_tensors(load_checkpoint(tg)["model"])
    assert fingerprint(saved) == fingerprint(load_checkpoint(base)["model"])
    assert {tensor.dtype for tensor in actors.values()} == {torch.float32}
    run_tg("actor", "export", tg, file)
    expected = half.generate(tg, "--beam", "2")
    assert hypotheses(half.generate(base, "--beam", "2", "--actor-weights", file)) == hypotheses(expected)
    assert hypotheses(half.generate(tg, "--beam", "2", "--no-fast-search")) == hypotheses(expected)
    run_tg("compile", tg, tmp_path / "model.tg", "--no-subword")
