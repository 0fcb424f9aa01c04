"""actor_cross_entropy: the loss, what it trains and what it logs."""

from __future__ import annotations

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.logging import metrics
from omegaconf import OmegaConf

from fairseq_tg.criterions.cross_entropy import ActorCrossEntropyCriterion
from fairseq_tg.criterions.log_probs import TokenLogProbs, smoothed
from fairseq_tg.errors import UserError
from tests.conftest import BASES, sample, stir


def build(task, **options):
    config = {"_name": "actor_cross_entropy", "sentence_avg": False, **options}
    return task.build_criterion(OmegaConf.create(config))


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_fused_loss_and_gradient_are_fairseqs(eps, monkeypatch):
    monkeypatch.setattr(TokenLogProbs, "ROWS", 4)  # several pieces, the last one short
    torch.manual_seed(2)
    logits, target = torch.randn(11, 7), torch.randint(0, 7, (11,))  # 1 stands for padding
    assert (target == 1).any()
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    log_probs, sums = TokenLogProbs.apply(ours * 1.0, target, 1, eps > 0)
    loss, nll = smoothed(log_probs, sums, 7, eps).sum(), -log_probs.sum()
    expected, expected_nll = label_smoothed_nll_loss(theirs.log_softmax(-1), target, eps, ignore_index=1)
    (loss * 3).backward()
    (expected * 3).backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, expected_nll)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_gradient_of_any_use_of_log_probabilities(monkeypatch):
    """Also where tokens weigh differently, and where the weights depend on the probabilities themselves."""
    monkeypatch.setattr(TokenLogProbs, "ROWS", 4)
    logits, target = torch.randn(11, 7), torch.randint(0, 7, (11,))
    gradients = []
    for fused in (True, False):
        leaf = logits.clone().requires_grad_()
        if fused:
            log_probs, sums = TokenLogProbs.apply(leaf * 1.0, target, 1, True)
        else:
            lprobs, real = leaf.log_softmax(-1), target.ne(1)
            log_probs, sums = lprobs.gather(1, target[:, None])[:, 0] * real, lprobs.sum(1) * real
        weights = (log_probs[:5].sum() - log_probs[5:].sum()).sigmoid() * torch.arange(11)
        (weights * log_probs + sums**2).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"label_smoothing": 0.1, "ignore_prefix_size": 1}])
@pytest.mark.parametrize("base", list(BASES))
def test_training_loss_is_fairseqs_own(workspace, base, options):
    task = workspace.task()
    model, batch = stir(workspace.actor_model(base)), sample(task)
    criterion = build(task, **options)
    loss, sample_size, log = criterion(model.train(), batch)
    reference = build(task, **options, report_accuracy=True)  # goes fairseq's way
    expected, _, expected_log = reference(model.train(), batch)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(log["nll_loss"], expected_log["nll_loss"])
    assert sample_size == batch["ntokens"]
    actors = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, actors)
    for ours, theirs in zip(gradients, torch.autograd.grad(expected, actors)):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("base", list(BASES))
def test_validation_logs_mean_norms_over_real_tokens(workspace, base):
    task = workspace.task()
    model, batch = stir(workspace.actor_model(base)).eval(), sample(task)
    criterion = build(task)
    with torch.no_grad():
        _, _, log = criterion(model, batch)
        alone = [criterion(model, task.dataset("valid").collater([task.dataset("valid")[i]]))[2] for i in range(4)]
    tokens = batch["ntokens"] * len(model.sites())
    assert log["norm_count"] == tokens
    for name in ("action_norm", "state_norm", "context_norm"):
        # padding counts for nothing: the batch's sum is that of its sentences
        torch.testing.assert_close(log[name], sum(a[name] for a in alone), rtol=1e-4, atol=1e-4)
    with metrics.aggregate() as logged:
        ActorCrossEntropyCriterion.reduce_metrics([log, log])
    assert logged.get_smoothed_value("action_norm") == pytest.approx(float(log["action_norm"] / tokens), abs=1e-3)
    assert all(site.recorded is None for site in model.sites())


def test_norm_of_a_fresh_action_is_zero(workspace):
    task = workspace.task()
    with torch.no_grad():
        _, _, log = build(task)(workspace.actor_model("transformer").eval(), sample(task))
    assert log["action_norm"] == 0 and log["state_norm"] > 0 and log["context_norm"] > 0


def test_a_model_without_actors_is_refused(workspace):
    task = workspace.task()
    with pytest.raises(UserError, match="this model has none: use --arch tg_transformer, tg_bart, tg_lstm or tg_fconv"):
        build(task)(workspace.base_model("transformer"), sample(task))


def test_a_trainable_base_parameter_is_refused(workspace):
    task, model = workspace.task(), workspace.actor_model("lstm")
    model.decoder.embed_tokens.weight.requires_grad_(True)
    with pytest.raises(UserError, match=r"decoder\.embed_tokens\.weight is set to be trained"):
        build(task)(model, sample(task))
