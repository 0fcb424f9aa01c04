"""tg_translation_multi_simple_epoch: for models of many languages, as M2M-100, mBART-50 and NLLB's dense ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Tuple, cast

from fairseq.data import indexed_dataset
from fairseq.data.multilingual.multilingual_utils import get_lang_tok
from fairseq.tasks import LegacyFairseqTask, register_task
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from fairseq.utils import split_paths
from omegaconf import open_dict

from fairseq_tg.compiled.languages import BEFORE, INSTEAD, PLACES
from fairseq_tg.corpus.pairs import PairsDataset
from fairseq_tg.errors import UserError
from fairseq_tg.names import TG
from fairseq_tg.tasks.layer import TGTask, TGTaskOptions
from fairseq_tg.tasks.marks import MASK, Frame, flags_of, split_pairs
from fairseq_tg.tasks.parsed import config_of, namespace_of
from fairseq_tg.tasks.validation import Scoring, ScoringOptions

#: What the parent reads of options that are not its own
INHERITED = {"train_subset": "dataset.train_subset", "dataset_impl": "dataset.dataset_impl", "seed": "common.seed"}
#: Options that say which symbols a sentence gets, and where
MARK_OPTIONS = (
    *("encoder_langtok", "decoder_langtok", "lang_tok_style", "lang_tok_replacing_bos_eos", "langtoks"),
    "langtoks_specs",
)


@dataclass
class TGMultiSimpleEpochOptions(TGTaskOptions, ScoringOptions):
    pass


TGTranslationMultiSimpleEpochConfig = config_of(
    *(TranslationMultiSimpleEpochTask, "TGTranslationMultiSimpleEpochConfig", TGMultiSimpleEpochOptions, INHERITED)
)


class MultiSimpleEpochTask(TranslationMultiSimpleEpochTask):
    """The parent, with what it forgets, and with --eval-bleu."""

    cfg: Any

    @cached_property
    def scoring(self) -> Scoring:
        return Scoring(self)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        if not self.has_sharded_data(split):
            self.datasets.pop(split, None)  # of one that is there and in one piece, the parent does not know the shard
        super().load_dataset(split, epoch, combine, **kwargs)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        model = super().build_model(cfg, from_checkpoint)
        if self.cfg.eval_bleu:
            self.scoring.prepare(model)
        return model

    def valid_step(self, sample: Dict[str, Any], model: Any, criterion: Any) -> Any:
        return self.scoring.valid_step(sample, model, criterion)

    def reduce_metrics(self, logging_outputs: Any, criterion: Any) -> None:
        self.scoring.reduce_metrics(logging_outputs, criterion)

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        return super(LegacyFairseqTask, self).build_criterion(cfg, from_checkpoint)

    def build_generator(
        self,
        models: List[Any],
        args: Any,
        seq_gen_cls: Any = None,
        extra_gen_cls_kwargs: Optional[Dict] = None,
        **more: Any,
    ) -> Any:
        # The parent's own leaves out `seq_gen_cls`, looks for its option --keep-inference-langtok among another
        # group's, and prints the symbols of other languages, which a model puts between words.
        extra = dict(extra_gen_cls_kwargs or {})
        if not self.args.keep_inference_langtok:
            extra["symbols_to_strip_from_output"] = cast(Any, self).marks
        return super(TranslationMultiSimpleEpochTask, self).build_generator(models, args, seq_gen_cls, extra, **more)


def _record(cfg: Any, values: Dict[str, Any]) -> None:
    """Have the checkpoints of this run record what is in files, which need not be there later."""
    command = cfg._get_parent()  # whose own task fairseq saves, and gives a copy of
    for config in [cfg] if command is None else [cfg, command.task]:
        with open_dict(config):
            for name, value in values.items():
                config[name] = value


def _check_has_symbols(task: Any, path: str) -> None:
    """Refuse a dictionary without the symbols of the languages: fairseq adds them, wherever the model has them."""
    own = set(task.load_dictionary(path).symbols)
    missing = [symbol for symbol in task.target_dictionary.symbols if symbol not in own]
    if missing:
        some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise UserError(
            f"--fixed-dictionary {path} has no {some}: give the dictionary that the model was trained with, with the "
            "symbols of all its languages"
        )


@register_task("tg_translation_multi_simple_epoch", dataclass=TGTranslationMultiSimpleEpochConfig)
class TGTranslationMultiSimpleEpochTask(TGTask, MultiSimpleEpochTask):
    """Translation from any to any of a model's languages; --kbest-dir builds a corpus of all --lang-pairs."""

    parent = "translation_multi_simple_epoch"

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> TGTranslationMultiSimpleEpochTask:
        if cfg.lang_pairs is None and None not in (cfg.source_lang, cfg.target_lang):
            with open_dict(cfg):
                cfg.lang_pairs = f"{cfg.source_lang}-{cfg.target_lang}"
        args = namespace_of(TranslationMultiSimpleEpochTask, cls.parent, cfg, INHERITED)
        said = {"data": args.data, "lang_pairs": args.lang_pairs}  # or what is in a file of that name
        if args.lang_pairs is not None:
            split_pairs(args.lang_pairs)
        try:
            task = super().setup_task(args, **kwargs)
        except (ValueError, AssertionError) as error:  # languages that are not known, or that differ in dictionaries
            raise UserError(f"{error}: see --lang-pairs, --langs, --lang-dict and --fixed-dictionary") from None
        if cfg.fixed_dictionary:
            _check_has_symbols(task, cfg.fixed_dictionary)
        _record(cfg, {**said, "langs": ",".join(task.langs), "lang_dict": None})
        task.cfg = cfg
        return task

    # The symbols of languages

    @property
    def pairs(self) -> List[Tuple[str, str]]:
        return [(source, target) for source, target in zip(self.source_langs, self.target_langs)]

    @cached_property
    def marks(self) -> FrozenSet[int]:
        dictionary = self.target_dictionary
        symbols = [
            get_lang_tok(lang, self.args.lang_tok_style, spec)
            for lang in self.langs
            for spec in self.args.langtoks_specs
        ] + [MASK]
        return frozenset(map(dictionary.index, symbols)) - {dictionary.unk()}

    @property
    def empty_sizes(self) -> Tuple[int, int]:
        source, target = (spec is not None for spec in self.args.langtoks["main"])
        return (1, 1) if self.args.lang_tok_replacing_bos_eos else (1 + source, 1 + target)

    def source_end(self, source: str, target: str) -> int:
        spec = self.args.langtoks["main"][0]
        if not spec or not self.args.lang_tok_replacing_bos_eos:
            return super().source_end(source, target)
        return self.data_manager.get_encoder_langtok(source, target, spec)

    def frame(self, lang: str) -> Frame:
        first, prefix, eos = super().frame(lang)
        spec = self.args.langtoks["main"][1]
        if not spec:
            return Frame(first, prefix, eos)
        symbol = self.data_manager.get_decoder_langtok(lang, spec)
        return Frame(symbol, [], eos) if self.args.lang_tok_replacing_bos_eos else Frame(first, [symbol], eos)

    def mark_pairs(self, sources: Any, targets: Any) -> Any:
        ((source, target),), manager = self.pairs, self.data_manager
        places = self.args.langtoks["main"]
        # Only one of the two does anything
        sides = (
            manager.src_dataset_tranform_func(source, target, sources, places[0]),
            manager.tgt_dataset_tranform_func(source, target, targets, places[1]),
        )
        dataset = self.pair_dataset(*sides)
        if not self.args.lang_tok_replacing_bos_eos:
            return dataset
        ends = self.source_dictionary.eos(), self.target_dictionary.eos()
        return manager.alter_dataset_langtok(dataset, ends[0], source, ends[1], target, *places)

    def task_flags(self) -> List[str]:
        langs = {"langs": ",".join(self.langs), "lang_pairs": ",".join(map("-".join, self.pairs))}
        files = {name: self.cfg[name] for name in ("fixed_dictionary", "source_dict", "target_dict")}
        return ["--task", TG + self.parent, *flags_of({**self.mark_options(), **langs, **files})]

    def compiled_marks(self) -> Optional[Dict[str, str]]:
        places = tuple(spec or "" for spec in self.args.langtoks["main"])
        if not {*places} <= {*PLACES}:
            return None
        style = get_lang_tok("{}", self.args.lang_tok_style)
        names = ("languages", "language_symbol", "source_symbol", "target_symbol", "language_place")
        place = INSTEAD if self.args.lang_tok_replacing_bos_eos else BEFORE
        return dict(zip(names, (",".join(self.langs), style, *places, place)))

    def mark_options(self) -> Dict[str, Any]:
        options = {name: self.cfg[name] for name in MARK_OPTIONS}
        # A fixed dictionary has the symbols, whatever languages are listed; else they are added in the list's order
        return options if self.cfg.fixed_dictionary else {**options, "langs": ",".join(self.langs)}

    def check_trained_with(self, recorded: Mapping[str, Any]) -> None:
        super().check_trained_with(recorded)
        path = recorded.get("fixed_dictionary")
        if path and path != self.cfg.fixed_dictionary and os.path.isfile(path):
            theirs = self.load_dictionary(path).symbols
            if theirs != self.target_dictionary.symbols[: len(theirs)]:
                raise UserError(
                    f"the checkpoint was trained with --fixed-dictionary {path}, which has other symbols than the "
                    "dictionary here, or in another order: give the same"
                )

    # Data

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        if self.args.enable_lang_ids:
            raise UserError("--enable-lang-ids is for models that are told numbers of languages: leave it out")
        paths = split_paths(self.args.data)
        for source, target in self.pairs:
            names = [f"{split}.{pair}.{source}" for pair in (f"{source}-{target}", f"{target}-{source}")]
            if not any(indexed_dataset.dataset_exists(f"{path}/{name}", None) for path in paths for name in names):
                raise UserError(
                    f"there are no sentences of {source}-{target} for '{split}' in '{self.args.data}': leave the pair "
                    "out of --lang-pairs, or binarize its data"
                )
        if not self.cfg.kbest_dir:
            return super().load_dataset(split, epoch, combine, **kwargs)
        datasets, _ = self.data_manager.load_split_datasets(split, training=False)
        self.datasets[split] = PairsDataset(dict(zip(self.pairs, (dataset for _, dataset in datasets))))

    # Search

    def inference_step(
        self, generator: Any, models: List[Any], sample: Dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        if "pair" in sample:
            self.args.source_lang, self.args.target_lang = sample["pair"]
        return super().inference_step(generator, models, sample, *args, **kwargs)

    def build_generator(self, models: List[Any], args: Any, *more: Any, **kwargs: Any) -> Any:
        several = self.cfg.kbest_dir or self.cfg.eval_bleu  # whose batches say what they are of
        if self.args.target_lang is None and not several:
            raise UserError("no language to translate into: give --source-lang and --target-lang")
        return super().build_generator(models, args, *more, **kwargs)

    def validation_step(self, generator: Any, models: List[Any], sample: Dict[str, Any]) -> Any:
        """Search for a batch of any pairs, whose symbols are taken from what the model is given to learn."""
        given = sample["net_input"]["prev_output_tokens"]
        if not self.args.lang_tok_replacing_bos_eos:
            prefix = given[:, 1:2] if self.args.langtoks["main"][1] else None
            return super().inference_step(generator, models, sample, prefix)
        bos = given[:, 0].unique().tolist()
        if len(bos) > 1:
            raise UserError(
                "--eval-bleu scores one target language at a time where --lang-tok-replacing-bos-eos puts its symbol: "
                "leave it out, or give pairs of one"
            )
        return generator.generate(models, sample, bos_token=bos[0])
