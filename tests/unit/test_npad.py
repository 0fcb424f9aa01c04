"""NPAD: greedy search without noise, and never worse than it by the model's own score with noise."""

from __future__ import annotations

from typing import Any, List

import pytest
import torch

from fairseq_tg.decoding.fast_search import FastGenerator
from fairseq_tg.decoding.npad import NPADGenerator
from tests.conftest import FAMILIES, Workspace
from tests.unit.test_fast_search import BATCH, LIMIT, build_model, random_batches


def search(generator: Any, model: Any, batches: List[Any]) -> List[Any]:
    return [found[0] for batch in batches for found in generator.generate([model], batch)]


@pytest.mark.parametrize("family", FAMILIES)
def test_chains_with_noise(workspace: Workspace, family: str) -> None:
    model, task = build_model(workspace, family, ""), workspace.task()
    batches = random_batches(task, 40)
    options = {"beam_size": 1, "max_len_b": LIMIT}
    greedy = search(FastGenerator([model], task.target_dictionary, **options), model, batches)

    def npad(**noise: Any) -> List[Any]:
        return search(NPADGenerator([model], task.target_dictionary, **options, **noise), model, batches)

    for same in (npad(chains=1), npad(chains=3, noise=0.0)):
        assert [h["tokens"].tolist() for h in same] == [h["tokens"].tolist() for h in greedy]
        assert torch.allclose(
            torch.stack([h["score"] for h in same]), torch.stack([h["score"] for h in greedy]), atol=1e-4
        )
    found = npad(chains=4, noise=30.0)
    assert all(ours["score"] > theirs["score"] - 1e-4 for ours, theirs in zip(found, greedy))
    again = npad(chains=4, noise=30.0)
    assert all(torch.equal(a["tokens"], b["tokens"]) for a, b in zip(found, again))


@pytest.mark.parametrize("family", FAMILIES)
def test_chains_begin_as_they_are_told(workspace: Workspace, family: str) -> None:
    """A prefix (a language's symbol, say), and another first symbol than the end's."""
    model, task = build_model(workspace, family, ""), workspace.task()
    (batch,) = random_batches(task, BATCH)
    words = task.target_dictionary
    prefix = torch.full((BATCH, 1), words.nspecial + 2)
    options = {"beam_size": 1, "max_len_b": LIMIT}
    for first in (words.eos(), words.nspecial + 1):
        told = {"prefix_tokens": prefix, "bos_token": first}
        generators = FastGenerator, NPADGenerator
        greedy, npad = (of([model], words, **options).generate([model], batch, **told) for of in generators)
        for (ours,), (theirs,) in zip(npad, greedy):
            assert ours["tokens"][0] == prefix[0, 0] and ours["score"] > theirs["score"] - 1e-4
        without = NPADGenerator([model], words, **options, noise=0.0).generate([model], batch, **told)
        for (ours,), (theirs,) in zip(without, greedy):
            assert torch.equal(ours["tokens"], theirs["tokens"])
            torch.testing.assert_close(ours["positional_scores"], theirs["positional_scores"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_first_chain_has_no_noise(workspace: Workspace, family: str) -> None:
    model, task = build_model(workspace, family, ""), workspace.task()
    generator = NPADGenerator([model], task.target_dictionary, beam_size=1, noise=0.5)
    (batch,) = random_batches(task, BATCH)
    names = ("src_tokens", "src_lengths")
    inputs = {name: batch["net_input"][name].repeat_interleave(4, dim=0) for name in names}
    last = inputs["src_tokens"].new_full((4 * BATCH,), task.target_dictionary.eos())
    clean, noisy = (generator.session(model, inputs, LIMIT) for _ in range(2))
    differences = []
    for step in range(3):
        noisy.noise = generator.noise_before(step, 4 * BATCH)
        with torch.no_grad():
            differences.append((noisy.step(last) - clean.step(last)).abs().amax(dim=1).view(BATCH, 4))
        assert (differences[-1][:, 0] == 0).all() and (differences[-1][:, 1:] > 0).all()
    generator.noise = 0.0
    state = torch.randn(8, 5)
    assert torch.equal(generator.noise_before(0, 8)(state), state)
    generator.noise = 0.5
    drawn = generator.noise_before(4, 40_000)(torch.zeros(40_000, 1)).view(-1, 4)[:, 1:]
    assert drawn.std() == pytest.approx(0.5 / 5, rel=0.02)
