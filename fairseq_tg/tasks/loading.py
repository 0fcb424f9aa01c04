"""Models from checkpoints, ready to translate, each with a task that has its dictionaries."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import fields
from typing import Any, Dict, Mapping, Optional, Tuple

from fairseq import checkpoint_utils
from fairseq.data import data_utils
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from omegaconf import OmegaConf

from fairseq_tg.errors import UserError
from fairseq_tg.languages import LanguageOptions
from fairseq_tg.loading.checkpoints import load_checkpoint
from fairseq_tg.loading.one_copy import taking_tensors
from fairseq_tg.models import families  # noqa: F401 (registers what checkpoints name)
from fairseq_tg.names import TG
from fairseq_tg.tasks import from_pretrained_bart, multi_simple_epoch, translation  # noqa: F401
from fairseq_tg.tasks.layer import TGTaskOptions
from fairseq_tg.tasks.marks import MARKING, SIDES, as_typed, recorded_langs, split_pairs, task_name
from fairseq_tg.tasks.validation import ScoringOptions

#: Options of a task that name files of their own
FILES = ("lang_dict", "fixed_dictionary", "source_dict", "target_dict")


def load_model(
    path: str,
    data: Optional[str] = None,
    actor_weights: Optional[str] = None,
    languages: Optional[LanguageOptions] = None,
) -> Tuple[Any, Any]:
    """The model of a checkpoint, ready to translate, and a task with its dictionaries.

    Args:
        data: the data directory, if it is not where the model was trained.
        languages: of a model of many languages, the pair or pairs that the task is for; without, for all of them.
    """
    with taking_tensors():
        state = load_checkpoint(path)
    recorded = state["cfg"]["task"]
    recorded = vars(recorded) if isinstance(recorded, Namespace) else recorded
    data = data or _find_data(path, recorded.get("data"))
    if not os.path.isdir(data):
        raise UserError(f"there is no data directory '{data}': give --data the one that the model was trained with")
    given = (languages or LanguageOptions()).given()
    theirs = task_name(recorded)
    name = str(given.pop("task", theirs)).removeprefix(TG)
    if name not in MARKING and theirs in MARKING:
        raise UserError(f"'{path}' is of --task {theirs}: use --task {TG}{theirs}, or leave it out")
    if name in MARKING:
        options = _marking_options(TG + name, recorded, given, data)
    else:
        name, options = "translation", _plain_options(recorded, given, data)
    # which a command would fill in
    options.update(data=data, actor_weights=actor_weights, train_subset="train", dataset_impl=None)
    config = OmegaConf.structured(TASK_DATACLASS_REGISTRY[TG + name](**options))
    task = TASK_REGISTRY[TG + name].setup_task(config)
    models, _ = checkpoint_utils.load_model_ensemble([path], task=task, state=state)
    task.built_models.clear()  # whoever is done with the model may keep the task
    return models[0].eval(), task


def _plain_options(recorded: Mapping[str, Any], given: Mapping[str, Any], data: str) -> Dict[str, Any]:
    # fairseq records the languages that were given to it; those of a directory's file names may be in either order
    pairs = [[languages.get(side) for side in SIDES] for languages in (recorded, given)]
    pair = next(filter(all, pairs), None) or data_utils.infer_language_pair(data)
    for name, value in given.items():
        if name not in SIDES:
            raise UserError(f"{_flag(name)} is for models of many languages, and this one is of {pair[0]}-{pair[1]}")
        if value != pair[SIDES.index(name)]:
            raise UserError(f"this model translates from {pair[0]} to {pair[1]}: it does not know '{value}' there")
    for name in (f"dict.{lang}.txt" for lang in pair):
        if pair[0] is None or not os.path.isfile(os.path.join(data, name)):
            raise UserError(f"there are no dictionaries of the model in '{data}': give --data its data directory")
    return {"source_lang": pair[0], "target_lang": pair[1], "required_seq_len_multiple": 1}


def _marking_options(task: str, recorded: Mapping[str, Any], given: Mapping[str, Any], data: str) -> Dict[str, Any]:
    """The options of a task with language symbols: as they are given, else as the checkpoint has them."""
    own = {field.name for field in (*fields(TGTaskOptions), *fields(ScoringOptions))}  # of what the model was made by
    known = [field.name for field in fields(TASK_DATACLASS_REGISTRY[task]) if field.name not in own]
    for name in given:
        if name not in known:
            raise UserError(f"{_flag(name)} is no option of --task {task}: leave it out")
    options = {name: as_typed(recorded[name]) for name in known if recorded.get(name) is not None}
    for name in ("left_pad_source", "left_pad_target"):
        options.pop(name, None)  # of batches, and no matter here
    options["langs"] = recorded_langs(recorded)  # they number the symbols, whatever pairs are given
    if options["langs"] or {"langs", "lang_dict"} & given.keys():
        options["lang_dict"] = None
    if {"langs", "lang_dict"} & given.keys():
        options["langs"] = None
    if {"encoder_langtok", "decoder_langtok"} & given.keys():
        options["langtoks"] = None  # which would go before them
    options.update(given)
    options.update(_pair(given))
    for name in FILES:
        if options.get(name) and name not in given and not os.path.isfile(options[name]):
            options[name] = os.path.join(data, os.path.basename(options[name]))
            if not os.path.isfile(options[name]):
                raise UserError(
                    f"the model was trained with {_flag(name)} {recorded[name]}: give it, or put it into '{data}'"
                )
    if "required_seq_len_multiple" in known:
        options["required_seq_len_multiple"] = 1
    options["seed"] = 1
    return {name: value for name, value in options.items() if name in known}


def _pair(given: Mapping[str, Any]) -> Dict[str, Any]:
    """The options for one pair, however it is given; of several, or none, there is nothing to add."""
    sides = [given.get(side) for side in SIDES]
    if any(sides) and not all(sides):
        raise UserError("one of --source-lang and --target-lang is missing: give both")
    typed = "-".join(filter(None, sides)) or given.get("lang_pairs")
    if given.get("lang_pairs", typed) != typed:
        raise UserError("give --source-lang and --target-lang for one pair, or --lang-pairs for several, not both")
    pairs = split_pairs(typed) if typed else []
    return {**dict(zip(SIDES, pairs[0])), "lang_pairs": typed} if len(pairs) == 1 else {}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _find_data(path: str, recorded: Optional[str]) -> str:
    if recorded and os.path.isdir(recorded):
        return recorded
    raise UserError(
        f"the dictionaries of '{path}' are not where it was trained ('{recorded}'): give --data the data directory"
    )
