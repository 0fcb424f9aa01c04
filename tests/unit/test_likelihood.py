"""P_w, against the paper's formula."""

from __future__ import annotations

import pytest
import torch

from fairseq_tg.evaluation.likelihood import word_likelihood
from tests.conftest import BASES, Workspace


@pytest.mark.parametrize("base", BASES)
def test_word_likelihood_is_the_papers(workspace: Workspace, base: str) -> None:
    """1/T sum_t P(y_t | y_<t, x), one sentence and one token at a time."""
    model, task = workspace.base_model(base).eval(), workspace.task()
    sources, targets = [[5, 6, 7, 2], [8, 2], [9, 5, 2]], [[10, 11, 2], [12, 13, 14, 15, 2], [2]]
    expected = []
    for source, target in zip(sources, targets):
        arguments = {"src_tokens": torch.tensor([source]), "src_lengths": torch.tensor([len(source)])}
        with torch.no_grad():
            output = model(**arguments, prev_output_tokens=torch.tensor([[2, *target[:-1]]]))
        probabilities = output[0][0].softmax(-1)
        expected.append(sum(probabilities[t, token].item() for t, token in enumerate(target)) / len(target))
    assert word_likelihood(model, task, sources, targets) == pytest.approx(100 * sum(expected) / 3, rel=1e-4)
