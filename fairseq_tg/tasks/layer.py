"""What every tg task adds to its parent, a translation task of fairseq's: its options, and what it does with them."""

# Without `from __future__ import annotations`: fairseq wants the types of a config's fields, not their names.
import argparse
import os
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Callable, Dict, List, Optional

from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import BaseFairseqModel
from fairseq.utils import split_paths
from omegaconf import DictConfig, OmegaConf, open_dict

from fairseq_tg.corpus.directory import check_training_split
from fairseq_tg.corpus.engines import ENGINES
from fairseq_tg.corpus.run import CorpusRun, asks_for_greedy
from fairseq_tg.corpus.selection import SELECTIONS, get_selection
from fairseq_tg.corpus.sources import ChangingSources, asks_for_changes, source_changes
from fairseq_tg.criterions.cross_entropy import check_trains_actors_only, trains_actors
from fairseq_tg.decoding.fast_search import FastGenerator, is_plain
from fairseq_tg.decoding.options import check_search
from fairseq_tg.errors import UserError
from fairseq_tg.loading.changes import tell_at_the_end
from fairseq_tg.loading.one_copy import WithoutWeights
from fairseq_tg.models.actor_files import build_from_actor_file
from fairseq_tg.models.base import ActorModel
from fairseq_tg.models.kinds import refuse_kinds
from fairseq_tg.objectives import OBJECTIVES
from fairseq_tg.tasks.damage import naming_damage
from fairseq_tg.tasks.lists import ListOptions, ListTask
from fairseq_tg.tasks.marks import recorded_task
from fairseq_tg.tasks.sizes import leave_out_too_long, naming_memory, naming_sizes
from fairseq_tg.tasks.validation import Scoring, log_bleu
from fairseq_tg.tokenizers import FLAG, HELP, find_tokenizer, load_tokenizer


@dataclass
class TGTaskOptions(ListOptions):
    """The options of the layer; comes before the parent's config."""

    actor_weights: Optional[str] = field(
        default=None,
        metadata={
            "help": "actor file (fairseq-tg actor export) to put on the base given with --path; for an ensemble, one "
            f"for each base, separated by '{os.pathsep}'"
        },
    )
    no_fast_search: bool = field(
        default=False,
        metadata={
            "help": "search as fairseq does, instead of with the native engine or the fast greedy path",
            "argparse_alias": "--no-fast-greedy",
        },
    )
    sacrebleu_tokenizer: Optional[str] = field(
        default=None, metadata={"help": f"in objectives and --eval-bleu, {HELP}"}
    )
    source_sampling: Optional[float] = field(
        default=None,
        metadata={
            "help": "sample the segmentation of every source sentence with SentencePiece (--bpe sentencepiece "
            "--sentencepiece-model FILE): of training data anew in every epoch, of a corpus (--kbest-dir) once. The "
            "number is the power of a segmentation's probability, 0.1 to 0.5; less changes more"
        },
    )
    source_splitting: float = field(
        default=0.0,
        metadata={
            "help": "split subwords of the source into smaller ones of its dictionary, in half of the sentences, with "
            "this probability in the mean (0.1): when, as for --source-sampling; needs no subword model"
        },
    )
    source_noise: float = field(
        default=0.0,
        metadata={
            "help": "leave out each word of a source sentence with this probability, and swap it with the next with "
            "the same: when, as for --source-sampling"
        },
    )
    kbest_dir: Optional[str] = field(
        default=None, metadata={"help": "build an oracle k-best corpus in this directory, with k = --beam"}
    )
    objective: str = field(
        default="sbleu",
        metadata={"help": f"what a hypothesis is chosen by: {', '.join(OBJECTIVES.names())}, or pkg.module:function"},
    )
    selection: str = field(
        default="top1",
        metadata={"help": f"what is chosen from a k-best list: {', '.join(SELECTIONS.names())} (topn:N)"},
    )
    kbest_jsonl: bool = field(
        default=False, metadata={"help": "also keep every hypothesis with its scores, in kbest.jsonl.gz"}
    )
    kbest_from: Optional[str] = field(
        default=None,
        metadata={"help": "take the k-best lists from this corpus (built with --kbest-jsonl) instead of decoding"},
    )
    kbest_greedy: bool = field(
        default=False,
        metadata={"help": "also keep the model's greedy translations, with which a later --kbest-refresh compares"},
    )
    kbest_refresh: Optional[str] = field(
        default=None,
        metadata={
            "help": "take the k-best lists from this corpus, which an earlier model made (--kbest-jsonl "
            "--kbest-greedy), and search again where this model's greedy translation is another"
        },
    )
    kbest_shard: Optional[str] = field(
        default=None,
        metadata={"help": "build shard I of N, as I/N from 0/N on (default: from Slurm's array variables, or 0/1)"},
    )
    kbest_block: int = field(default=500, metadata={"help": "sentences that are committed to disk together"})
    kbest_engine: Optional[str] = field(
        default=None,
        metadata={
            "help": f"what does the beam search: {', '.join(ENGINES.names())} (default: native on a CPU, where it "
            "knows the model and the options, else fairseq)"
        },
    )


def without_typed_padding(sample: Dict[str, Any], pad: int) -> Dict[str, Any]:
    """A batch with padding at one edge only, and no more than it needs.

    All else someone typed, which is no word: fairseq's LSTM breaks off there, and its convolutions see a gap.
    """
    source = sample["net_input"]["src_tokens"]  # B x S
    words = source.ne(pad)
    left = bool(words[:, -1].all())
    order = (words if left else ~words).int().argsort(dim=1, stable=True)
    longest = int(words.sum(dim=1).max())
    moved = source.gather(1, order[:, -longest:] if left else order[:, :longest])
    return {**sample, "net_input": {**sample["net_input"], "src_tokens": moved}}


class TGTask(ListTask):
    """The layer: translation with a model and actors, where no sentence is lost; comes before the parent task."""

    keeps_base_record = True  # see `build_model`; a tg model is not built for a task that does not

    @classmethod
    def add_args(cls, parser: Any) -> None:
        gen_parser_from_dataclass(parser, getattr(cls, "__dataclass")())
        # An option of this name comes with --scoring sacrebleu, too, which takes its own default where there is none
        (option,) = (action for action in parser._actions if FLAG in action.option_strings)
        option.default = argparse.SUPPRESS

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        if (cfg.source_lang is None) != (cfg.target_lang is None):  # fairseq would replace both by what it finds
            raise UserError("one of --source-lang and --target-lang is missing: give both, or neither")
        try:
            with naming_damage(cfg.data):
                return super().setup_task(cfg, **kwargs)
        except FileNotFoundError as error:
            raise UserError(
                f"there is no '{error.filename}': give languages whose dictionaries are in '{cfg.data}', or files that "
                "are there"
            ) from None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._corpus_run: Optional[CorpusRun] = None
        self.built_models: List[BaseFairseqModel] = []  # by this task, in their order
        self._lines = 0  # that fairseq-interactive has read
        tell_at_the_end()

    @property
    def _actor_files(self) -> List[str]:
        return self.cfg.actor_weights.split(os.pathsep) if self.cfg.actor_weights else []

    @property
    def _command(self) -> DictConfig:
        """All options of the command, of which a task is given its own."""
        return self.cfg._get_root()

    def count_words_by(self, language: str, text: Callable[[int], str], sentences: int) -> str:
        """The tokenizer that words of a target are counted by: what is asked for, else see `find_tokenizer`."""
        tokenizer = self.cfg.sacrebleu_tokenizer or find_tokenizer(language, text, sentences)
        load_tokenizer(tokenizer)
        return tokenizer

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        if split == self.cfg.train_subset and not self.cfg.kbest_dir and not self.cfg.kbest_lists:
            paths = split_paths(self.cfg.data)
            check_training_split(paths[(epoch - 1) % len(paths)], self.pairs)
        try:
            with naming_damage(self.cfg.data):
                super().load_dataset(split, epoch, combine, **kwargs)
        except FileNotFoundError as error:
            if "Dataset not found" not in str(error):
                raise
            raise UserError(f"there is no split '{split}' in '{self.cfg.data}': give one that is there") from None
        if asks_for_changes(self.cfg) and not self.cfg.kbest_dir:
            self._change_sources(split)

    def _change_sources(self, split: str) -> None:
        """Have the sources of training data changed in every epoch."""
        if self._command.common_eval.path is not None:
            raise UserError(
                "--source-sampling, --source-splitting and --source-noise are for training and --kbest-dir: "
                "leave them out"
            )
        if split == self.cfg.train_subset:
            changes = source_changes(self, self._command)
            self.datasets[split] = ChangingSources(self.datasets[split], changes)

    def get_batch_iterator(self, dataset: Any, *args: Any, epoch: int = 1, **kwargs: Any) -> EpochBatchIterator:
        # With a multiple (8 by default), fairseq drops the last batch of a data set that is no multiple of it: up to 7
        # sentences are not trained on, and of a test set not translated, without a word.
        kwargs["required_batch_size_multiple"] = 1
        if not kwargs.get("num_workers"):
            # Without processes for it, fairseq makes batches ahead in a thread. A training that ends within an epoch
            # leaves it at work, and a thread that is inside torch when the process ends aborts that.
            kwargs["data_buffer_size"] = 0
        if self.cfg.kbest_dir:
            self._corpus_run = CorpusRun(self, self._command)
            wanted = ("max_positions", "max_tokens", "max_sentences")
            batches = self._corpus_run.iterator(dataset, **{name: kwargs.get(name) for name in wanted})
            if batches is None:
                # Given no batches, fairseq-generate divides by the time that they took; and it has no other way out
                raise SystemExit(0)
            return batches
        shard = 0
        if kwargs.get("num_shards", 1) == 1 and self._command.dataset.num_shards > 1:
            # fairseq-generate takes these flags and leaves them unused: every "shard" would be everything
            shards, shard = self._command.dataset.num_shards, self._command.dataset.shard_id
            if not 0 <= shard < shards:
                raise UserError(f"--shard-id {shard} of {shards} shards: give one from 0 to {shards - 1}")
            kwargs.update(num_shards=shards, shard_id=shard)
        if isinstance(dataset, ChangingSources):
            dataset.changes.limit(kwargs.get("max_positions"))
        if self._is_read_by_interactive(dataset, kwargs):
            self._lines += len(dataset)
            limits = kwargs.get("max_positions"), kwargs.get("max_tokens")
            dataset = leave_out_too_long(dataset, self._lines - len(dataset), *limits)
        known = dataset in self.dataset_to_epoch_iter
        # fairseq makes a data set's batches once, from the seed and the epoch in which it was started: a training that
        # was interrupted would go on with other batches. They are made as for epoch 1, whenever that is.
        with naming_sizes():
            iterator = super().get_batch_iterator(dataset, *args, epoch=1, **kwargs)
        batches = len(iterator.frozen_batches)
        if shard >= batches > 0:
            # fairseq-generate divides by what it has translated
            raise UserError(
                f"shard {shard} has nothing to do: there {'is 1 batch' if batches == 1 else f'are {batches} batches'}; "
                "give fewer --num-shards, or smaller batches"
            )
        if not known:
            dataset.set_epoch(epoch)
            iterator.epoch = max(epoch, 1)
        return iterator

    def _is_read_by_interactive(self, dataset: Any, asked: Dict[str, Any]) -> bool:
        """Whether these sentences are lines that fairseq-interactive has read, and may be fewer when they come back.

        The hub's, which asks for its iterators anew, are results that go by their places.
        """
        hubs = asked.get("disable_iterator_cache") or asked.get("ignore_invalid_inputs")
        return not hubs and all(dataset is not known for known in self.datasets.values())

    def build_generator(self, models: List[Any], args: Any, *more: Any, **kwargs: Any) -> Any:
        check_search(args, len(self.target_dictionary))
        files = len(self._actor_files)
        if files not in (0, 1, len(models)):
            raise UserError(f"{files} files in --actor-weights for {len(models)} models: give one, or one for each")
        fast = self._corpus_run is None and not self.cfg.no_fast_search and not more
        if fast and is_plain(models, args, **kwargs):
            kwargs["seq_gen_cls"] = FastGenerator
        generator = super().build_generator(models, args, *more, **kwargs)
        if self._corpus_run is None:
            return generator
        with open_dict(args):
            plain = {"beam": 1, "nbest": 1, "diverse_beam_groups": -1, "diversity_rate": -1.0}
            greedy_args = OmegaConf.merge(args, plain)
        if not self.cfg.no_fast_search and not more and is_plain(models, greedy_args, **kwargs):
            kwargs["seq_gen_cls"] = FastGenerator
        return self._corpus_run.generator(generator, super().build_generator(models, greedy_args, *more, **kwargs))

    def inference_step(
        self, generator: Any, models: List[Any], sample: Dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        sample = without_typed_padding(sample, self.source_dictionary.pad())
        with naming_memory(len(sample["net_input"]["src_tokens"])):
            return super().inference_step(generator, models, sample, *args, **kwargs)

    @cached_property
    def scoring(self) -> Scoring:
        """How validations score."""
        return Scoring(self)

    def validation_step(self, generator: Any, models: List[Any], sample: Dict[str, Any]) -> Any:
        """Search for a batch of validation data."""
        return self.inference_step(generator, models, sample)

    def _inference_with_bleu(self, generator: Any, sample: Dict[str, Any], model: Any) -> Any:
        return self.scoring.score(generator, sample, model)

    def reduce_metrics(self, logging_outputs: List[Any], criterion: Any) -> None:
        log_bleu(logging_outputs)
        super().reduce_metrics(logging_outputs, criterion)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> BaseFairseqModel:
        model = self._build_model(cfg, from_checkpoint)
        if not from_checkpoint and self.cfg.eval_bleu:
            self.scoring.check()
        criterion = None if from_checkpoint else self._command.get("criterion")
        if criterion is not None and trains_actors(criterion._name):
            check_trains_actors_only(model)  # now: in its first update, fairseq would leave a crash.pt
            if self._command.ema.store_ema:  # which averages the base, too, and rounds it anew
                raise UserError("--store-ema is not for actors: fairseq-tg actor average gives the mean of checkpoints")
        self.built_models.append(model)
        return model

    def _build_model(self, cfg: Any, from_checkpoint: bool) -> BaseFairseqModel:
        if self.cfg.kbest_dir and (asks_for_greedy(self.cfg) or get_selection(self.cfg.selection).needs_greedy):
            self._command.generation.no_beamable_mm = True  # made for one beam size, and greedy is another
        if from_checkpoint:
            refuse_kinds(cfg)
            self.check_trained_with(recorded_task(cfg))
        files = self._actor_files
        if files and not from_checkpoint:
            raise UserError("--actor-weights is for translating: to train on from actors, use --finetune-from-model")
        if files:
            # fairseq builds the models of an ensemble in the order of --path
            path = files[min(len(self.built_models), len(files) - 1)]
            return build_from_actor_file(path, cfg, self)
        with WithoutWeights() if from_checkpoint else nullcontext():
            model = super().build_model(cfg, from_checkpoint)
        if isinstance(model, ActorModel):
            # So that the checkpoints of this run rebuild without the base's: the trainer saves this config.
            with open_dict(cfg):
                cfg.base_record = model.base.to_json()
        return model
