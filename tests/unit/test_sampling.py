"""Drawn translations: by the model's own probabilities, and their log-probabilities are the model's."""

from __future__ import annotations

import pytest
import torch

from fairseq_tg.decoding.sampling import SamplingGenerator, draw
from tests.conftest import BASES, Workspace
from tests.unit.test_fast_search import BATCH, build_model, random_batches

LIMIT = 6


def test_draws_are_as_likely_as_the_model_says() -> None:
    """Of rows that are certain, rows where some tokens may not be, and rows of small probabilities."""
    rare = torch.tensor([0.0, -8.0, -torch.inf, -9.0, -8.0])
    logits = torch.stack([torch.tensor([2.0, 1.0, -torch.inf, 0.5, 2.0]), rare, torch.full((5,), -torch.inf)])
    logits[2, 3] = 70.0
    torch.manual_seed(1)
    drawn = draw(logits.repeat_interleave(200_000, dim=0)).view(3, -1)
    shares = torch.stack([row.bincount(minlength=5) / row.numel() for row in drawn])
    expected = logits.softmax(dim=1)
    assert (shares[expected == 0] == 0).all()
    deviations = (expected * (1 - expected) / drawn.size(1)).sqrt()
    assert ((shares - expected).abs() <= 4 * deviations).all()
    torch.manual_seed(1)
    assert torch.equal(draw(logits.repeat_interleave(200_000, dim=0)).view(3, -1), drawn)


@pytest.mark.parametrize("base", list(BASES))
def test_log_probabilities_are_those_of_teacher_forcing(workspace: Workspace, base: str) -> None:
    model, words = build_model(workspace, base, "gate"), workspace.task().target_dictionary
    (batch,) = random_batches(workspace.task(), BATCH)
    generator = SamplingGenerator([model], words, beam_size=1, max_len_b=LIMIT, normalize_scores=False)
    torch.manual_seed(1)
    found = [hypotheses[0] for hypotheses in generator.generate([model], batch)]
    assert len({tuple(item["tokens"].tolist()) for item in found}) > 1
    target = torch.nn.utils.rnn.pad_sequence([h["tokens"] for h in found], batch_first=True, padding_value=words.pad())
    previous = target.roll(1, dims=1)
    previous[:, 0] = words.eos()
    with torch.no_grad():
        log_probs = model.get_normalized_probs(model(**{**batch["net_input"], "prev_output_tokens": previous}), True)
    picked = log_probs.gather(2, target.unsqueeze(2)).squeeze(2)
    for item, row in zip(found, picked):
        torch.testing.assert_close(item["positional_scores"], row[: len(item["tokens"])], atol=1e-4, rtol=1e-4)
        assert item["score"] == pytest.approx(float(item["positional_scores"].sum()), abs=1e-4)
        assert item["tokens"][-1] == words.eos() and len(item["tokens"]) <= LIMIT + 1


def test_a_first_token_is_drawn_from_its_distribution(workspace: Workspace) -> None:
    """The same sentence many times over, as fairseq's own sampling: no end at once, no padding."""
    model, words = build_model(workspace, "lstm", "gate"), workspace.task().target_dictionary
    (batch,) = random_batches(workspace.task(), BATCH)
    many = {name: batch["net_input"][name][:1].repeat(4000, 1) for name in ("src_tokens",)}
    many["src_lengths"] = batch["net_input"]["src_lengths"][:1].repeat(4000)
    generator = SamplingGenerator([model], words, beam_size=1, max_len_b=1)
    torch.manual_seed(1)
    first = torch.stack([h[0]["tokens"][0] for h in generator.generate([model], {"net_input": many})])
    one = {name: values[:1] for name, values in many.items()}
    with torch.no_grad():
        log_probs = model.get_normalized_probs(model(**one, prev_output_tokens=torch.tensor([[words.eos()]])), True)
    expected = log_probs[0, 0].exp()
    expected[[words.pad(), words.eos()]] = 0
    expected /= expected.sum()
    shares = first.bincount(minlength=len(words)) / len(first)
    assert expected.max() < 0.95
    deviations = (expected * (1 - expected) / len(first)).sqrt()
    assert ((shares - expected).abs() <= 4.5 * deviations + 1 / len(first)).all()
