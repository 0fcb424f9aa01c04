"""A run of fairseq-generate that builds a corpus: from its flags to the batches and the generator that it uses."""

from __future__ import annotations

import functools
import gc
import os
import shlex
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from fairseq import utils
from fairseq.data import encoders
from fairseq.data.iterators import EpochBatchIterator
from omegaconf import DictConfig, OmegaConf

from fairseq_tg.corpus.build import Build, describe, parse_shard
from fairseq_tg.corpus.directory import KBEST, CorpusDirectory, hash_data, hash_file, record_pairs, with_contents
from fairseq_tg.corpus.engines import ENGINES, OF_BASES, Searched, generator_search, has_actors, seeded
from fairseq_tg.corpus.native_engine import default_engine
from fairseq_tg.corpus.oracle import OracleGenerator
from fairseq_tg.corpus.pairs import Pair, PairsDataset
from fairseq_tg.corpus.scoring import score_words
from fairseq_tg.corpus.selection import get_selection
from fairseq_tg.corpus.sources import ChangedSources, asks_for_changes, source_changes
from fairseq_tg.decoding.options import check_search
from fairseq_tg.errors import UserError
from fairseq_tg.loading.checkpoints import fingerprint, load_checkpoint, split_tensors
from fairseq_tg.loading.splits import indexable
from fairseq_tg.objectives import Objective, get_objective
from fairseq_tg.text import Words

#: Options of fairseq's generation that change what a search finds.
SEARCH_OPTIONS = (
    *("lenpen", "unkpen", "max_len_a", "max_len_b", "min_len", "match_source_len", "unnormalized", "temperature"),
    *(
        "no_repeat_ngram_size",
        "diverse_beam_groups",
        "diverse_beam_strength",
        "diversity_rate",
        "lm_weight",
    ),
)
#: Options under which the same sentence is not translated the same way twice, or not without its neighbours.
REFUSED_OPTIONS = {"sampling": False, "prefix_size": 0, "constraints": None}
#: Of sources and targets, which leave out what is longer
USUAL_LIMITS = [1024, 1024]
SHARD_FLAGS = ("--kbest-shard", "--num-shards", "--shard-id")


def asks_for_greedy(options: Any) -> bool:
    """Whether a task's options ask for greedy translations beside the lists."""
    return options.kbest_greedy or options.kbest_refresh is not None


class CorpusRun:
    """What `tg_translation` does with --kbest-dir.

    Args:
        task: the task, whose options say what to build.
        root: all options of the command, to which those of the search and the batches belong.
    """

    def __init__(self, task: Any, root: DictConfig) -> None:
        self.task = task
        self.cfg = task.cfg
        self.root = root
        self._check_options()
        self.objectives: List[Objective] = []  # of each pair of languages
        self.selection = get_selection(self.cfg.selection)
        self.shard = self._shard()
        self.engine = self.cfg.kbest_engine or self._find_engine()
        self.build: Optional[Build] = None
        self.changes = source_changes(task, root) if asks_for_changes(self.cfg) else None
        bpe = encoders.build_bpe(root.bpe) if root.bpe else None
        tokenizer = encoders.build_tokenizer(root.tokenizer) if root.tokenizer else None
        self.to_text = Words(task.target_dictionary, bpe, tokenizer, root.common_eval.post_process, task.marks)
        self.subwords = self.to_text.subwords

    def _check_options(self) -> None:
        if self.root.common_eval.path is None:
            raise UserError("--kbest-dir builds a corpus with fairseq-generate: leave it out of other commands")
        for name, default in REFUSED_OPTIONS.items():
            if self.root.generation.get(name) != default:
                raise UserError(f"--{name.replace('_', '-')} does not go with --kbest-dir: leave it out")
        if self.cfg.get("truncate_source"):
            raise UserError(
                "--truncate-source would pair whole sources with translations of their beginnings: leave it out, and "
                "what is too long is listed as skipped"
            )
        if len(utils.split_paths(self.cfg.data)) > 1:
            raise UserError(f"a corpus is built from one data directory: '{self.cfg.data}' are several")
        for source, target in self.task.pairs:
            if source == target:
                raise UserError(f"a corpus of {source}-{target} has one file for both sides: give two languages")
        check_search(self.root.generation, len(self.task.target_dictionary))
        if self.cfg.kbest_from and self.cfg.kbest_refresh:
            raise UserError("give --kbest-from or --kbest-refresh, not both")
        if self.cfg.kbest_block < 1:
            raise UserError(f"--kbest-block {self.cfg.kbest_block}: give the number of sentences to commit together")
        if self.cfg.kbest_engine is not None:
            ENGINES[self.cfg.kbest_engine]  # refuse an unknown name now
        if self.root.generation.retain_dropout and self.cfg.kbest_engine not in (None, "fairseq"):
            raise UserError(f"--retain-dropout does not go with --kbest-engine {self.cfg.kbest_engine}: use fairseq")

    def _shard(self) -> Tuple[int, int]:
        own, fairseqs = parse_shard(self.cfg.kbest_shard), (self.root.dataset.shard_id, self.root.dataset.num_shards)
        if fairseqs[1] == 1:
            return own
        if own[1] > 1:
            raise UserError("give --kbest-shard I/N or --num-shards and --shard-id, not both")
        return parse_shard(f"{fairseqs[0]}/{fairseqs[1]}")

    def _find_engine(self) -> str:
        """Where none is asked for: that of the build that is gone on with, or of the lists that are used again."""
        for path in (self.cfg.kbest_dir, self.cfg.kbest_from):
            manifest = CorpusDirectory(path).manifest if path else None
            engine = manifest["recipe"].get("engine") if manifest is not None else None
            if engine in ENGINES.names() and not (engine in OF_BASES and has_actors(self.task.built_models)):
                return engine
        common = self.root.common
        on_cpu = (common.cpu or not torch.cuda.is_available()) and not common.fp16
        return default_engine(self.task.built_models, self.root.generation, on_cpu)

    # The recipe: everything that the corpus depends on

    def recipe(self, dataset: Any) -> Dict[str, Any]:
        generation, data = self.root.generation, self.root.dataset
        paths = utils.split_paths(self.root.common_eval.path)
        actors = utils.split_paths(self.cfg.actor_weights) if self.cfg.actor_weights else []
        language_models = [generation.lm_path] if generation.lm_path else []
        pairs = self._pairs(dataset)
        marks = self.task.mark_options()
        limits = [self.cfg.max_source_positions, self.cfg.max_target_positions]
        return {
            "base": [self._fingerprints(path)[0] for path in (*paths, *language_models)],
            "actors": [hash_file(Path(path)) for path in actors],
            "model_overrides": self.root.common_eval.model_overrides,
            "fp16": self.root.common.fp16,
            "data_hash": hash_data(Path(self.cfg.data), data.gen_subset, pairs),
            "subset": data.gen_subset,
            **record_pairs(pairs),
            **({"marks": marks} if marks else {}),
            "beam": generation.beam,
            "search": {name: generation.get(name) for name in SEARCH_OPTIONS},
            "engine": self.engine,
            "batches": {"max_tokens": data.max_tokens, "batch_size": data.batch_size},
            "block_size": self.cfg.kbest_block,
            "objective": self.cfg.objective,
            "signature": self._signature(pairs),
            "selection": self.selection.name,
            "text": {
                "subwords": self.subwords,
                "bpe": _with_files(self.root.bpe),
                "tokenizer": _with_files(self.root.tokenizer),
            },
            "keep_kbest": self.cfg.kbest_jsonl,
            # None, as in manifests of before there were these
            "source": None if self.changes is None else self.changes.record,
            "dropout": self._dropout(),
            "greedy": True if asks_for_greedy(self.cfg) else None,
            "refreshes": self._refreshed_lists(),
            "limits": None if limits == USUAL_LIMITS else limits,
        }

    def _pairs(self, dataset: Any) -> List[Pair]:
        if isinstance(dataset, PairsDataset):
            return dataset.pairs
        return [Pair(self.cfg.source_lang, self.cfg.target_lang, len(dataset))]

    def _count_words(self, dataset: Any) -> None:
        """Find out how the words of every pair's targets are counted, and score by that."""
        tokenizers, first, targets = [], 0, indexable(dataset.tgt)
        for pair in self._pairs(dataset):

            def text(index: int, first: int = first) -> str:
                return self.to_text(targets[first + index].tolist(), True)

            sentences = 0 if targets is None else pair.sentences
            tokenizers.append(self.task.count_words_by(pair.target, text, sentences))
            first += pair.sentences
        self.objectives = [get_objective(self.cfg.objective, tokenizer) for tokenizer in tokenizers]
        score_words(self.root, self.subwords, tokenizers[0] if len(set(tokenizers)) == 1 else None)

    def _signature(self, pairs: List[Pair]) -> str:
        """The objective's, which tells its scores from any others; of each pair where they differ."""
        found = [objective.signature for objective in self.objectives]
        return found[0] if len(set(found)) == 1 else "; ".join(f"{pair} {one}" for pair, one in zip(pairs, found))

    def _objective(self, dataset: Any, sentence: int) -> Objective:
        return self.objectives[dataset.pair_of(sentence) if isinstance(dataset, PairsDataset) else 0]

    def _pair(self, dataset: Any, sentence: int) -> Tuple[str, str]:
        if isinstance(dataset, PairsDataset):
            return dataset.languages[dataset.pair_of(sentence)]
        return self.cfg.source_lang, self.cfg.target_lang

    def _refreshed_lists(self) -> Optional[str]:
        """The hash of the lists that are refreshed."""
        if not self.cfg.kbest_refresh:
            return None
        manifest = CorpusDirectory(self.cfg.kbest_refresh).manifest or {}
        return manifest.get("files", {}).get(KBEST)

    def _dropout(self) -> Optional[Dict[str, Any]]:
        """The base's dropout at search time, if it is on."""
        generation = self.root.generation
        if not generation.retain_dropout:
            return None
        return {"modules": _plain(generation.retain_dropout_modules), "seed": self.root.common.seed}

    def _bases(self) -> List[str]:
        """What actors are trained on that learn from the lists: the models, or the bases of tg models."""
        paths = utils.split_paths(self.root.common_eval.path)
        return [self._fingerprints(path)[1] for path in paths]

    @functools.cache  # noqa: B019 (there is one run in a process)
    def _fingerprints(self, path: str) -> Tuple[str, str]:
        """Of a model, and of its base if it has actors."""
        tensors = load_checkpoint(path)["model"]
        whole, (base, actors) = fingerprint(tensors), split_tensors(tensors)
        return whole, fingerprint(base) if actors else whole

    # What fairseq-generate asks the task for

    def iterator(
        self, dataset: Any, max_positions: Any, max_tokens: Any, max_sentences: Any
    ) -> Optional[EpochBatchIterator]:
        """The batches of this shard; None if there is nothing left to do."""
        self._check_dataset(dataset)
        self._count_words(dataset)
        recipe = self.recipe(dataset)
        directory = CorpusDirectory(self.cfg.kbest_dir)
        origin = {"command": command_line(sys.argv), "data": os.path.abspath(self.cfg.data), "bases": self._bases()}
        directory.begin(recipe, origin)
        directory.lock(*self.shard)
        if directory.complete:
            directory.check_files()
            directory.clear()
            manifest = directory.manifest
            assert manifest is not None
            print(describe(directory.path, manifest))
            return None
        self.build = Build(directory, recipe, self.shard)
        if self.cfg.kbest_from or self.cfg.kbest_refresh:
            self.build.reuse(self.cfg.kbest_from or self.cfg.kbest_refresh, refreshes=not self.cfg.kbest_from)
        skip = find_unusable(dataset, max_positions, max_tokens, self.selection.needs_reference, self.task.empty_sizes)
        if self.changes is not None:
            self.changes.limit(max_positions)
            dataset.src = ChangedSources(dataset.src, self.changes)

        def make_batches(ids: List[int]) -> Sequence:
            return dataset.batch_by_size(
                np.array(ids), max_tokens=max_tokens, max_sentences=max_sentences, required_batch_size_multiple=1
            )

        batches = self.build.plan(dataset.src_sizes, skip, make_batches)
        if not batches:
            self.build.finish()
            return None
        self.root.common.log_format = "none"  # the build has a bar of its own
        return EpochBatchIterator(
            dataset=dataset,
            collate_fn=dataset.collater,
            batch_sampler=batches,
            num_workers=0,  # a worker of a process that was killed would live on for a while, and hold its lock
        )

    def _check_dataset(self, dataset: Any) -> None:
        subset = self.root.dataset.gen_subset
        if dataset is not self.task.datasets.get(subset):
            raise UserError("--kbest-dir builds a corpus with fairseq-generate: leave it out of other commands")
        if self.cfg.get("dataset_impl") == "raw":
            raise UserError(
                "--dataset-impl raw: a corpus is built from binarized data; run fairseq-preprocess without it"
            )
        if self.selection.needs_reference and dataset.tgt is None:
            side = " or ".join(sorted({target for _, target in self.task.pairs}))
            raise UserError(
                f"'{self.cfg.data}' has no {side} side of {subset}: --selection {self.selection.name} "
                "compares with a reference; without one, use --selection mbr"
            )

    def generator(self, search_generator: Any, greedy_generator: Any) -> OracleGenerator:
        """The oracle around the search of --kbest-engine."""
        assert self.build is not None
        gc.freeze()  # fairseq and torch are a million objects, which need not be looked through for every few lists
        dataset = self.task.dataset(self.root.dataset.gen_subset)
        searched = Searched(
            path=self.root.common_eval.path,
            task=self.task,
            generation=self.root.generation,
            generator=search_generator,
            sources=dataset.src,
            upcoming=self.build.left_in_block,
            following=self.build.next_block,
            to_text=self.to_text,
            pair=functools.partial(self._pair, dataset),
        )
        search = ENGINES[self.engine](searched)
        greedy = generator_search(greedy_generator, self.task, self.to_text)
        if self.root.generation.retain_dropout:
            search, greedy = (seeded(each, self.root.common.seed) for each in (search, greedy))
        return OracleGenerator(
            self.build,
            search,
            greedy,
            functools.partial(self._objective, dataset),
            self.selection,
            self.to_text,
            self.task,
            keeps_sources=self.changes is not None,
            keeps_greedy=asks_for_greedy(self.cfg),
        )


def _plain(config: Any) -> Any:
    return OmegaConf.to_container(config) if OmegaConf.is_config(config) else config


def _with_files(config: Any) -> Any:
    """Options, and the contents of the files that they name, which may have another place the next time."""
    plain = _plain(config)
    return with_contents(plain) if isinstance(plain, dict) else plain


def command_line(argv: List[str]) -> str:
    """The command, without what differs between the shards of a build."""
    words, skip = [os.path.basename(argv[0])], False
    for word in argv[1:]:
        if not skip and word.partition("=")[0] not in SHARD_FLAGS:
            words.append(word)
        skip = word in SHARD_FLAGS
    return shlex.join(words)


def find_unusable(
    dataset: Any, max_positions: Any, max_tokens: Any, needs_reference: bool, empty: Tuple[int, int] = (1, 1)
) -> Dict[int, str]:
    """The sentences that cannot be translated or scored, with the reason.

    empty: how many symbols there are of a source and of a target without words: the end of sentence, at least.
    """
    limits = max_positions if isinstance(max_positions, (tuple, list)) else (max_positions, max_positions)
    most = max_tokens or float("inf")  # a batch has room for a sentence, both sides of it
    reasons: Dict[int, str] = {}
    sides = [("source", dataset.src_sizes, min(limits[0], most), empty[0])]
    if dataset.tgt is not None:
        sides.append(("target", dataset.tgt_sizes, min(limits[1], most) if needs_reference else most, empty[1]))
    for side, sizes, limit, least in sides:
        for i in np.flatnonzero(np.asarray(sizes) <= least):
            if side == "target" and not needs_reference:
                continue
            reasons.setdefault(int(i), f"empty {side}: there are no words")
        for i in np.flatnonzero(np.asarray(sizes) > limit):
            reasons.setdefault(int(i), f"too long {side}: {int(sizes[i])} tokens, {int(limit)} allowed")
    return reasons
