"""The engine beside fairseq on models of random shapes and actors, with random searches and batches."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Dict

import numpy as np
import pytest
import torch

from fairseq_tg.compiled.engine import Engine
from fairseq_tg.compiled.extract import extract, unsupported
from fairseq_tg.compiled.quantize import quantize
from fairseq_tg.errors import UserError
from tests.conftest import Workspace
from tests.engine.cases import assert_as_fairseq, greedy
from tests.fairseq_cases import FAMILIES, LIMIT, each_case

FEW = 25


@pytest.mark.parametrize("family", FAMILIES)
def test_any_model(workspace: Workspace, family: str) -> None:
    each_case(family, workspace.task(), FEW, lambda case: assert_as_fairseq(case, Engine(case.layout, case.tensors)))


UNSUPPORTED: Dict[str, Any] = {
    "lstm --adaptive-softmax-cutoff": lambda m: setattr(m.decoder, "adaptive_softmax", object()),
    "lstm an attention of its own": lambda m: setattr(m.decoder, "attention", torch.nn.Identity()),
    "lstm an encoder and decoder of its own": lambda m: setattr(m, "encoder", torch.nn.Identity()),
    "fconv --adaptive-softmax-cutoff": lambda m: setattr(m.decoder, "adaptive_softmax", object()),
    "fconv a decoder without positions": lambda m: setattr(m.decoder, "embed_positions", None),
    "fconv an attention of its own": lambda m: m.decoder.attention.__setitem__(0, torch.nn.Identity()),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_is_not_known_is_named(workspace: Workspace, case: str) -> None:
    base, _, option = case.partition(" ")
    model = workspace.base_model(base)
    assert unsupported(model) is None
    UNSUPPORTED[case](model)
    with pytest.raises(UserError, match=f"because of {option}"):
        extract(model)


@pytest.mark.parametrize("base", ["lstm", "fconv"])
def test_int8_is_near_float32(workspace: Workspace, base: str) -> None:
    layout, tensors = extract(workspace.base_model(base))
    words = random.Random(1)
    sources = [[*(words.randrange(4, layout.source_vocabulary) for _ in range(n)), layout.eos] for n in range(1, 16)]
    exact, rounded = (
        greedy(Engine(layout, weights), sources, [LIMIT] * len(sources), scores=True)
        for weights in (tensors, quantize(tensors, layout))
    )
    same = [(a, b) for x, y, a, b in zip(exact[0], rounded[0], exact[1] or [], rounded[1] or []) if x == y]
    assert len(same) > 10
    assert 0 < max(np.abs(np.subtract(a, b)).max() for a, b in same) < 0.3


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("base", ["transformer", "lstm", "fconv"])
def test_weights_that_a_step_reads(workspace: Workspace, base: str, rank: int) -> None:
    """What actors make of the source is worked out once a sentence where that is a mean of its tokens."""
    plain, _ = extract(workspace.base_model(base))
    layout, _ = extract(workspace.actor_model(base, actor="gate", actor_rank=rank))
    more = 0
    for state, context in layout.actor_sites().values():
        seen = state if base != "transformer" else state + context
        more += 2 * rank * seen + 2 * state * rank if rank else 2 * state * seen
    assert layout.weights_per_token() - plain.weights_per_token() == more > 0
    assert replace(plain, actor_layers=(0,)).divided() == {}  # as a file may have it, which is read with care
