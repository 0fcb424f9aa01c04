"""actor_risk, actor_trie and actor_preference: losses and gradients, against plain ones of a sentence at a time."""

from __future__ import annotations

import pytest
import torch
from fairseq.criterions import build_criterion
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.logging import metrics
from omegaconf import OmegaConf

from fairseq_tg.corpus.drawing import Best, Candidates, TriePaths
from fairseq_tg.corpus.list_dataset import ListDataset
from fairseq_tg.criterions.lists import ListCriterion, Rows
from fairseq_tg.criterions.own_output import LONGER
from fairseq_tg.criterions.risk import ActorRiskCriterion, without_length
from fairseq_tg.errors import UserError
from tests.conftest import BASES, sample, stir
from tests.unit.test_lists import make_lists, random_list

PAD = 1


def build(criterion, task, **options):
    config = {"_name": criterion, "sentence_avg": False, **options}
    return build_criterion(OmegaConf.create(config), task)  # fairseq's, by the criterion's own defaults


def make_batch(task, draw, sentences=3):
    task.load_dataset("valid")
    lists = make_lists([random_list(seed, k=8) for seed in range(sentences)])
    dataset = ListDataset([task.dataset("valid")], lists, draw, seed=1)
    return dataset, dataset.collater([dataset[index] for index in range(sentences)])


def plain_log_probs(model, dataset, batch, row):
    """The log-probabilities (T x V) of one row, computed with its sentence alone, and its targets."""
    source = dataset.sources[int(batch["id"][batch["net_input"]["rows"][row]])].unsqueeze(0)
    target = batch["target"][row]
    previous = batch["net_input"]["prev_output_tokens"][row : row + 1]
    previous = previous[:, : int(previous.ne(PAD).sum())]
    output = model(source, torch.tensor([source.size(1)]), previous)
    return output[0][0].log_softmax(-1), target[: previous.size(1)]


def assert_same_gradients(model, loss, expected):
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)
    actors = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, actors), torch.autograd.grad(expected, actors)
    assert any(gradient.abs().max() > 1e-3 for gradient in gradients[1])
    for ours, theirs in zip(*gradients):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing": 0.0},
        {"label_smoothing": 0.1, "risk_temperature": 2.0, "cross_entropy_weight": 0.5},
        {"label_smoothing": 0.1, "risk_per_token": True, "risk_scale": 1.0, "cross_entropy_weight": 0.0},
    ],
)
@pytest.mark.parametrize("base", list(BASES))
def test_risk(workspace, base, options):
    task, model = workspace.task(), stir(workspace.actor_model(base), 0.3).train()
    criterion = build("actor_risk", task, candidates=4, **options)
    assert criterion.drawn() == Candidates(4)
    dataset, batch = make_batch(task, criterion.drawn())
    loss, sample_size, log = criterion(model, batch)

    weight, scale = options.get("cross_entropy_weight", 0.3), options.get("risk_scale", 0.01)
    expected, tokens, risk = 0.0, 0, 0.0
    for sentence in range(3):
        rows = (batch["net_input"]["rows"] == sentence).nonzero()[:, 0].tolist()
        scored = []
        for row in rows:
            lprobs, target = plain_log_probs(model, dataset, batch, row)
            log_prob = lprobs.gather(1, target[:, None]).sum()
            scored.append(log_prob / len(target) if options.get("risk_per_token") else log_prob)
        weights = (torch.stack(scored) / options.get("risk_temperature", 1.0)).softmax(0)
        cost = batch["scores"][rows].max() - batch["scores"][rows]
        assert cost[0] == 0  # the best comes first
        sentence_risk = (weights * cost.float()).sum()
        lprobs, target = plain_log_probs(model, dataset, batch, rows[0])
        cross_entropy, _ = label_smoothed_nll_loss(lprobs, target, options["label_smoothing"], ignore_index=PAD)
        expected = expected + (1 - weight) * scale * len(target) * sentence_risk + weight * cross_entropy
        tokens, risk = tokens + len(target), risk + sentence_risk.detach()
    assert sample_size == tokens
    torch.testing.assert_close(log["risk"], risk, rtol=1e-4, atol=1e-4)
    assert_same_gradients(model, loss, expected)


def test_risk_that_keeps_length():
    """The costs left have nothing to do with length, over all lists together; those that are length alone, nothing."""
    lengths, random = torch.tensor([4, 5, 7, 6, 5, 3]), torch.Generator().manual_seed(1)
    target = torch.where(torch.arange(7) < lengths[:, None], 5, PAD)
    sample = {"nsentences": 2, "net_input": {"rows": torch.tensor([0, 0, 0, 1, 1, 1])}, "scores": torch.zeros(6)}
    rows = Rows(torch.zeros(6, 7), torch.zeros(6, 7), target, sample, PAD)
    weights, costs = rows.softmax(torch.randn(6, generator=random)), torch.rand(6, generator=random)
    left = without_length(costs, weights, rows)
    counts = weights * torch.tensor([4.0] * 3 + [6.0] * 3)  # as the best hypotheses have tokens
    deviations = lengths - rows.of_sentences(weights * lengths)[rows.sentence]
    assert (counts * deviations * costs).sum().abs() > 0.01 > (counts * deviations * left).sum().abs() * 1e4
    assert rows.of_sentences(weights * left) == pytest.approx(rows.of_sentences(weights * costs))
    one_each = without_length(3.0 * lengths, weights, rows)
    torch.testing.assert_close(one_each[:3], one_each[:1].expand(3))
    equal = Rows(torch.zeros(6, 7), torch.zeros(6, 7), torch.full((6, 7), 5), sample, PAD)
    torch.testing.assert_close(without_length(costs, weights, equal), costs)  # no length to regress on


@pytest.mark.parametrize("eps, repeats", [(0.0, False), (0.1, True)])
@pytest.mark.parametrize("base", list(BASES))
def test_trie(workspace, base, eps, repeats):
    task, model = workspace.task(), stir(workspace.actor_model(base), 0.3).train()
    criterion = build("actor_trie", task, paths=3, count_repeats=repeats, label_smoothing=eps)
    assert criterion.drawn() == TriePaths(3, repeats)
    dataset, batch = make_batch(task, criterion.drawn())
    loss, sample_size, _ = criterion(model, batch)
    rows = [plain_log_probs(model, dataset, batch, row) for row in range(len(batch["target"]))]
    expected = sum(label_smoothed_nll_loss(lprobs, target, eps, ignore_index=PAD)[0] for lprobs, target in rows)
    assert sample_size == batch["ntokens"] == batch["target"].ne(PAD).sum()
    assert_same_gradients(model, loss, expected)


@pytest.mark.parametrize("options", [{"label_smoothing": 0.0}, {"label_smoothing": 0.1, "preference_per_token": True}])
@pytest.mark.parametrize("base", list(BASES))
def test_preference(workspace, base, options):
    task, model = workspace.task(), stir(workspace.actor_model(base), 0.3).train()
    criterion = build("actor_preference", task, preference_beta=0.5, cross_entropy_weight=0.4, **options)
    assert criterion.drawn() == Best()
    dataset, batch = make_batch(task, criterion.drawn())
    limit = batch["target"].size(1) + LONGER
    said = [greedy(model, dataset.sources[int(i)], limit) for i in batch["id"]]
    best = [row[row.ne(PAD)] for row in batch["target"]]
    best[1] = said[1]  # a sentence where the actor says it already
    width = max(map(len, best))
    for name, rows in {"target": best, "prev_output_tokens": [row.roll(1) for row in best]}.items():
        padded = torch.stack([torch.nn.functional.pad(row, (0, width - len(row)), value=PAD) for row in rows])
        (batch if name == "target" else batch["net_input"])[name] = padded
    loss, sample_size, log = criterion(model, batch)
    assert model.training and log["differing"] == 2 and sample_size == sum(map(len, best))

    expected = 0.0
    for sentence, (w, other) in enumerate(zip(best, said)):
        source = dataset.sources[int(batch["id"][sentence])]
        scored = []
        for tokens in (w, other):
            lprobs = log_probs_of(model, source, tokens.roll(1)).gather(1, tokens[:, None])
            scored.append(lprobs.mean() if options.get("preference_per_token") else lprobs.sum())
        if not torch.equal(w, other):
            expected = expected - 0.6 * len(w) * (0.5 * (scored[0] - scored[1])).sigmoid().log()
        lprobs = log_probs_of(model, source, w.roll(1))
        expected = expected + 0.4 * label_smoothed_nll_loss(lprobs, w, options["label_smoothing"], ignore_index=PAD)[0]
    assert_same_gradients(model, loss, expected)


def log_probs_of(model, source, previous):
    return model(source[None], torch.tensor([len(source)]), previous[None])[0][0].log_softmax(-1)


@torch.no_grad()
def greedy(model, source, limit):
    """The likeliest token after each prefix, without padding, computed anew for every prefix."""
    tokens = [2]
    model.eval()
    while tokens[1:2] != [2] and (len(tokens) < 2 or tokens[-1] != 2):
        scores = log_probs_of(model, source, torch.tensor(tokens))[-1]
        scores[PAD] = -torch.inf
        if len(tokens) == 1:
            scores[2] = -torch.inf  # fairseq's generators say something: --min-len is 1
        tokens.append(2 if len(tokens) == limit else int(scores.argmax()))
    model.train()
    return torch.tensor(tokens[1:])


@pytest.mark.parametrize("criterion", ["actor_risk", "actor_trie", "actor_preference"])
def test_validation_is_by_cross_entropy(workspace, criterion):
    task, model = workspace.task(), stir(workspace.actor_model("transformer")).eval()
    ours = build(criterion, task, label_smoothing=0.1)
    plain = task.build_criterion(
        OmegaConf.create({"_name": "actor_cross_entropy", "sentence_avg": False, "label_smoothing": 0.1})
    )
    assert isinstance(ours, ListCriterion)
    with torch.no_grad():
        assert ours(model, sample(task))[2] == plain(model, sample(task))[2]


def test_logged_means(workspace):
    task, model = workspace.task(), stir(workspace.actor_model("lstm"), 0.3).train()
    criterion = build("actor_risk", task, candidates=3, label_smoothing=0.0)
    _, batch = make_batch(task, criterion.drawn())
    loss, sample_size, log = criterion(model, batch)
    with metrics.aggregate() as logged:
        ActorRiskCriterion.reduce_metrics([log, log])
    assert logged.get_smoothed_value("risk") == pytest.approx(float(log["risk"]) / 3, abs=1e-4)
    nll = float(log["nll_loss"] / log["nll_tokens"]) / torch.log(torch.tensor(2.0))
    assert logged.get_smoothed_value("nll_loss") == pytest.approx(float(nll), abs=2e-3)  # of the best hypotheses
    assert log["ntokens"] == batch["ntokens"] > log["nll_tokens"] == sample_size
    mean = float(loss.detach()) / float(sample_size) / torch.log(torch.tensor(2.0))
    assert logged.get_smoothed_value("loss") == pytest.approx(float(mean), abs=2e-3)


@pytest.mark.parametrize(
    "criterion, options, message",
    [
        ("actor_risk", {"candidates": 1}, "--candidates 1: give at least 2"),
        ("actor_risk", {"risk_temperature": 0}, "--risk-temperature 0: give a number above 0"),
        ("actor_risk", {"risk_scale": -1}, "--risk-scale -1: give a number above 0"),
        ("actor_risk", {"cross_entropy_weight": 1}, "--cross-entropy-weight 1: give a number from 0 to below 1"),
        ("actor_trie", {"paths": 0}, "--paths 0: give the number"),
        ("actor_preference", {"preference_beta": 0}, "--preference-beta 0: give a number above 0"),
        ("actor_preference", {"cross_entropy_weight": 2}, "--cross-entropy-weight 2: give a number from 0 to below 1"),
    ],
)
def test_options_out_of_range(workspace, criterion, options, message):
    with pytest.raises(UserError, match=message):
        build(criterion, workspace.task(), label_smoothing=0.0, **options)
