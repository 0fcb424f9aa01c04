"""What a task says of the symbols that it puts around words: those of languages. Here, a task that puts none."""

from __future__ import annotations

import ast
import os
from argparse import Namespace
from collections import ChainMap
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from fairseq.data import LanguagePairDataset, ListDataset
from fairseq.tasks import TASK_DATACLASS_REGISTRY, FairseqTask
from fairseq.tasks.translation import load_langpair_dataset
from fairseq.utils import split_paths
from omegaconf import OmegaConf

from fairseq_tg.errors import UserError
from fairseq_tg.loading.checkpoints import REPLACED
from fairseq_tg.loading.splits import indexable
from fairseq_tg.names import TG
from fairseq_tg.tasks.damage import naming_damage

#: Of BART's pretraining: a mark, too, in the dictionaries of models that it was done with
MASK = "<mask>"
#: fairseq's tasks whose models want language symbols
MARKING = ("translation_multi_simple_epoch", "translation_from_pretrained_bart")
#: Options that name a pair
SIDES = ("source_lang", "target_lang")


class Frame(NamedTuple):
    """What a search for translations into a language is told: what the decoder begins with, which is no part of a
    translation, what translations are made to begin with, and what ends them."""

    first: int
    prefix: List[int]
    end: int


class MarkedTask(FairseqTask):
    """A translation task that knows its marks: symbols of the target that are no words, and no end of sentence."""

    cfg: Any
    parent: str  # fairseq's name of the task that this one extends

    @property
    def pairs(self) -> List[Tuple[str, str]]:
        """The language pairs that are translated."""
        return [(self.cfg.source_lang, self.cfg.target_lang)]

    @cached_property
    def marks(self) -> FrozenSet[int]:
        return frozenset()

    @property
    def empty_sizes(self) -> Tuple[int, int]:
        """How many symbols the data sets have of a source and of a target without words."""
        return 1, 1

    def source_end(self, source: str, target: str) -> int:
        """What a batch of a pair has where its sources, as the data set has them, have the end of sentence."""
        return self.source_dictionary.eos()

    def frame(self, lang: str) -> Frame:
        """The symbols around a translation into a language."""
        eos = self.target_dictionary.eos()
        return Frame(eos, [], eos)

    def compiled_marks(self) -> Optional[Dict[str, str]]:
        """The fields of a compiled model's `TextOptions` that say where the marks are; None if they cannot."""
        return {}

    def plain_split(self, split: str) -> Tuple[Any, Any]:
        """Sources and, if there are some, targets of the one pair that is translated, without marks."""
        ((source, target),) = self.pairs
        sides = source, self.source_dictionary, target, self.target_dictionary
        try:
            with naming_damage(self.cfg.data):
                dataset = load_langpair_dataset(
                    *(split_paths(self.cfg.data)[0], split, *sides),
                    combine=False,
                    dataset_impl=None,
                    upsample_primary=1,
                    left_pad_source=True,
                    left_pad_target=False,
                    max_source_positions=None,
                    max_target_positions=None,
                )
        except FileNotFoundError:
            raise UserError(
                f"there is no split '{split}' of {source}-{target} in '{self.cfg.data}': give a split and a pair that "
                "are there"
            ) from None
        return indexable(dataset.src), None if dataset.tgt is None else indexable(dataset.tgt)

    def marked_pairs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Any:
        """Sentences of that pair, which end with the end of sentence, as a data set with marks."""
        sides = [ListDataset([torch.tensor(s) for s in side], list(map(len, side))) for side in (sources, targets)]
        return self.mark_pairs(*sides)

    def mark_pairs(self, sources: Any, targets: Any) -> Any:
        """The same of data sets of both sides."""
        return self.pair_dataset(sources, targets)

    def pair_dataset(self, sources: Any, targets: Any, eos: Optional[int] = None) -> LanguagePairDataset:
        """Data sets of both sides as one; eos is what ends a target, if that is not the end of sentence."""
        return LanguagePairDataset(
            *(sources, sources.sizes, self.source_dictionary, targets, targets.sizes, self.target_dictionary),
            shuffle=False,
            eos=eos,
        )

    def around_target(self) -> Optional[Tuple[List[int], List[int]]]:
        """The marks before and after a target of that pair; None where they take the place of its end of sentence."""
        eos = self.target_dictionary.eos()
        dataset = self.marked_pairs([[eos]], [[eos]])
        if not isinstance(dataset, LanguagePairDataset):
            return None
        marked = dataset[0]["target"].tolist()
        return marked[: marked.index(eos)], marked[marked.index(eos) + 1 :]

    def task_flags(self) -> List[str]:
        """What tells fairseq's commands of this task, its pairs and its marks."""
        ((source, target),) = self.pairs  # data directories may have them in either order
        return ["--task", TG + self.parent, *flags_of({"source_lang": source, "target_lang": target})]

    def mark_options(self) -> Dict[str, Any]:
        """The options that say which marks there are and where, as they are typed."""
        return {}

    def strip(self, tokens: List[int]) -> List[int]:
        """A target's words alone: without the end of sentence and the marks, also such as a model put between words.

        (What data are binarized with has no marks: a corpus could not be written with them.)
        """
        words, eos = [token for token in tokens if token not in self.marks], self.target_dictionary.eos()
        while words and words[-1] == eos:
            words.pop()
        return words

    @classmethod
    def of_record(cls, recorded: Mapping[str, Any]) -> Dict[str, Any]:
        """The options of this task that a checkpoint of its parent recorded, as they are typed."""
        name = TG + cls.parent
        known = [field.name for field in fields(TASK_DATACLASS_REGISTRY[name]) if recorded.get(field.name) is not None]
        options = {option: as_typed(recorded.get(option)) for option in known}
        langs = recorded_langs(recorded)
        return {**options, **({"langs": langs} if langs else {}), "_name": name}

    def check_trained_with(self, recorded: Mapping[str, Any]) -> None:
        """Refuse a checkpoint whose task, as it recorded it, puts marks where this one does not.

        The model would translate into a wrong language, without a word.
        """
        theirs = task_name(recorded)
        if theirs != self.parent and theirs in MARKING:
            raise UserError(
                f"the checkpoint is of --task {theirs}, whose language symbols --task {TG}{self.parent} does not know: "
                f"use --task {TG}{theirs}"
            )
        if theirs != self.parent:
            return
        options = self.mark_options()
        there = {name: as_typed(recorded.get(name, value)) for name, value in options.items()}
        if "langs" in options:  # not known where they are in a file that is not here
            there["langs"] = recorded_langs(recorded) or options["langs"]
        there = _as_placed(there)
        for option, here in _as_placed(options).items():
            if there[option] != here and (there[option] or here):
                raise UserError(_disagreement(f"--{option.replace('_', '-')}", there[option], here))


def _as_placed(options: Mapping[str, Any]) -> Dict[str, Any]:
    """Options with the places of symbols in one way: --langtoks goes before the others, and fairseq's record of it is
    filled in from them."""
    given = ast.literal_eval(options.get("langtoks") or "{}")
    placed = {name: value for name, value in options.items() if name != "langtoks"}
    if "main" in given:
        source, target = given["main"]
        placed.update(encoder_langtok=source, decoder_langtok=True if target == "tgt" else target or False)
    return placed


def _disagreement(flag: str, there: Any, here: Any) -> str:
    if isinstance(there, bool) or isinstance(here, bool):
        had, remedy = (flag, "add it") if there else (f"no {flag}", "leave it out")
        return f"the checkpoint was trained with {had}, and this command is not so: {remedy}"
    return f"the checkpoint was trained with {flag} {there}, and here it is {here}: give the same"


def flags_of(options: Mapping[str, Any]) -> List[str]:
    """Options as they are typed; what is not set is left out."""
    flags: List[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        # In one word: a value that begins as an option does is none
        flags += [] if value is None or value is False else [flag] if value is True else [f"{flag}={value}"]
    return flags


def split_pairs(typed: str) -> List[Tuple[str, str]]:
    """The pairs of --lang-pairs."""
    pairs = [pair.split("-") for pair in typed.split(",")]
    if not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise UserError(f"--lang-pairs {typed}: give pairs of languages, as de-en,en-de")
    return [(source, target) for source, target in pairs]


def as_typed(value: Any) -> Any:
    """What was typed for a value that fairseq's parser made: its own checkpoints have the latter."""
    if isinstance(value, (list, tuple)) or OmegaConf.is_list(value):
        return ",".join(map(str, value))
    if OmegaConf.is_dict(value):
        value = OmegaConf.to_container(value)
    return repr(value) if isinstance(value, dict) else value


def recorded_langs(recorded: Mapping[str, Any]) -> Optional[str]:
    """The languages that a checkpoint's task numbered its symbols by, if it says so or names a file that is there."""
    langs, pairs, file = (as_typed(recorded.get(name)) for name in ("langs", "lang_pairs", "lang_dict"))
    if file and os.path.isfile(file):
        lines = Path(file).read_text(encoding="utf-8").splitlines()
        return ",".join(line.strip() for line in lines if line.strip())
    if langs is None and file is None and pairs and "-" in pairs:
        return ",".join(sorted({lang for pair in pairs.split(",") for lang in pair.split("-")}))  # as fairseq does
    return langs


def task_name(recorded: Mapping[str, Any]) -> str:
    """fairseq's name of the task that a checkpoint was trained in, also where it was ours."""
    return str(recorded.get("_name") or recorded.get("task")).removeprefix(TG)


def recorded_task(model_config: Any) -> Mapping[str, Any]:
    """The options of the task that a checkpoint was trained in, from its model's: a part of the same record."""
    if isinstance(model_config, Namespace):
        # fairseq's way: all options of the command
        options = vars(model_config)
        return ChainMap(options.get(REPLACED, {}), {**options, "_name": options.get("task")})
    root = model_config._get_root()
    task = root.get("task", {})
    return ChainMap(root.get(REPLACED, {}), vars(task) if isinstance(task, Namespace) else task or {})
