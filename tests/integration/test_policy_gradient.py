"""actor_policy_gradient: actors are moved to what is rewarded."""

from __future__ import annotations

import pytest

from fairseq_tg.errors import UserError
from tests.conftest import hypotheses
from tests.integration.corpora import BASE

SHORT = "tests.unit.test_objectives:shorter_is_better"


def test_what_is_rewarded_is_said(workspace, tmp_path):
    """Rewarded for being short, translations get shorter."""
    flags = ["--criterion", "actor_policy_gradient", "--reward", SHORT, "--lr", "0.02", "--max-epoch", "4"]
    path = workspace.train(BASE, tmp_path / "save", *flags)

    def length(checkpoint: str) -> int:
        return sum(len(text.split()) for text in hypotheses(workspace.generate(checkpoint, "--beam", "1")).values())

    assert length(path) < 0.9 * length(workspace.bases[BASE])


def test_bad_rewards(workspace, tmp_path):
    flags = ["--criterion", "actor_policy_gradient"]
    with pytest.raises(UserError, match="unknown objective 'bleu'"):
        workspace.train(BASE, tmp_path, *flags, "--reward", "bleu")
    with pytest.raises(UserError, match="--reward-scale 0: give a number above 0"):
        workspace.train(BASE, tmp_path, *flags, "--reward-scale", "0")
