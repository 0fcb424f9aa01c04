"""tg_translation_from_pretrained_bart: for models trained on from mBART-25."""

# Without `from __future__ import annotations`: fairseq wants the types of a config's fields, not their names.
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Tuple

import torch
from fairseq.data import AppendTokenDataset, LanguagePairDataset, PrependTokenDataset
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask
from torch import Tensor

from fairseq_tg.compiled.languages import BEHIND, BEHIND_BOS
from fairseq_tg.errors import UserError
from fairseq_tg.tasks.layer import TGTask, TGTaskOptions
from fairseq_tg.tasks.marks import MASK, SIDES, Frame, flags_of, task_name


@dataclass
class TGTranslationFromPretrainedBARTConfig(TGTaskOptions, TranslationConfig):
    langs: Optional[str] = field(
        default=None,
        metadata={"help": "comma-separated list of the pretraining's languages, all of them and in the same order"},
    )
    prepend_bos: bool = field(
        default=False, metadata={"help": "prepend bos to each sentence, which matches mBART's pretraining"}
    )


class FromPretrainedBARTTask(TranslationFromPretrainedBARTTask):
    """The parent, with what it forgets. The symbol of the target's language begins and ends a target."""

    @property
    def args(self) -> Any:
        return self.cfg  # as the parent calls it, and fairseq's tasks no longer do

    def build_generator(
        self,
        models: List[Any],
        args: Any,
        seq_gen_cls: Any = None,
        extra_gen_cls_kwargs: Optional[Dict] = None,
        **more: Any,
    ) -> Any:
        # The parent's own leaves out all searches but plain beam search, and what follows `args`
        if getattr(args, "score_reference", False):
            return super().build_generator(models, args)
        extra = {**(extra_gen_cls_kwargs or {}), "eos": self.tgt_dict.index(f"[{self.cfg.target_lang}]")}
        return TranslationTask.build_generator(self, models, args, seq_gen_cls, extra, **more)

    def build_dataset_for_inference(
        self, src_tokens: List[Tensor], src_lengths: List[int], constraints: Optional[Tensor] = None
    ) -> Any:
        if self.cfg.prepend_bos:  # which the parent does in training alone
            bos = torch.tensor([self.source_dictionary.bos()])
            src_tokens = [torch.cat([bos.to(tokens), tokens]) for tokens in src_tokens]
        lengths = [len(tokens) + 1 for tokens in src_tokens]
        return super().build_dataset_for_inference(src_tokens, lengths, constraints)


@register_task("tg_translation_from_pretrained_bart", dataclass=TGTranslationFromPretrainedBARTConfig)
class TGTranslationFromPretrainedBARTTask(TGTask, FromPretrainedBARTTask):
    """Translation by a model with mBART's language symbols."""

    parent = "translation_from_pretrained_bart"

    def __init__(self, cfg: Any, src_dict: Any, tgt_dict: Any) -> None:
        if not cfg.langs:
            raise UserError("no --langs: give the languages of the model's pretraining, all of them and in their order")
        super().__init__(cfg, src_dict, tgt_dict)
        for lang in (cfg.source_lang, cfg.target_lang):
            if lang not in self.langs:
                raise UserError(f"the model does not know '{lang}': --langs has {cfg.langs}")

    @cached_property
    def marks(self) -> FrozenSet[int]:
        dictionary = self.target_dictionary
        symbols = {dictionary.index(symbol) for symbol in (*(f"[{lang}]" for lang in self.langs), MASK)}
        return frozenset(symbols - {dictionary.unk()} | ({dictionary.bos()} if self.cfg.prepend_bos else set()))

    @property
    def empty_sizes(self) -> Tuple[int, int]:
        size = 2 + self.cfg.prepend_bos  # of words, the end of sentence and the language
        return size, size

    def mark_pairs(self, sources: Any, targets: Any) -> LanguagePairDataset:
        source = self.src_dict.index(f"[{self.cfg.source_lang}]")
        target = self.tgt_dict.index(f"[{self.cfg.target_lang}]")
        if self.cfg.prepend_bos:
            sources = PrependTokenDataset(sources, self.src_dict.bos())
            targets = PrependTokenDataset(targets, self.tgt_dict.bos())
        return self.pair_dataset(AppendTokenDataset(sources, source), AppendTokenDataset(targets, target), target)

    def task_flags(self) -> List[str]:
        return [*super().task_flags(), *flags_of(self.mark_options())]

    def frame(self, lang: str) -> Frame:
        symbol = self.target_dictionary.index(f"[{lang}]")
        return Frame(symbol, [], symbol)

    def compiled_marks(self) -> Dict[str, str]:
        places = {"source_symbol": "src", "target_symbol": "tgt"}
        place = BEHIND_BOS if self.cfg.prepend_bos else BEHIND
        return {"languages": ",".join(self.langs), "language_symbol": "[{}]", **places, "language_place": place}

    def mark_options(self) -> Dict[str, Any]:
        return {"langs": self.cfg.langs, "prepend_bos": self.cfg.prepend_bos}

    def check_trained_with(self, recorded: Mapping[str, Any]) -> None:
        """Such a model translates one pair. For another it is asked with symbols that it was not trained with."""
        super().check_trained_with(recorded)
        ((source, target),) = self.pairs
        sides = [recorded.get(side) for side in SIDES]
        # A pretraining, of other tasks, may record any pair or none
        if task_name(recorded) == self.parent and all(sides) and sides != [source, target]:
            there = "-".join(map(str, sides))
            raise UserError(
                f"the checkpoint was trained for {there}, and here it is {source}-{target}: give the same pair, or a "
                "model of many"
            )
