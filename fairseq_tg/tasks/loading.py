"""Models from checkpoints, ready to translate, each with a task that has its dictionaries."""

from __future__ import annotations

import os
from typing import Any, Optional, Tuple

from fairseq import checkpoint_utils
from fairseq.data import data_utils

from fairseq_tg.errors import UserError
from fairseq_tg.loading.checkpoints import load_checkpoint
from fairseq_tg.models import bart, fconv, lstm, presets, transformer  # noqa: F401 (registers what checkpoints name)
from fairseq_tg.tasks.translation import TGTranslationConfig, TGTranslationTask


def load_model(path: str, data: Optional[str] = None, actor_weights: Optional[str] = None) -> Tuple[Any, Any]:
    """The model of a checkpoint, ready to translate, and a task with its dictionaries."""
    state = load_checkpoint(path)
    recorded = state["cfg"]["task"]
    data = data or _find_data(path, recorded.get("data"))
    if not os.path.isdir(data):
        raise UserError(f"there is no data directory '{data}': give --data the one that the model was trained with")
    pair = recorded.get("source_lang"), recorded.get("target_lang")
    source_lang, target_lang = pair if all(pair) else data_utils.infer_language_pair(data)
    for name in (f"dict.{lang}.txt" for lang in (source_lang, target_lang)):
        if source_lang is None or not os.path.isfile(os.path.join(data, name)):
            raise UserError(f"there are no dictionaries of the model in '{data}': give --data its data directory")
    config = TGTranslationConfig(
        data=data,
        source_lang=source_lang,
        target_lang=target_lang,
        actor_weights=actor_weights,
        # which a command would fill in
        train_subset="train",
        dataset_impl=None,
        required_seq_len_multiple=1,
    )
    task = TGTranslationTask.setup_task(config)
    models, _ = checkpoint_utils.load_model_ensemble([path], task=task, state=state)
    return models[0].eval(), task


def _find_data(path: str, recorded: Optional[str]) -> str:
    if recorded and os.path.isdir(recorded):
        return recorded
    raise UserError(
        f"the dictionaries of '{path}' are not where it was trained ('{recorded}'): give --data the data directory"
    )
