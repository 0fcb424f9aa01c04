"""fairseq knows what this package adds, whichever of the two is imported first."""

from __future__ import annotations

import subprocess
import sys
from typing import Dict

import pytest

from tests.conftest import REPO, USER_DIR

ORDERS = {
    "package first": "import fairseq_tg.compiled; import fairseq",
    "fairseq first": "import fairseq; import fairseq_tg.compiled",
    "a part of fairseq": "import fairseq_tg.compiled; from fairseq.data import Dictionary",
    "a model first": "from fairseq_tg.models.transformer import TGTransformerModel",  # as in docs/decoding.md
    "its reader first": "from fairseq_tg.loading.checkpoints import load_checkpoint",
    "the compiler first": "from fairseq_tg.compiled.transformer_extract import extract",
    "looked for before": "import fairseq_tg, importlib.util as util; util.find_spec('fairseq'); import fairseq",
    "reloaded": "import fairseq_tg.compiled, importlib; importlib.reload(fairseq_tg); import fairseq",
    "package twice": "import fairseq_tg, sys; del sys.modules['fairseq_tg']; import fairseq_tg; import fairseq",
    "all of it twice": """import fairseq_tg.compiled, sys
for name in [name for name in sys.modules if name.startswith("fairseq_tg")]:
    del sys.modules[name]
import fairseq_tg.compiled, fairseq""",
}


#: Runs every program that it is given in a fork that has imported only what takes fairseq long to import
FORKS = """
import os, sys, traceback
import hydra.experimental, omegaconf, sacrebleu, scipy.stats, sklearn.metrics, torch
assert not any(name.split(".")[0] in ("fairseq", "fairseq_tg") for name in sys.modules)
for code in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            exec(code, {})
        except BaseException:
            os.write(1, traceback.format_exc().encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.write(1, bytes(1))
"""
FOUND = f"""
from argparse import Namespace
from fairseq import checkpoint_utils, criterions, models, tasks, utils
utils.import_user_module(Namespace(user_dir={USER_DIR!r}))  # as fairseq's commands do
assert "tg_lstm" in models.MODEL_REGISTRY and "tg_translation" in tasks.TASK_REGISTRY
assert "actor_cross_entropy" in criterions.CRITERION_REGISTRY
assert checkpoint_utils.load_checkpoint_to_cpu.__module__ == "fairseq_tg.loading.checkpoints"
assert checkpoint_utils.torch.load.__module__ == "fairseq_tg.loading.checkpoints"
os.write(1, b"all is there")
"""


@pytest.fixture(scope="module")
def outcomes() -> Dict[str, str]:
    """By order: what came of it."""
    programs = [f"import os\n{imports}{FOUND}" for imports in ORDERS.values()]
    command = [sys.executable, "-c", FORKS, *programs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPO)
    assert done.returncode == 0, done.stderr
    *said, rest = done.stdout.split("\0")
    assert not rest and len(said) == len(ORDERS)
    return dict(zip(ORDERS, said))


@pytest.mark.parametrize("order", ORDERS)
def test_everything_is_registered(outcomes: Dict[str, str], order: str) -> None:
    assert outcomes[order] == "all is there"
