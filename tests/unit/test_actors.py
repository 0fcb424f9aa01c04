"""The actors against the paper's equations, written out step by step."""

from __future__ import annotations

import pytest
import torch

from fairseq_tg.actors import ACTORS, Maps, build_actor
from fairseq_tg.errors import UserError

T, B, H, E, N = 5, 3, 6, 4, 7  # H and E differ on purpose


def inputs():
    return torch.randn(T, B, H, dtype=torch.double), torch.randn(T, B, E, dtype=torch.double)


def stirred(name, rank=0):
    torch.manual_seed(3)
    actor = build_actor(name, H, E, hidden_dim=N, rank=rank).double()
    for parameter in actor.parameters():
        torch.nn.init.normal_(parameter)
    return actor


def matrices(maps: Maps):
    """The maps as the paper has them: x W, with W in_dim x out_dim, and b."""
    if maps.rank:
        weights = [up.weight @ down for up, down in zip(maps.up, maps.down.weight.split(maps.rank))]
        biases = [up.bias for up in maps.up]
    else:
        weights = maps.full.weight.split(maps.out_dims)
        biases = [None] * len(weights) if maps.full.bias is None else maps.full.bias.split(maps.out_dims)
    return [weight.t() for weight in weights], biases


def paper(name, actor, h, e):
    """One sentence of one batch entry at a time, in the paper's notation."""
    sigma, tanh, actions = torch.sigmoid, torch.tanh, torch.empty(T, B, H, dtype=torch.double)
    for b in range(B):
        s = torch.zeros(N, dtype=torch.double)
        for t in range(T):
            x = torch.cat([h[t, b], e[t, b]])
            if name == "gate":
                (u_z, u), _ = matrices(actor.gate_and_action)
                a = sigma(x @ u_z) * tanh(x @ u)
            elif name == "linear":
                (w,), (bias,) = matrices(actor.output)
                a = tanh(x @ w + bias)
            elif name in ("ff", "ff2"):
                (w_i,), (b_i,) = matrices(actor.input)
                (w_o,), (b_o,) = matrices(actor.output)
                z = sigma(x @ w_i + b_i)
                if name == "ff2":
                    (w_z,), (b_z,) = matrices(actor.middle)
                    z = sigma(z @ w_z + b_z)
                a = tanh(z @ w_o + b_o)
            else:
                (u_z, u_r, u_h), _ = matrices(actor.input)
                (w_z, w_r), _ = matrices(actor.gates)
                (w_h,), _ = matrices(actor.candidate)
                (u,), _ = matrices(actor.output)
                z = sigma(x @ u_z + s @ w_z)
                r = sigma(x @ u_r + s @ w_r)
                new = tanh(x @ u_h + (s * r) @ w_h)
                s = (1 - z) * new + z * s
                a = s @ u
            actions[t, b] = a
    return actions


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("name", ACTORS.names())
def test_equations(name, rank):
    actor, (h, e) = stirred(name, rank), inputs()
    torch.testing.assert_close(actor(h, e)[0], paper(name, actor, h, e), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["gate", "rnn"])
def test_no_biases_where_the_paper_has_none(name):
    assert not [n for n, _ in build_actor(name, H, E, N).named_parameters() if n.endswith("bias")]


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("name", ACTORS.names())
def test_fresh_actor_gives_exactly_zero_and_can_learn(name, rank):
    actor, (h, e) = build_actor(name, H, E, N, rank).double(), inputs()
    action, _ = actor(h, e)
    assert torch.equal(action, torch.zeros_like(h))
    action.sum().backward()
    assert any(parameter.grad.abs().sum() > 0 for parameter in actor.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("name", ACTORS.names())
def test_step_by_step_is_all_at_once(name):
    actor, (h, e) = stirred(name), inputs()
    whole, last = actor(h, e)
    memory, steps = None, []
    for t in range(T):
        action, memory = actor(h[t : t + 1], e[t : t + 1], memory)
        steps.append(action)
    torch.testing.assert_close(torch.cat(steps), whole)
    assert (memory is None) == (last is None)
    if last is not None:
        torch.testing.assert_close(memory, last)


def test_rank_makes_an_actor_smaller():
    def size(rank):
        return sum(parameter.numel() for parameter in build_actor("gate", 64, 64, rank=rank).parameters())

    assert size(0) == 2 * 128 * 64
    assert size(4) == 2 * 4 * (128 + 64)


def test_hidden_size_defaults_to_the_states():
    assert build_actor("ff", H, E).hidden_dim == H


def test_unknown_names_and_sizes_are_refused():
    with pytest.raises(UserError, match=r"unknown actor 'gates': --actor takes one of gate, ff, ff2, rnn, linear"):
        build_actor("gates", H, E)
    with pytest.raises(UserError, match="--actor-hidden -1"):
        build_actor("ff", H, E, hidden_dim=-1)
    with pytest.raises(UserError, match="--actor-rank -2"):
        build_actor("ff", H, E, rank=-2)
