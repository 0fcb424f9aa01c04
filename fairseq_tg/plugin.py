"""Everything that fairseq_tg adds to fairseq, registered by being imported."""

import os

from hydra.core.hydra_config import HydraConfig

from fairseq_tg.criterions import cross_entropy, policy_gradient, preference, risk, trie  # noqa: F401
from fairseq_tg.errors import report_in_one_line
from fairseq_tg.models import families  # noqa: F401
from fairseq_tg.tasks import from_pretrained_bart, multi_simple_epoch, translation  # noqa: F401

report_in_one_line()
if HydraConfig.initialized():
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra prints errors itself, ours with a traceback
