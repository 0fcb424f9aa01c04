"""What does the oracle's beam search: fairseq, or another engine."""

from __future__ import annotations

import os
import random
import tempfile
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from fairseq_tg.corpus.blocks import Hypothesis
from fairseq_tg.errors import UserError
from fairseq_tg.loading.data_only import read_data_only_in
from fairseq_tg.models.base import ActorModel
from fairseq_tg.registry import Registry

#: Decodes a sample into a k-best list for each of its sentences, by models and with what the task asks of a generator
Search = Callable[..., List[List[Hypothesis]]]


@dataclass(frozen=True)
class Searched:
    """What an engine is told of the build that it searches for."""

    path: str  # the command's --path
    task: Any
    generation: Any  # the command's options of the search
    generator: Any  # fairseq's own, for these options
    sources: Any  # the data set's source sentences
    upcoming: Callable[[int], List[int]]  # those that are asked for together with a sentence, it among them
    following: Callable[[int], List[int]]  # and those that are asked for after them
    to_text: Callable[[Sequence[int]], str]
    pair: Callable[[int], Tuple[str, str]]  # a sentence's languages


#: Functions that make a search
ENGINES: Registry[Callable[[Searched], Search]] = Registry("engine", flag="--kbest-engine")
#: Those of them that know no actors
OF_BASES = ("ctranslate2",)


@ENGINES.register("fairseq")
def fairseq_search(searched: Searched) -> Search:
    """Beam search with fairseq's own generator."""
    return generator_search(searched.generator, searched.task, searched.to_text)


def generator_search(generator: Any, task: Any, to_text: Callable[[Sequence[int]], str]) -> Search:
    """Whatever a generator of fairseq's kind finds."""

    def search(models: List[Any], sample: Dict[str, Any], **asked: Any) -> List[List[Hypothesis]]:
        return [[hypothesis(h) for h in hypotheses] for hypotheses in generator.generate(models, sample, **asked)]

    def hypothesis(found: Dict[str, Any]) -> Hypothesis:
        tokens = task.strip(found["tokens"].tolist())
        log_prob = float(found["positional_scores"].sum())
        return Hypothesis(tokens, to_text(tokens), float(found["score"]), log_prob)

    return search


def seeded(search: Search, seed: int) -> Search:
    """A search that depends on chance, by the seed and the batch alone: batches are the same, however often a build is
    interrupted and in how many shards it is done."""

    def search_seeded(models: List[Any], sample: Dict[str, Any], **asked: Any) -> List[List[Hypothesis]]:
        torch.manual_seed(random.Random(f"{seed} {sample['id'].tolist()}").getrandbits(63))
        return search(models, sample, **asked)

    return search_seeded


PATIENCE = 2  # how many times the beam's hypotheses are looked for, to take from them those that fairseq would have
BATCH = 8  # sentences translated together; not a matter of --batch-size, so that threads do not change the result


def first_finished(hypotheses: List[Hypothesis], beam: int) -> List[Hypothesis]:
    """Of more than enough hypotheses, those with which fairseq's search would have ended, best first.

    fairseq ends with the first k that are finished: step by step, that is by length, and in a step by probability.
    CTranslate2 gives the k best of all that were finished in the same steps.
    """
    found = sorted(hypotheses, key=lambda h: (len(h.tokens), -h.log_prob))[:beam]
    return sorted(found, key=lambda h: -h.score)


def has_actors(models: Sequence[Any]) -> bool:
    return any(isinstance(model, ActorModel) for model in models)


def import_ctranslate2(flag: str) -> Any:
    try:
        import ctranslate2
    except ImportError:
        raise UserError(f"{flag} needs it: pip install 'fairseq_tg[fast]'") from None
    return ctranslate2


def convert_to_ctranslate2(path: str, task_config: Any, directory: str, quantization: Optional[str] = None) -> None:
    """Write an unmodified Transformer's checkpoint as a model of CTranslate2."""
    from ctranslate2.converters import fairseq as converters

    read_data_only_in(converters)
    try:
        converter = converters.FairseqConverter(
            path, task_config.data, task_config.source_lang, task_config.target_lang
        )
        converter.convert(directory, quantization=quantization, force=True)
    except Exception as error:
        raise UserError(f"CTranslate2 cannot convert '{path}': {error}; go on without it") from None


@ENGINES.register("ctranslate2")
def ctranslate2_search(searched: Searched) -> Search:
    """Beam search of an unmodified Transformer base with CTranslate2, float32, on torch's number of threads."""
    ctranslate2 = import_ctranslate2("--kbest-engine ctranslate2")
    path, generation, task = searched.path, searched.generation, searched.task
    unsupported = {"match_source_len": False, "unnormalized": False, "temperature": 1.0, "sampling": False}
    unsupported.update(prefix_size=0, diverse_beam_groups=-1, diversity_rate=-1.0, unkpen=0, max_len_a=0)
    for name, default in unsupported.items():
        if generation.get(name) != default:
            raise UserError(
                f"--kbest-engine ctranslate2 does not know --{name.replace('_', '-')}: use the engine fairseq"
            )
    if task.cfg.actor_weights or generation.lm_path:
        raise UserError("--kbest-engine ctranslate2 searches the base alone: leave out --actor-weights and --lm-path")
    if has_actors(task.built_models):
        raise UserError(f"--kbest-engine ctranslate2 does not know actors, which '{path}' has: use the engine native")
    if os.pathsep in path:
        raise UserError("--kbest-engine ctranslate2 does not know ensembles: use the engine fairseq")
    if task.marks:
        raise UserError("--kbest-engine ctranslate2 does not know this task's language symbols: use the engine fairseq")
    with tempfile.TemporaryDirectory() as directory:
        convert_to_ctranslate2(path, task.cfg, directory)
        # Workers of one thread each: with beams this wide, small batches side by side beat one batch on all threads
        threads = torch.get_num_threads()
        translator = ctranslate2.Translator(directory, inter_threads=threads, intra_threads=1, max_queued_batches=-1)
    source, target, sentences = task.source_dictionary, task.target_dictionary, searched.sources
    beam, lenpen = generation.beam, generation.lenpen
    under_way: Dict[int, Any] = {}

    def submit(ids: List[int]) -> None:
        words = [[source[token] for token in sentences[i].tolist() if token != source.eos()] for i in ids]
        results = translator.translate_batch(
            words,
            beam_size=beam,
            num_hypotheses=PATIENCE * beam,
            patience=PATIENCE,
            length_penalty=lenpen,
            max_decoding_length=generation.max_len_b,
            min_decoding_length=generation.min_len,
            no_repeat_ngram_size=generation.no_repeat_ngram_size,
            return_scores=True,
            max_batch_size=BATCH,
            asynchronous=True,
        )
        under_way.update(zip(ids, results))

    def search(models: List[Any], sample: Dict[str, Any], **asked: Any) -> List[List[Hypothesis]]:
        ids = sample["id"].tolist()
        # A whole block is submitted with its first batch: the engine works while the results before are being scored
        for i in ids:
            if i not in under_way:
                submit(searched.upcoming(i))
        return [k_best(under_way.pop(i).result()) for i in ids]

    def k_best(result: Any) -> List[Hypothesis]:
        found = []
        for symbols, score in zip(result.hypotheses, result.scores):
            # the score is the mean over the tokens and the end of sentence, to the power of the length penalty
            log_prob = score * (len(symbols) + 1) ** lenpen
            found.append(Hypothesis([target.index(symbol) for symbol in symbols], "", score, log_prob))
        found = first_finished(found, beam)
        for hypothesis in found:
            hypothesis.text = searched.to_text(hypothesis.tokens)
        return found

    return search
