"""Checkpoints are data: what is read, what is refused, and by what name."""

from __future__ import annotations

import os
import subprocess
from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.modules import FairseqDropout

from fairseq_tg.errors import UserError
from fairseq_tg.loading.checkpoints import fingerprint, load_checkpoint, refuse_code
from tests.conftest import REPO

FIXTURES = REPO / "tests" / "fixtures" / "fairseq-0.12.3"


class Asks:
    """Unpickles by calling a function."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


class Built(Namespace):
    """A class of nobody's allow-list."""


@pytest.mark.parametrize(
    "evil, name",
    [
        (Asks(os.system, "touch pwned"), "system"),
        (Asks(eval, "1"), "eval"),
        (Asks(subprocess.call, ["touch", "pwned"]), "call"),  # protocol 2 has an old name for its module
        (Built(a=1), "Built"),
    ],
)
@pytest.mark.parametrize("place", ["model", "cfg", "extra_state", "args"])
def test_a_pickle_that_asks_for_code_is_refused_by_name(workspace, tmp_path, monkeypatch, evil, name, place):
    monkeypatch.chdir(tmp_path)
    state = torch.load(workspace.bases["transformer"])
    state[place] = {"x": [evil]}
    torch.save(state, "evil.pt")
    for load in (load_checkpoint, checkpoint_utils.load_checkpoint_to_cpu):
        with pytest.raises(UserError, match=rf"'evil.pt' is refused: its pickle asks for \S*{name}"):
            load("evil.pt")
    assert not os.path.exists("pwned")


@pytest.mark.parametrize("option", ["encoder_layers", "decoder_attention"])
def test_options_that_fairseq_evaluates_hold_no_code(workspace, tmp_path, option):
    state = torch.load(workspace.bases["fconv"])
    setattr(state["cfg"]["model"], option, "__import__('os').system('touch pwned')")
    torch.save(state, tmp_path / "evil.pt")
    with pytest.raises(UserError, match=f"its option {option} holds code"):
        load_checkpoint(str(tmp_path / "evil.pt"))


@pytest.mark.parametrize("place", [{"decoder": {}}, {}])
def test_no_option_runs_code_wherever_it_is(workspace, tmp_path, place):
    state = torch.load(workspace.bases["transformer"])
    evil = "__import__('os').system('touch pwned') or {}"
    options = {**vars(state["cfg"]["model"]), **place}
    if place:
        options["decoder"] = {"xformers_att_config": evil}
    else:
        options["encoder_xformers_att_config"] = evil
    state["cfg"]["model"] = Namespace(**options)
    torch.save(state, tmp_path / "evil.pt")
    with pytest.raises(UserError, match=r"its option (encoder_)?xformers_att_config holds code"):
        load_checkpoint(str(tmp_path / "evil.pt"))


@pytest.mark.parametrize("value", ["[(512, 3)] * 4 + [(1024, 3, 2)]", "True", "[True, False] * 2", "10000,50000"])
def test_sizes_are_no_code(value):
    refuse_code(Namespace(encoder_layers=value), "base.pt")


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", None])
def test_damaged_files_are_named(workspace, tmp_path, content):
    path = tmp_path / "base.pt"
    with open(workspace.bases["transformer"], "rb") as file:
        path.write_bytes(file.read()[:-2000] if content is None else content)
    with pytest.raises(UserError, match=r"base.pt' is no fairseq checkpoint, or a damaged one"):
        load_checkpoint(str(path))


@pytest.mark.parametrize("state", [{"model": {}}, {"weights": torch.zeros(2)}, [1, 2], torch.zeros(3)])
def test_other_torch_files_are_no_checkpoints(tmp_path, state):
    torch.save(state, tmp_path / "other.pt")
    with pytest.raises(UserError, match="is no fairseq checkpoint"):
        load_checkpoint(str(tmp_path / "other.pt"))


def test_a_directory_is_no_checkpoint(tmp_path):
    with pytest.raises(UserError, match="no checkpoint at"):
        load_checkpoint(str(tmp_path))


def test_what_eval_bleu_leaves_in_a_checkpoint_is_read(workspace, tmp_path):
    state = torch.load(workspace.bases["transformer"])
    state["extra_state"]["best"] = np.float64(27.5)
    state["extra_state"]["counts"] = np.arange(4)
    torch.save(state, tmp_path / "base.pt")
    loaded = load_checkpoint(str(tmp_path / "base.pt"))
    assert loaded["extra_state"]["best"] == 27.5 and loaded["extra_state"]["counts"].tolist() == [0, 1, 2, 3]


def test_fingerprint_sees_names_types_shapes_and_bytes():
    tensors = {"a": torch.arange(4.0), "b": torch.zeros(2, dtype=torch.half), "c": torch.tensor(3)}
    same = {"c": torch.tensor(3), "b": torch.zeros(2, dtype=torch.half), "a": torch.arange(8.0)[:4]}
    assert fingerprint(tensors) == fingerprint(same)
    others = [
        {**tensors, "a": torch.arange(4.0).view(2, 2)},
        {**tensors, "a": torch.arange(4.0).double()},
        {**tensors, "a": torch.tensor([0.0, 1.0, 2.0, 3.0000002])},
        {**tensors, "d": torch.zeros(0)},
        {"a": tensors["a"], "b": tensors["b"], "cc": tensors["c"]},
    ]
    assert len({fingerprint(t) for t in [tensors, *others]}) == 6


def dropouts(path, workspace, **overrides):
    decoder = checkpoint_utils.load_model_ensemble([path], overrides, workspace.task())[0][0].decoder
    return {module.p for module in decoder.modules() if isinstance(module, FairseqDropout)}


@pytest.mark.parametrize("family", ["transformer", "lstm", "fconv"])
def test_overrides_reach_the_base_of_a_tg_checkpoint(workspace, family):
    path = str(FIXTURES / f"tg_{family}.pt")
    assert 0.375 not in dropouts(path, workspace)
    assert 0.375 in dropouts(path, workspace, dropout=0.375, decoder_dropout_out=0.375, unknown=1)
