"""The oracle's beam search by the native engine: the default where that knows the model and the options."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch

from fairseq_tg.compiled.engine import Engine, Found, SearchSettings
from fairseq_tg.compiled.extract import extract_lazily, make_engine, unsupported
from fairseq_tg.compiled.layout import Layout
from fairseq_tg.compiled.library import EngineError, described
from fairseq_tg.compiled.quantize import quantize
from fairseq_tg.corpus.blocks import Hypothesis
from fairseq_tg.corpus.engines import ENGINES, Search, Searched
from fairseq_tg.errors import UserError, leave_when_failing
from fairseq_tg.loading.one_copy import is_float_on_cpu

#: Rows that are searched together, a hypothesis each: enough to use every weight well that was read from memory.
ROWS = 280
#: What may be kept of them, in bytes for each thread, so that no batch of long sentences exhausts the memory.
CACHE = 5 * 2**25
#: The same beside weights of a gigabyte and more, of which these leave little: 5% slower for 414 million parameters.
LARGE, CACHE_OF_LARGE = 2**30, 2**25
#: Options of fairseq's generation that the engine does not know, and their defaults.
UNKNOWN_OPTIONS = {
    "match_source_len": False,
    "temperature": 1.0,
    "no_repeat_ngram_size": 0,
    "diverse_beam_groups": -1,
    "diversity_rate": -1.0,
    "lm_path": None,
    "retain_dropout": False,
}


def why_not(models: Sequence[Any], generation: Any) -> Optional[str]:
    """Why the native engine cannot search with these models and options; None if it can."""
    for name, default in UNKNOWN_OPTIONS.items():
        if generation.get(name, default) != default:
            return f"it does not know --{name.replace('_', '-')}"
    if len(models) != 1:
        return "it does not know ensembles"
    problem = unsupported(models[0])
    return None if problem is None else f"it does not know {problem}"


def default_engine(models: Sequence[Any], generation: Any, on_cpu: bool) -> str:
    """The engine where none is asked for."""
    built = "not built" not in described()
    return "native" if on_cpu and built and why_not(models, generation) is None else "fairseq"


def plan_batches(lengths: Sequence[int], limits: Sequence[int], beam: int, layout: Layout) -> List[range]:
    """Batches of neighbours, which depend on nothing but the sentences: neither on threads nor on memory that is free.

    A translation is taken to be at most twice as long as its source, or as its limit. A word of the source leaves as
    much behind as a step of a translation.
    """
    weights = 4 * sum(rows * columns for rows, columns, _ in layout.matrices().values())
    room = CACHE if weights < LARGE else CACHE_OF_LARGE
    batches, first = [], 0
    while first < len(lengths):
        end, longest, source = first, 0, 0
        while end < len(lengths):
            longest, source = max(longest, min(2 * lengths[end] + 10, limits[end] + 1)), max(source, lengths[end])
            sentences = end + 1 - first
            rows = sentences * beam
            cached = (rows * longest + sentences * source) * layout.cached_per_step()
            if end > first and (rows > ROWS or 4 * (cached + rows * layout.vocabulary) > room):
                break
            end += 1
        batches.append(range(first, end))
        first = end
    return batches


@ENGINES.register("native")
def native_search(searched: Searched) -> Search:
    """Beam search by the native engine, a batch on each of torch's threads."""
    return _search(searched, int8=False)


@ENGINES.register("native_int8")
def native_int8_search(searched: Searched) -> Search:
    """The same with weights of 8 bits: faster, and not quite the same lists."""
    return _search(searched, int8=True)


def _search(searched: Searched, int8: bool) -> Search:
    generation, task = searched.generation, searched.task
    settings = SearchSettings(
        beam=generation.beam,
        min_length=generation.min_len,
        unk_penalty=generation.unkpen,
        length_penalty=generation.lenpen,
        normalize=not generation.unnormalized,
    )
    pool = ThreadPoolExecutor(torch.get_num_threads())
    leave_when_failing(partial(pool.shutdown, wait=False, cancel_futures=True))  # else it would search to the end
    torch.set_num_threads(1)  # greedy translations are made beside these, which have the cores already
    engines: List[Engine] = []
    under_way: Dict[int, Tuple[Future, int]] = {}  # a batch's results, and the sentence's place in it

    def engine_of(models: List[Any]) -> Engine:
        if not engines:
            reason = why_not(models, generation)
            if reason is None and not is_float_on_cpu(models[0]):
                reason = "it searches on a CPU, in float32"
            if reason is not None:
                raise UserError(f"--kbest-engine native cannot search for this: {reason}; use the engine fairseq")
            try:
                engines.append(_rounded_engine(models[0]) if int8 else make_engine(models[0]))
            except EngineError as error:
                raise UserError(f"{error}; or use --kbest-engine fairseq") from None
        return engines[0]

    def source(engine: Engine, sentence: int) -> List[int]:
        # Someone may have typed a symbol for padding, which is no word
        tokens = [token for token in searched.sources[sentence].tolist() if token != engine.layout.pad]
        end = task.source_end(*searched.pair(sentence))
        return tokens if end == engine.layout.eos else [*tokens[:-1], end]

    def submit(engine: Engine, ids: List[int]) -> None:
        """Some sentences, those together whose translations begin and end with the same symbols."""
        together: Dict[Tuple[int, int], List[int]] = {}
        for i in ids:
            frame = task.frame(searched.pair(i)[1])
            together.setdefault((frame.first, frame.end), []).append(i)
        for (first, end), some in together.items():
            submit_together(engine, some, replace(settings, first=first, end=end))

    def submit_together(engine: Engine, ids: List[int], settings: SearchSettings) -> None:
        most = engine.layout.target_positions - 1
        sources = [source(engine, i) for i in ids]
        limits = [min(int(generation.max_len_a * len(source) + generation.max_len_b), most) for source in sources]
        if settings.min_length > min(limits):
            raise UserError(
                f"--min-len {settings.min_length} is over the limit of {min(limits)}: see --max-len-a and --max-len-b"
            )
        prefixes = np.array([task.frame(searched.pair(i)[1]).prefix for i in ids], dtype=np.int32)
        for batch in plan_batches([len(source) for source in sources], limits, settings.beam, engine.layout):
            results = pool.submit(
                engine.search,
                [sources[i] for i in batch],
                [limits[i] for i in batch],
                settings,
                threads=1,
                prefixes=prefixes[batch] if prefixes.size else None,
            )
            under_way.update({ids[i]: (results, place) for place, i in enumerate(batch)})

    def search(models: List[Any], sample: Dict[str, Any], **asked: Any) -> List[List[Hypothesis]]:
        engine = engine_of(models)
        ids = sample["id"].tolist()
        # The engine is always a block ahead: it works while the results before are being scored
        for i in ids:
            if i not in under_way:
                submit(engine, searched.upcoming(i))
                following = searched.following(i)
                if following and following[0] not in under_way:
                    submit(engine, following)
        return [[hypothesis(found) for found in _taken(under_way.pop(i))] for i in ids]

    def hypothesis(found: Found) -> Hypothesis:
        tokens = task.strip(found.tokens)
        return Hypothesis(tokens, searched.to_text(tokens), found.score, sum(found.positional))

    return search


def _rounded_engine(model: Any) -> Engine:
    layout, tensors = extract_lazily(model)
    return Engine(layout, quantize(tensors, layout), consume=True)


def _taken(task: Tuple[Future, int]) -> List[Found]:
    results, place = task
    return results.result()[place]
