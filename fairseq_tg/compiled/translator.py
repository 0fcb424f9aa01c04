"""Translator: raw text in, raw text out, from a compiled file."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import List, Optional, Sequence, Union

import numpy as np

from fairseq_tg.compiled import model_file
from fairseq_tg.compiled.engine import Engine, Found, SearchSettings, Traced
from fairseq_tg.compiled.languages import find_marks
from fairseq_tg.compiled.model_file import CompiledModel
from fairseq_tg.compiled.options import SearchOptions
from fairseq_tg.compiled.text import text_functions

MOST_THREADS = 1024


class InputError(ValueError):
    """A line that cannot be translated."""


class Translator:
    """Translates greedily with a compiled model.

    >>> translator = Translator.load("model.tg")
    >>> translator.translate(["Ein Hund ."])
    ['A dog .']

    It may be used from several threads at once.

    Args:
        model: what `model_file.read` gave.
        threads: cores to use. Batches are shared out among them; a single batch's products are.
        max_len_a, max_len_b: a translation has at most a * (source tokens) + b tokens, as in fairseq.
        min_len: and at least these.
        source_lang, target_lang: of a model of many languages.
        unk_penalty: taken from the unknown word's log-probability.
    """

    def __init__(
        self,
        model: CompiledModel,
        threads: int = SearchOptions.threads,
        max_len_a: float = SearchOptions.max_len_a,
        max_len_b: int = SearchOptions.max_len_b,
        min_len: int = SearchOptions.min_len,
        unk_penalty: float = SearchOptions.unk_penalty,
        source_lang: Optional[str] = SearchOptions.source_lang,
        target_lang: Optional[str] = SearchOptions.target_lang,
    ) -> None:
        if not 1 <= threads <= MOST_THREADS:
            raise ValueError(f"{threads} threads: give one to {MOST_THREADS}")
        if not (0 <= max_len_a < math.inf and max_len_b >= 0 and min_len >= 0):
            raise ValueError(f"lengths of {max_len_a} x + {max_len_b}, at least {min_len}: they cannot be negative")
        self.layout = model.layout
        self.threads = threads
        self._engine = Engine(model.layout, model.tensors)
        self._marks = find_marks(model.text, model.target_symbols, source_lang, target_lang)
        pair = {"source_lang": source_lang, "target_lang": target_lang}
        text = replace(model.text, **{name: lang for name, lang in pair.items() if lang})
        self._encode, self._decode = text_functions(text, model.subword_model)
        self._source = {symbol: index for index, symbol in enumerate(model.source_symbols)}
        self._source_symbols, self._target = model.source_symbols, model.target_symbols
        self._max_len_a, self._max_len_b = max_len_a, max_len_b
        self._min_len, self._unk_penalty = min_len, unk_penalty

    @classmethod
    def load(cls, path: str, **options: Union[int, float, str, None]) -> Translator:
        """Load a compiled file; options are those of the class. Raises ValueError in one sentence if it is no good."""
        return cls(model_file.read(path), **options)  # type: ignore[arg-type]

    def encode(self, line: str) -> List[int]:
        """A line's token ids, ending with eos. Raises InputError if the model cannot take that many."""
        unk, eos = self.layout.unk, self.layout.eos
        found = (self._source.get(symbol, unk) for symbol in self._encode(line).split())
        tokens = self._marks.source + [token for token in found if token != self.layout.pad] + [eos]
        if len(tokens) > self.layout.source_positions:
            raise InputError(
                f"a line of {len(tokens) - 1} tokens: this model takes up to {self.layout.source_positions - 1}; "
                "split it"
            )
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a translation's token ids; special symbols but <unk> are left out."""
        hidden = (0, self.layout.pad, self.layout.eos, *self._marks.hidden)  # 0 is fairseq's bos
        return self._decode(" ".join(self._target[token] for token in tokens if token not in hidden))

    def symbols(self, tokens: Sequence[int], source: bool = False) -> List[str]:
        """The symbols of token ids, of the target side or the source's."""
        table = self._source_symbols if source else self._target
        return [table[token] for token in tokens]

    def search(
        self,
        sources: Sequence[Sequence[int]],
        beam: int = 1,
        nbest: int = 1,
        actors: bool = True,
        scores: bool = True,
        threads: Optional[int] = None,
    ) -> List[List[Found]]:
        """The best hypotheses of each sentence of a batch of token ids; without actors they are the base's."""
        most = self.layout.target_positions - 1
        settings = SearchSettings(
            beam=beam,
            nbest=nbest,
            min_length=min(self._min_len, most),
            unk_penalty=self._unk_penalty,
            actors=actors,
        )
        prefixes = np.array([self._marks.target] * len(sources), dtype=np.int32) if self._marks.target else None
        return self._engine.search(sources, self._limits(sources), settings, threads or self.threads, prefixes, scores)

    def trace(self, source: Sequence[int], target: Sequence[int], actors: bool = True, likeliest: int = 5) -> Traced:
        """What happens on the way to a translation of token ids."""
        return self._engine.trace(source, target, actors, likeliest)

    def _limits(self, sources: Sequence[Sequence[int]]) -> List[int]:
        most = self.layout.target_positions - 1
        return [min(int(self._max_len_a * len(source) + self._max_len_b), most) for source in sources]

    def translate_tokens(self, sources: Sequence[Sequence[int]], threads: Optional[int] = None) -> List[List[int]]:
        """A batch of token ids to the token ids of its translations."""
        return [found[0].tokens for found in self.search(sources, scores=False, threads=threads)]

    def translate(self, lines: Sequence[str], batch_size: int = 32) -> List[str]:
        """Translate lines, in their order; empty lines stay empty. Raises InputError for a line that is too long."""
        return [self.decode(tokens) for tokens in self.translate_all([self.encode(line) for line in lines], batch_size)]

    def translate_all(self, sources: List[List[int]], batch_size: int) -> List[List[int]]:
        """Any number of sentences, in batches; one without tokens but its eos has an empty translation."""
        if batch_size < 1:
            raise ValueError(f"batches of {batch_size}: give at least 1")
        empty = len(self._marks.source) + 1
        # Sentences of like length together, longest first, so that threads end at about the same time
        order = sorted((i for i, source in enumerate(sources) if len(source) > empty), key=lambda i: -len(sources[i]))
        batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        results: List[List[int]] = [[] for _ in sources]
        if self.threads == 1 or len(batches) == 1:
            outputs = [self.translate_tokens([sources[i] for i in batch]) for batch in batches]
        else:
            # The engine works without Python's lock: a batch a thread is better than all threads on one batch
            with ThreadPoolExecutor(self.threads) as pool:
                outputs = list(pool.map(lambda batch: self.translate_tokens([sources[i] for i in batch], 1), batches))
        for batch, output in zip(batches, outputs):
            for index, tokens in zip(batch, output):
                results[index] = tokens
        return results
