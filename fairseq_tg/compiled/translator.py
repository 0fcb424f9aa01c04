"""Translator: raw text in, raw text out, from a compiled file."""

from __future__ import annotations

import math
import os
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from fairseq_tg.compiled import actor_file, model_file
from fairseq_tg.compiled.engine import Engine, Found, SearchSettings, Traced
from fairseq_tg.compiled.languages import Marks, find_marks
from fairseq_tg.compiled.model_file import CompiledModel
from fairseq_tg.compiled.options import SearchOptions
from fairseq_tg.compiled.text import subword_functions, with_tokenizer

MOST_THREADS = 1024


class InputError(ValueError):
    """A line that cannot be translated."""


class Translation(NamedTuple):
    """A hypothesis as text, with its score: log-probability by length to the power of the length penalty."""

    text: str
    score: float


class Translator:
    """Translates with a compiled model, greedily or with a beam.

    >>> translator = Translator.load("model.tg")
    >>> translator.translate(["Ein Hund ."])
    ['A dog .']

    It may be used from several threads at once, and in processes that are forked from one that has used it.

    Args:
        model: what `model_file.read` gave.
        threads: cores to use. Batches are shared out among them; a single batch's products are.
        max_len_a, max_len_b: a translation has at most a * (source tokens) + b tokens, as in fairseq.
        min_len: and at least these.
        source_lang, target_lang: of a model of many languages.
        unk_penalty: taken from the unknown word's log-probability.
        beam: 1 is greedy search.
        nbest: how many hypotheses `translate_nbest` gives of a line, at most as many as the beam has.
        length_penalty: scores are divided by length to this power.
        no_shortlist: choose among all tokens, if the model has a shortlist. (Scores with one are of a softmax over it.)
        actors: files of `fairseq-tg actor export` for this base, by names that a call may choose.
        alone: have the weights with actors or the base's in memory, not both: for one thread that asks for one first.
    """

    def __init__(
        self,
        model: CompiledModel,
        threads: int = SearchOptions.threads,
        max_len_a: float = SearchOptions.max_len_a,
        max_len_b: int = SearchOptions.max_len_b,
        min_len: int = SearchOptions.min_len,
        unk_penalty: float = SearchOptions.unk_penalty,
        beam: int = SearchOptions.beam,
        nbest: int = SearchOptions.nbest,
        length_penalty: float = SearchOptions.length_penalty,
        no_shortlist: bool = SearchOptions.no_shortlist,
        source_lang: Optional[str] = SearchOptions.source_lang,
        target_lang: Optional[str] = SearchOptions.target_lang,
        actors: Optional[Mapping[str, str]] = None,
        alone: bool = False,
    ) -> None:
        if not 1 <= threads <= MOST_THREADS:
            raise ValueError(f"{threads} threads: give one to {MOST_THREADS}")
        if not (0 <= max_len_a < math.inf and max_len_b >= 0 and min_len >= 0):
            raise ValueError(f"lengths of {max_len_a} x + {max_len_b}, at least {min_len}: they cannot be negative")
        most = min(max_len_b, model.layout.target_positions - 1)
        if not max_len_a and min_len > most:
            raise ValueError(f"at least {min_len} tokens, and at most {most}: lengths that no translation has")
        self.layout = model.layout
        self.threads = threads
        self.check_beam(beam, nbest)
        put_on = {name: actor_file.put_on(path, model) for name, path in (actors or {}).items()}
        # The matrices that none of the actors leaves as they are
        later = set.intersection(*(set(layout.acted) for layout, _ in put_on.values())) if put_on else ()
        self._engine = Engine(model.layout, model.tensors, shortlist=model.shortlist, later=later, alone=alone)
        self._actors = {name: Engine(*acted, base=self._engine) for name, acted in put_on.items()}
        self._text, self._subwords = model.text, subword_functions(model.text, model.subword_model)
        self._source = {symbol: index for index, symbol in enumerate(model.source_symbols)}
        self._source_symbols, self._target = model.source_symbols, model.target_symbols
        self._numbers = {symbol: index for index, symbol in enumerate(self._target)} if model.text.languages else {}
        self._set_languages(source_lang, target_lang)
        self._max_len_a, self._max_len_b = max_len_a, max_len_b
        self._min_len, self._unk_penalty = min_len, unk_penalty
        self._beam, self._nbest, self._length_penalty = beam, nbest, length_penalty
        self._shortlist = not no_shortlist
        self._pools: Dict[int, ThreadPoolExecutor] = {}

    def _pool(self) -> ThreadPoolExecutor:
        """The threads of this process: one that was forked has none of another's."""
        return self._pools.setdefault(os.getpid(), ThreadPoolExecutor(self.threads))

    def _set_languages(self, source_lang: Optional[str], target_lang: Optional[str]) -> None:
        self._marks = find_marks(self._text, self._numbers, self.layout.eos, source_lang, target_lang)
        self._source_end = [self.layout.eos] if self._marks.source_end is None else self._marks.source_end
        self._hidden = frozenset((0, self.layout.pad, self.layout.eos)) | self._marks.hidden  # 0 is fairseq's bos
        pair = {"source_lang": source_lang, "target_lang": target_lang}
        text = replace(self._text, **{name: lang for name, lang in pair.items() if lang})
        self._encode, self._decode = with_tokenizer(text, *self._subwords)

    def of_pair(self, source_lang: str, target_lang: str) -> Translator:
        """A translator between two other languages of this model, with the same weights in memory."""
        other = copy(self)
        other._set_languages(source_lang, target_lang)
        return other

    @classmethod
    def load(cls, path: str, **options: Any) -> Translator:
        """Load a compiled file; options are those of the class. Raises ValueError in one sentence if it is no good."""
        return cls(model_file.read(path), **options)

    @property
    def marks(self) -> Marks:
        """The language symbols of a model of many, which `encode` puts around a source and `search` around a target."""
        return self._marks

    def marked(self, words: Sequence[int]) -> List[int]:
        """A source's token ids without end of sentence, with all that the model wants around them."""
        return [*self._marks.source, *words, *self._source_end]

    @property
    def actors(self) -> List[str]:
        """The names of the actors that a call may choose."""
        return list(self._actors)

    def check_beam(self, beam: int, nbest: int) -> None:
        """Raise ValueError if there is no such search."""
        most = (self.layout.vocabulary - 1) // 2  # 2k continuations are looked at, of all symbols but padding
        if beam != 1 and not 1 <= beam <= most:
            raise ValueError(f"a beam of {beam}: a dictionary of {self.layout.vocabulary} allows one to {most}")
        if not 1 <= nbest <= beam:
            raise ValueError(f"the {nbest} best of a beam of {beam}: give a beam of at least as many")

    def segment(self, line: str) -> List[str]:
        """A line's subwords, whether the dictionary has them or not."""
        return [symbol for symbol in self._encode(line).split() if self._source.get(symbol) != self.layout.pad]

    def encode(self, line: str) -> List[int]:
        """A line's token ids, with its end. Raises InputError if the model cannot take that many."""
        unk = self.layout.unk
        tokens = self.marked([self._source.get(symbol, unk) for symbol in self.segment(line)])
        if len(tokens) > self.layout.source_positions:
            raise InputError(
                f"a line of {len(tokens) - 1} tokens: this model takes up to {self.layout.source_positions - 1}; "
                "split it"
            )
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a translation's token ids; special symbols but <unk> are left out."""
        return self._decode(" ".join(self._target[token] for token in tokens if token not in self._hidden))

    def shown(self, tokens: Sequence[int]) -> List[str]:
        """The symbols of a translation's token ids; of special ones but <unk> nothing."""
        return ["" if token in self._hidden else self._target[token] for token in tokens]

    def symbols(self, tokens: Sequence[int], source: bool = False) -> List[str]:
        """The symbols of token ids, of the target side or the source's."""
        table = self._source_symbols if source else self._target
        return [table[token] for token in tokens]

    def engine(self, actor: Optional[str] = None) -> Engine:
        """What searches: the model as it was compiled, or its base with one of the named actors."""
        if actor is None:
            return self._engine
        if actor not in self._actors:
            raise ValueError(f"no actor '{actor}': there {'is' if len(self._actors) == 1 else 'are'} {self._names()}")
        return self._actors[actor]

    def _names(self) -> str:
        return ", ".join(self._actors) or "none"

    def search(
        self,
        sources: Sequence[Sequence[int]],
        beam: Optional[int] = None,
        nbest: Optional[int] = None,
        actors: bool = True,
        scores: bool = True,
        threads: Optional[int] = None,
        actor: Optional[str] = None,
    ) -> List[List[Found]]:
        """The best hypotheses of each sentence of a batch of token ids; without actors they are the base's."""
        beam = self._beam if beam is None else beam
        nbest = min(self._nbest, beam) if nbest is None else nbest
        self.check_beam(beam, nbest)
        settings = SearchSettings(
            beam=beam,
            nbest=nbest,
            min_length=min(self._min_len, self.layout.target_positions - 1),
            unk_penalty=self._unk_penalty,
            length_penalty=self._length_penalty,
            actors=actors,
            shortlist=self._shortlist,
            first=self._marks.first,
            end=self._marks.end,
        )
        prefixes = np.array([self._marks.target] * len(sources), dtype=np.int32) if self._marks.target else None
        return self.engine(actor).search(
            sources, list(map(self.limit, sources)), settings, threads or self.threads, prefixes, scores
        )

    def warm(self) -> None:
        """Search for a token with every engine, so that the first sentence takes no longer than others."""
        short = copy(self)
        short._max_len_a, short._max_len_b, short._min_len = 0.0, 1, 0
        for actor in (None, *self._actors):
            for beam in (1, 2):
                short.search([self.encode("")], beam, 1, actor=actor)

    def trace(
        self,
        source: Sequence[int],
        target: Sequence[int],
        actors: bool = True,
        likeliest: int = 5,
        actor: Optional[str] = None,
    ) -> Traced:
        """What happens on the way to a translation of token ids."""
        return self.engine(actor).trace(source, target, actors, likeliest, self._marks.first, self._marks.end)

    def limit(self, source: Sequence[int]) -> int:
        """How many tokens a translation may have."""
        return min(int(self._max_len_a * len(source) + self._max_len_b), self.layout.target_positions - 1)

    def translate_tokens(self, sources: Sequence[Sequence[int]], threads: Optional[int] = None) -> List[List[int]]:
        """A batch of token ids to the token ids of its translations."""
        return [found[0].tokens for found in self.search(sources, nbest=1, scores=False, threads=threads)]

    def translate(self, lines: Sequence[str], batch_size: int = 32, **search: Any) -> List[str]:
        """Translate lines, in their order; empty lines stay empty. Raises InputError for a line that is too long.

        search: `beam` and `actor` other than the translator's own.
        """
        sources = [self.encode(line) for line in lines]
        best = self.search_all(sources, batch_size, **{**search, "nbest": 1, "scores": False})()
        return [self.decode(found[0].tokens) if found else "" for found in best]

    def translate_nbest(self, lines: Sequence[str], batch_size: int = 32, **search: Any) -> List[List[Translation]]:
        """The best hypotheses of every line, best first; of an empty line there are none.

        search: `beam`, `nbest` and `actor` other than the translator's own.
        """
        found = self.search_all([self.encode(line) for line in lines], batch_size, **search)()
        return [[Translation(self.decode(item.tokens), item.score) for item in items] for items in found]

    def search_all(
        self, sources: Sequence[Sequence[int]], batch_size: int, **search: Any
    ) -> Callable[[], List[List[Found]]]:
        """Begin to search any number of sentences, in batches; gives a function that waits for the hypotheses.

        A sentence without tokens but its eos has none. search: options of `search`.
        """
        if batch_size < 1:
            raise ValueError(f"batches of {batch_size}: give at least 1")
        empty = len(self.marked([]))
        # Sentences of like length together, longest first, so that threads end at about the same time
        order = sorted((i for i, source in enumerate(sources) if len(source) > empty), key=lambda i: -len(sources[i]))
        batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        # The engine works without Python's lock: a batch a thread is better than all threads on one batch
        self.engine(search.get("actor"))  # if there is no such actor, that is said now
        tasks: List[Future] = []
        if len(batches) > 1:
            pool = self._pool()
            tasks = [pool.submit(self.search, [sources[i] for i in batch], threads=1, **search) for batch in batches]

        def wait() -> List[List[Found]]:
            try:
                found = [task.result() for task in tasks]
            finally:
                for task in tasks:
                    task.cancel()  # what is left after an error, or an interrupt
            if not tasks:
                found = [self.search([sources[i] for i in batch], **search) for batch in batches]
            results: List[List[Found]] = [[] for _ in sources]
            for batch, items in zip(batches, found):
                for index, item in zip(batch, items):
                    results[index] = item
            return results

        return wait
