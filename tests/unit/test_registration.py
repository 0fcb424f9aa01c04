"""fairseq knows what this package adds, whichever of the two is imported first."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import REPO, USER_DIR

ORDERS = {
    "package first": "import fairseq_tg.compiled; import fairseq",
    "fairseq first": "import fairseq; import fairseq_tg.compiled",
    "a part of fairseq": "import fairseq_tg.compiled; from fairseq.data import Dictionary",
    "a model first": "from fairseq_tg.models.transformer import TGTransformerModel",  # as in docs/decoding.md
    "the compiler first": "from fairseq_tg.compiled.transformer_extract import extract",
    "looked for before": "import fairseq_tg, importlib.util as util; util.find_spec('fairseq'); import fairseq",
}


@pytest.mark.parametrize("order", ORDERS)
def test_everything_is_registered(order: str) -> None:
    code = f"""
{ORDERS[order]}
from argparse import Namespace
from fairseq import checkpoint_utils, criterions, models, tasks, utils
utils.import_user_module(Namespace(user_dir={USER_DIR!r}))  # as fairseq's commands do
assert "tg_lstm" in models.MODEL_REGISTRY and "tg_translation" in tasks.TASK_REGISTRY
assert "actor_cross_entropy" in criterions.CRITERION_REGISTRY
assert checkpoint_utils.load_checkpoint_to_cpu.__module__ == "fairseq_tg.loading.checkpoints"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=REPO)
    assert done.returncode == 0, done.stderr
