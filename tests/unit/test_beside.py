"""Actors beside the maps of a base, put into its compiled matrices."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import List

import numpy as np
import pytest
import torch

from fairseq_tg.compiled import Translator
from fairseq_tg.compiled.actor_file import put_on
from fairseq_tg.compiled.compile import compile_model
from fairseq_tg.compiled.extract import extract
from fairseq_tg.compiled.layout import ACTED
from fairseq_tg.compiled.options import Compilation
from fairseq_tg.loading.checkpoints import fingerprint
from fairseq_tg.models import base as models_base
from fairseq_tg.models import maps
from fairseq_tg.models.actor_files import ActorMetadata, write_actor_file
from fairseq_tg.models.base import ActorModel
from tests.conftest import BASES, Workspace, family, stir
from tests.unit.test_fast_search import BATCH, random_batches


def write_actors(model: ActorModel, path: Path, rank: int) -> None:
    tensors = model.actor_tensors()
    metadata = ActorMetadata(
        arch=f"tg_{model.base.family}",
        actor="gate",
        actor_hidden=0,
        actor_rank=0,
        actor_layers=None,
        actor_sites="maps",
        actor_site_rank=rank,
        base_fingerprint=model.base.fingerprint,
        fingerprint=fingerprint(tensors),
    )
    write_actor_file(str(path), metadata, tensors)


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("base", list(BASES))
def test_on_a_compiled_base_they_are_what_they_are_in_a_model(
    workspace: Workspace, tmp_path: Path, base: str, rank: int
) -> None:
    model = stir(workspace.actor_model(base, actor_sites="maps", actor_site_rank=rank), 0.2).eval()
    layout, tensors = extract(model)
    assert set(layout.acted) == layout.base_matrices().keys() - {"output"} == layout.parts().keys()
    write_actors(model, tmp_path / "a.safetensors", rank)
    plain = workspace.base_model(base).eval()  # else layerdrop leaves out some layers
    compiled = compile_model(plain, workspace.task(), Compilation("", str(tmp_path / "base.tg")))
    put, found = put_on(str(tmp_path / "a.safetensors"), compiled)
    assert put == layout
    assert found.keys() == {name for name in tensors if ACTED in name or ".actor." in name}
    for name, tensor in found.items():
        np.testing.assert_allclose(tensor, tensors[name], rtol=1e-5, atol=1e-6)
        if ACTED in name and name.endswith("weight"):
            assert not np.allclose(tensor, tensors[name.replace(ACTED, "")])


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("base", list(BASES))
def test_joined_weights_are_made_again_for_gradients(workspace: Workspace, base: str, rank: int, monkeypatch) -> None:
    """They are the gradients of weights that are kept, and nothing is kept but what an LSTM needs at every step."""
    model = stir(workspace.actor_model(base, actor_sites="maps", actor_site_rank=rank), 0.2).train()
    batch = random_batches(workspace.task(), BATCH)[0]["net_input"]
    inputs = {**batch, "prev_output_tokens": torch.full((BATCH, 4), 5)}
    passes: List[maps.Joins] = []

    class Watched(maps.Joins):
        def __init__(self) -> None:
            super().__init__()
            passes.append(self)

    def gradients() -> List[torch.Tensor]:
        model.zero_grad()
        output = model(**inputs)[0]
        if passes:
            made = [reference() for reference, *_ in passes[0]._made.values()]
            assert made.count(None) == len(made) and (made or family(base) == "lstm")
        output.square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.requires_grad and p.grad is not None]

    with monkeypatch.context() as patch:
        patch.setattr(models_base, "joined_once", lambda model: nullcontext())
        expected = gradients()
    monkeypatch.setattr(maps, "Joins", Watched)
    found = gradients()
    assert passes and len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_some_of_a_matrix_are_refused(workspace: Workspace, tmp_path: Path) -> None:
    model = stir(workspace.actor_model("lstm", actor_sites="maps", actor_site_rank=0), 0.2)
    del model.decoder.layers[1].weight_hh_actor
    write_actors(model, tmp_path / "a.safetensors", 0)
    compile_model(workspace.base_model("lstm"), workspace.task(), Compilation("", str(tmp_path / "base.tg")))
    with pytest.raises(ValueError, match=r"actors beside 1 of 2 maps of 'decoder.1.cell'"):
        Translator.load(str(tmp_path / "base.tg"), actors={"a": str(tmp_path / "a.safetensors")})


@pytest.mark.parametrize("base", list(BASES))
def test_weights_are_joined_once_in_a_pass_and_anew_in_the_next(workspace: Workspace, base: str) -> None:
    """Two passes of one update each have a graph of their own; what an update changed is seen by the next."""
    model = stir(workspace.actor_model(base, actor_sites="maps", actor_site_rank=3), 0.2).eval()
    inputs = {
        "src_tokens": torch.tensor([[4, 5, 6, 2]]),
        "src_lengths": torch.tensor([4]),
        "prev_output_tokens": torch.tensor([[2, 5, 6]]),
    }
    for _ in range(2):
        model(**inputs)[0].sum().backward()
    grads = [parameter.grad.clone() for site in model.sites() for parameter in site.parameters()]
    model.zero_grad()
    model(**inputs)[0].sum().backward()
    again = [parameter.grad for site in model.sites() for parameter in site.parameters()]
    assert all(torch.allclose(a, 2 * b, atol=1e-6) for a, b in zip(grads, again))
    with torch.no_grad():
        before = model(**inputs)[0]
        for site in model.sites():
            for parameter in site.parameters():
                parameter.mul_(0.5)
        assert not torch.allclose(model(**inputs)[0], before, atol=1e-4)
