"""The native engine: a C++ library of the package's own, called through ctypes."""

from __future__ import annotations

import ctypes
import math
import threading
from ctypes import c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence

import numpy as np

from fairseq_tg.compiled.layout import ACTED, Layout
from fairseq_tg.compiled.library import (
    EngineError,
    Request,
    Results,
    TraceRequest,
    TraceResults,
    best_library,
    library_path,
    load_library,
)
from fairseq_tg.compiled.made import Tensors
from fairseq_tg.memory import MappedFiles, give_back

OUT_OF_MEMORY = "there is not enough memory for this model"
#: Bytes of weights made from others after which what that took is given back: it lies among what is kept
MADE = 1 << 25
#: Bytes of a table of embeddings that is in memory once: the output projection, which may have the same in an order for
#: products, finds a row less fast. One in a mapped file is not left in memory between searches, whatever was looked up.
LARGE_TABLE = 1 << 26


@dataclass(frozen=True)
class SearchSettings:
    """What to search for, as fairseq's SequenceGenerator is told."""

    beam: int = 1
    nbest: int = 0  # how many hypotheses to give; 0: as many as the beam has
    min_length: int = 1  # eos not counted
    unk_penalty: float = 0.0  # taken from the unknown word's log-probability
    length_penalty: float = 1.0
    normalize: bool = True  # whether a score is divided by length ** length_penalty
    actors: bool = True  # else the base alone
    shortlist: bool = True  # if the model has one; else all tokens
    first: Optional[int] = None  # what a decoder begins with, and what ends a translation, if that is not eos
    end: Optional[int] = None


class Shortlist(NamedTuple):
    """The tokens of which translations are made: those that the tokens of the source bring, together."""

    starts: np.ndarray  # int32, source vocabulary + 1: where what a source token brings begins
    tokens: np.ndarray  # int32


class Found(NamedTuple):
    """A hypothesis: its token ids, ending with eos, its score and the log-probability of each token."""

    tokens: List[int]
    score: float
    positional: List[float]


class Traced(NamedTuple):
    """What happened on the way to a translation, step by step."""

    actions: np.ndarray  # steps x places: |action| / |state|
    attention: np.ndarray  # steps x layers x source tokens
    tokens: np.ndarray  # steps x k: the likeliest
    probabilities: np.ndarray  # of these


def sinusoidal_positions(count: int, dim: int, pad: int) -> np.ndarray:
    """fairseq's table of positions, from the first token's on: count x dim."""
    half = dim // 2
    rates = np.exp(np.arange(half, dtype=np.float32) * np.float32(-math.log(10000) / max(half - 1, 1)))
    angles = np.arange(pad + 1, pad + 1 + count, dtype=np.float32)[:, None] * rates[None]
    table = np.zeros((count, dim), dtype=np.float32)
    table[:, :half], table[:, half : 2 * half] = np.sin(angles), np.cos(angles)
    return table


@dataclass
class _Side:
    """A model with its actors, or the base alone, where these are other matrices; made when it is first asked for."""

    matrices: Sequence[str]  # as they are stored
    tensors: Dict[str, np.ndarray]
    model: Optional[c_void_p] = None

    @classmethod
    def of(cls, matrices: Sequence[str], tensors: Tensors) -> _Side:
        names = (f"{name}.{part}" for name in matrices for part in ("weight", "scale", "bias"))
        return cls(matrices, {name: tensors[name] for name in names if name in tensors})


class Engine:
    """A model ready to translate token ids. It is not changed by that: any number of threads may share it."""

    def __init__(
        self,
        layout: Layout,
        tensors: Tensors,
        library: Optional[Path] = None,
        base: Optional[Engine] = None,
        consume: bool = False,
        shortlist: Optional[Shortlist] = None,
        later: Iterable[str] = (),
        alone: bool = False,
    ) -> None:
        """Make it ready.

        Args:
            layout: the model's.
            tensors: those of `layout.tensors`, checked; on a base, only what that has not, which are actors.
            library: another than the package's own for this machine.
            base: an engine whose weights this one shares.
            consume: the tensors are of, or made from, a model of torch's that stays: keep none that is not read in
                place, not even the base's own where actors are in the place of them.
            shortlist: the model's, checked; on a base, that has it.
            later: matrices that engines on this one have others of: given when it is itself searched with.
            alone: where there are two of a matrix, with actors and without, have one at a time, for one thread.

        The engine has matrices in an order of its own. What it has read of a mapped file is given back.
        """
        self.layout = layout
        self._base = base
        self._library = load_library(library or library_path(best_library()))
        self._model: c_void_p = c_void_p(self._library.tg_new(base._model if base else None))
        if not self._model:
            raise EngineError(OUT_OF_MEMORY)
        for name, value in layout.numbers().items():
            self._give(self._library.tg_number, name.encode(), value)
        self._kept: Dict[str, np.ndarray] = {}  # what the engine reads in place
        self._consumes = consume
        if consume:
            give_back()  # what it took to read the model
        files = MappedFiles()
        self._divided = layout.divided()
        alone = alone and bool(layout.acted)
        actors = [name for name in layout.matrices() if name not in layout.base_matrices()] if alone else []
        later = sorted({*later, *layout.acted})
        known = {*(base.layout.matrices() if base else ()), *later, *actors}
        # The largest first, while there is least in memory
        tied = () if base or "output" in known or not self._is_large("output", tensors) else layout.shared_embeddings
        if tied:
            self._give_matrix(self._model, "output", "output", tensors, files)
            known.add("output")
        for side in () if base else layout.embedding_shapes():
            embedding = f"{side}.embedding"
            if side in tied:
                self._give(self._library.tg_tied_embedding, embedding.encode(), b"output")
                continue
            name = "output" if side in layout.shared_embeddings else embedding
            weight, scale = self._keep(f"{name}.weight", tensors, files), tensors.get(f"{name}.scale")
            self._give(self._library.tg_embedding, embedding.encode(), _at(weight), _at(scale), *weight.shape)
        taken = 0
        for name, (rows, columns, _) in layout.matrices().items():
            if name not in known:
                self._give_matrix(self._model, name.removesuffix(ACTED), name, tensors, files)
                taken += 4 * rows * columns
            if consume and taken > MADE:
                give_back()
                taken = 0
        # By whether actors act; what they are in the place of is read when the base itself is asked for
        self._sides: Dict[bool, _Side] = {}
        if later and base is None:
            self._sides[False] = _Side.of(later, {} if consume else tensors)
        if alone:
            self._sides[True] = _Side.of(actors, tensors)
        self._alone, self._lock = alone, threading.Lock()
        for name, (kind, count, dim) in layout.positions().items():
            if kind != "none" and base is None:
                made = {name: sinusoidal_positions(count, dim, layout.pad)} if kind == "sinusoidal" else tensors
                table = self._keep(name, made, files)
                self._give(self._library.tg_positions, name.encode(), _at(table))
        for name, size in () if base else layout.norms().items():
            norm = [tensors[f"{name}.{part}"] for part in ("weight", "bias")]
            self._give(self._library.tg_norm, name.encode(), *map(_at, norm), size)
        if shortlist is not None:
            self._give(
                self._library.tg_shortlist, _at(shortlist.starts), layout.source_vocabulary, _at(shortlist.tokens)
            )
        self._is_whole = not alone and (bool(layout.acted) or not self._sides)
        if self._is_whole:
            self._connect(self._model)
        if consume:
            give_back()
        self._files: MappedFiles = base._files if base else files
        large = [table for table in self._kept.values() if table.nbytes > LARGE_TABLE]
        self._tables: List[np.ndarray] = base._tables if base else large
        self._is_of_large: bool = base._is_of_large if base else bool(large or tied)

    def _is_large(self, name: str, tensors: Tensors) -> bool:
        rows, columns, _ = self.layout.matrices()[name]
        return rows * columns * (1 if f"{name}.scale" in tensors else 4) > LARGE_TABLE

    def _keep(self, name: str, tensors: Tensors, files: MappedFiles) -> np.ndarray:
        """A tensor to read in place: in memory, for somebody may write to its file while the engine is in use.

        (Not if tensors are consumed: they are those of a model of torch's, which reads that file itself.)
        """
        if name not in self._kept:
            tensor = tensors[name]
            copied = tensor.ctypes.data in files and not self._consumes
            self._kept[name] = np.array(tensor) if copied else tensor
            files.page_out(tensor.ctypes.data, tensor.nbytes)
        return self._kept[name]

    def _give_matrix(self, model: c_void_p, name: str, stored: str, tensors: Tensors, files: MappedFiles) -> None:
        """Give a matrix that is stored under a name of its own, maybe, or the two parts of one that is divided."""
        weight = tensors[f"{stored}.weight"]
        scale, bias = (tensors.get(f"{stored}.{part}") for part in ("scale", "bias"))
        state = self._divided.get(name)
        given = {name: (weight, scale, bias)}
        if state is not None:
            halves = map(np.ascontiguousarray, (weight[:, :state], weight[:, state:]))
            given = {f"{name}.state": (next(halves), scale, bias), f"{name}.context": (next(halves), scale, None)}
        for part, arrays in given.items():
            if self._library.tg_matrix(model, part.encode(), *map(_at, arrays), *arrays[0].shape):
                raise EngineError(OUT_OF_MEMORY)
        files.page_out(weight.ctypes.data, weight.nbytes)

    def _model_for(self, actors: bool) -> c_void_p:
        """The model with its actors, or one with the base's own matrices in the place of those that actors changed."""
        if self._base is not None and self.layout.acted and not actors:
            return self._base._model_for(False)
        if not self._sides or (actors and self._is_whole):
            return self._model
        side = self._sides.get(actors, self._sides[False])
        with self._lock:
            if side.model is None:
                if self._alone:
                    self._let_go()
                    give_back()
                side.model = self._make(side)
        return side.model

    def _make(self, side: _Side) -> c_void_p:
        if not side.tensors:
            raise EngineError("the base's own weights are not kept")
        model = c_void_p(self._library.tg_new(self._model))
        if not model:
            raise EngineError(OUT_OF_MEMORY)
        files = MappedFiles()
        try:
            if any([self._library.tg_number(model, name.encode(), x) for name, x in self.layout.numbers().items()]):
                raise EngineError(OUT_OF_MEMORY)
            for name in side.matrices:
                self._give_matrix(model, name.removesuffix(ACTED), name, side.tensors, files)
            self._connect(model)
        except EngineError:
            self._library.tg_free(model)
            raise
        return model

    def _connect(self, model: c_void_p) -> None:
        missing = self._library.tg_connect(model)
        if missing is not None:
            raise EngineError(f"the model has no {missing.decode()}")

    def _let_go(self) -> None:
        for side in getattr(self, "_sides", {}).values():
            if side.model is not None:
                self._library.tg_free(side.model)
                side.model = None

    def _give(self, function: Callable[..., int], *arguments: Any) -> None:
        if function(self._model, *arguments):
            raise EngineError(OUT_OF_MEMORY)

    def __del__(self) -> None:
        self._let_go()
        if getattr(self, "_model", None):
            self._library.tg_free(self._model)

    def search(
        self,
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        settings: SearchSettings,
        threads: int = 1,
        prefixes: Optional[np.ndarray] = None,
        scores: bool = True,
    ) -> List[List[Found]]:
        """Search a batch, by the rules of fairseq's SequenceGenerator.

        Args:
            sources: token ids of each sentence, with its end.
            limits: the most tokens of each translation, its end not counted.
            settings: what to search for.
            threads: each searches some of the sentences; where these are few, they share each product.
            prefixes: the first tokens of each translation, a row each, with pad where there is no more.
            scores: greedy search is faster without.

        Returns:
            For each sentence its hypotheses, best first: as many as are asked for, if as many were found.
        """
        if not sources:
            return []
        if len(limits) != len(sources) or min(limits) < 0 or threads < 1:
            raise EngineError(f"{len(limits)} limits for {len(sources)} sentences, {threads} threads")
        beam, nbest = settings.beam, settings.nbest or settings.beam
        if not 1 <= nbest <= beam:
            raise EngineError(f"the {nbest} best of a beam of {beam}")
        longest, most = max(map(len, sources)), max(limits)
        if longest > self.layout.source_positions or most >= self.layout.target_positions:
            raise EngineError(
                f"{longest} tokens, translations of up to {most}: the model's limits are "
                f"{self.layout.source_positions} and {self.layout.target_positions - 1}"
            )
        tokens = np.concatenate([np.asarray(source, dtype=np.int32) for source in sources])
        if min(map(len, sources)) < 1 or tokens.min() < 0 or tokens.max() >= self.layout.source_vocabulary:
            raise EngineError("an empty sentence, or a token that is not in the dictionary")
        prefix = None if prefixes is None else np.ascontiguousarray(prefixes, dtype=np.int32)
        if prefix is not None and (
            prefix.ndim != 2
            or len(prefix) != len(sources)
            or (prefix.size and not 0 <= prefix.min() <= prefix.max() < self.layout.vocabulary)
        ):
            raise EngineError("prefixes that are not of this batch, or not of the dictionary")
        lengths = np.array([len(source) for source in sources], dtype=np.int32)
        limit = np.array(limits, dtype=np.int32)
        request = Request(
            tokens=_at(tokens),
            lengths=_at(lengths),
            limits=_at(limit),
            prefix=_at(prefix),
            batch=len(sources),
            prefix_length=0 if prefix is None else prefix.shape[1],
            min_length=settings.min_length,
            beam=beam,
            nbest=nbest,
            normalize=settings.normalize,
            base=not settings.actors,
            all=not settings.shortlist,
            first=self._symbol(settings.first),
            end=self._symbol(settings.end),
            unk_penalty=settings.unk_penalty,
            length_penalty=settings.length_penalty,
        )
        shape, scored = (len(sources), nbest), scores or beam > 1
        found_tokens = np.empty((*shape, most + 1), dtype=np.int32)
        found_lengths = np.empty(shape, dtype=np.int32)
        found_scores = np.empty(shape, dtype=np.float32) if scored else None
        positional = np.empty((*shape, most + 1), dtype=np.float32) if scored else None
        results = Results(_at(found_tokens), _at(found_lengths), _at(found_scores), _at(positional), most + 1)
        model = self._model_for(settings.actors)
        if self._library.tg_search(model, ctypes.byref(request), threads, ctypes.byref(results)):
            raise EngineError(
                f"not enough memory for a batch of {len(sources)} sentences: make it, or the beam, smaller"
            )
        for table in self._tables:
            self._files.page_out(table.ctypes.data, table.nbytes)
        if self._is_of_large:
            give_back()  # a batch of a model of that size leaves hundreds of megabytes behind
        return [
            [
                Found(
                    found_tokens[i, j, :length].tolist(),
                    0.0 if found_scores is None else float(found_scores[i, j]),
                    [] if positional is None else positional[i, j, :length].tolist(),
                )
                for j, length in enumerate(row)
                if length
            ]
            for i, row in enumerate(found_lengths.tolist())
        ]

    def _symbol(self, given: Optional[int]) -> int:
        token = self.layout.eos if given is None else given
        if not 0 <= token < self.layout.vocabulary or token == self.layout.pad:
            raise EngineError(f"a symbol {token} that no translation begins or ends with")
        return token

    def trace(
        self,
        source: Sequence[int],
        target: Sequence[int],
        actors: bool = True,
        likeliest: int = 5,
        first: Optional[int] = None,
        end: Optional[int] = None,
    ) -> Traced:
        """Go over a translation, token by token; what a decoder begins with, and what ends it, as in a search."""
        layout = self.layout
        if not 1 <= len(source) <= layout.source_positions or not 1 <= len(target) <= layout.target_positions:
            raise EngineError(f"a source of {len(source)} tokens, a translation of {len(target)}")
        if not (min(source) >= 0 and max(source) < layout.source_vocabulary):
            raise EngineError("a token of the source that is not in the dictionary")
        if not (min(target) >= 0 and max(target) < layout.vocabulary) or target[-1] != self._symbol(end):
            raise EngineError("a translation without its end, or a token that is not in the dictionary")
        given = [np.array(tokens, dtype=np.int32) for tokens in (source, target)]
        steps, count = len(target), min(likeliest, layout.vocabulary)
        result = Traced(
            np.zeros((steps, len(layout.places())), dtype=np.float32),
            np.zeros((steps, len(layout.attending()), len(source)), dtype=np.float32),
            np.zeros((steps, count), dtype=np.int32),
            np.zeros((steps, count), dtype=np.float32),
        )
        request = TraceRequest(*map(_at, given), len(source), len(target), count, not actors, self._symbol(first))
        results = TraceResults(*map(_at, result), result.actions.shape[1], result.attention.shape[1])
        if self._library.tg_trace(self._model_for(actors), ctypes.byref(request), ctypes.byref(results)):
            raise EngineError("not enough memory for a trace")
        return result


def _at(array: Optional[np.ndarray]) -> Optional[int]:
    """The address of an array's memory, null for none."""
    return None if array is None else array.ctypes.data
