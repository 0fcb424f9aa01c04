"""The loss of actor_policy_gradient and its gradient, against plain ones of a sentence at a time."""

from __future__ import annotations

import pytest
import torch

from fairseq_tg.criterions import own_output
from fairseq_tg.text import Words
from tests.conftest import BASES, sample, stir
from tests.unit.test_list_criteria import PAD, assert_same_gradients, build, greedy, log_probs_of
from tests.unit.test_objectives import shorter_is_better

SHORT = f"{shorter_is_better.__module__}:{shorter_is_better.__name__}"


@pytest.mark.parametrize("search", ["fast", "fairseq"])
@pytest.mark.parametrize("base", list(BASES))
def test_loss_and_gradient(workspace, base, search, monkeypatch):
    monkeypatch.setattr(own_output, "LONGER", -1)  # so that some are cut off
    task, model = workspace.task(), stir(workspace.actor_model(base), 0.3).train()
    task.cfg.no_fast_search = search == "fairseq"
    task.load_dataset("train")
    criterion = build("actor_policy_gradient", task, reward=SHORT, reward_scale=0.5)
    batch = sample(task, 6)
    said = []
    criterion.own_output = Recorded(criterion.own_output, said)
    torch.manual_seed(3)
    loss, sample_size, log = criterion(model, batch)
    ((baselines, sampled),) = said
    assert model.training

    words, limit = Words(task.target_dictionary), batch["target"].size(1) - 1
    expected, tokens = 0.0, 0
    for row, (baseline, drawn) in enumerate(zip(baselines, sampled)):
        source = batch["net_input"]["src_tokens"][row]
        source = source[source.ne(PAD)]
        assert torch.equal(baseline, greedy(model, source, limit))
        reward, usual = (shorter_is_better(words(own.tolist()), "") for own in (drawn, baseline))
        log_probs = log_probs_of(model, source, drawn.roll(1)).gather(1, drawn[:, None])[: limit - 1]
        expected = expected - 0.5 * (reward - usual) * log_probs.sum()
        tokens += len(log_probs)
    assert any(len(drawn) == limit for drawn in sampled)  # whose ends nobody chose
    assert log["ntokens"] == sample_size == tokens < sum(map(len, sampled))
    assert_same_gradients(model, loss, expected)


class Recorded:
    def __init__(self, decode, said):
        self.decode, self.said = decode, said
        self.as_targets = decode.as_targets

    def __call__(self, *args):
        self.said.append(self.decode(*args))
        return self.said[-1]
