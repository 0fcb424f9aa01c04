"""`fairseq-tg translate`: lines from standard input to standard output, one for one."""

from __future__ import annotations

import codecs
from collections import deque
from typing import BinaryIO, Callable, Deque, Dict, Iterator, List, Optional, Tuple

from fairseq_tg.compiled.engine import Found
from fairseq_tg.compiled.translator import InputError, Translator
from fairseq_tg.errors import tell

#: Lines of a window, for each line of a batch: so many are sorted, so that batches have sentences of like length.
WINDOW = 32
#: Windows that are under way: while one is translated, the next is read and the last is written.
AHEAD = 2


class Filter:
    """Translates a stream. Memory is that of a few windows, however long the stream is.

    Every line gives one line (or --nbest of them), in order: what cannot be translated gives empty ones and a message.

    Args:
        nbest: lines for each line.
        scores: whether a line begins with the score and a tab.
    """

    def __init__(self, translator: Translator, batch_size: int, nbest: int = 1, scores: bool = False) -> None:
        self._translator, self._batch_size, self._nbest, self._scores = translator, batch_size, nbest, scores
        self._read = self._failed = 0

    def run(self, source: BinaryIO, target: BinaryIO) -> int:
        """Translate line by line, or by batches; returns how many lines could not be."""
        waiting: Deque[Callable[[], List[List[Found]]]] = deque()
        # Of a batch of one, each line is answered before the next is read
        size, ahead = (1, 1) if self._batch_size == 1 else (self._batch_size * WINDOW, AHEAD)
        for lines in _windows(source, size):
            waiting.append(self._begin(lines))
            if len(waiting) >= ahead:
                self._write(waiting.popleft()(), target)
        while waiting:
            self._write(waiting.popleft()(), target)
        return self._failed

    def _begin(self, lines: List[bytes]) -> Callable[[], List[List[Found]]]:
        """Read a window's lines and begin to translate them, those of each actor together."""
        by_actor: Dict[Optional[str], Tuple[List[int], List[List[int]]]] = {}
        for place, line in enumerate(lines):
            self._read += 1
            try:
                actor, text = self._split(_text(line, self._read))
                tokens = self._translator.encode(text)
            except InputError as error:
                self._failed += 1
                tell(f"fairseq_tg: line {self._read}: {error}; its translation is left empty")
                continue
            places, sources = by_actor.setdefault(actor, ([], []))
            places.append(place)
            sources.append(tokens)
        scores = self._scores or self._nbest > 1
        begun = [
            (places, self._translator.search_all(sources, self._batch_size, actor=actor, scores=scores))
            for actor, (places, sources) in by_actor.items()
        ]

        def wait() -> List[List[Found]]:
            results: List[List[Found]] = [[] for _ in lines]
            for places, function in begun:
                for place, found in zip(places, function()):
                    results[place] = found
            return results

        return wait

    def _split(self, text: str) -> Tuple[Optional[str], str]:
        """The actor that a line is for, and the rest of it."""
        actors = self._translator.actors
        if len(actors) < 2:
            return (actors[0] if actors else None), text
        name, tab, rest = text.partition("\t")
        if not tab or name not in actors:
            raise InputError(f"it names no actor: begin it with one of {', '.join(actors)} and a tab")
        return name, rest

    def _write(self, results: List[List[Found]], target: BinaryIO) -> None:
        for found in results:
            for rank in range(self._nbest):
                line = ""
                if rank < len(found):
                    line = self._translator.decode(found[rank].tokens)
                    line = f"{found[rank].score:.4f}\t{line}" if self._scores else line
                target.write(line.encode() + b"\n")
        target.flush()


def _text(line: bytes, number: int) -> str:
    if number == 1:
        line = line.removeprefix(codecs.BOM_UTF8)  # some editors begin a file with it: it is no part of a word
    try:
        return line.decode().strip("\r\n ")
    except UnicodeDecodeError:
        tell(f"fairseq_tg: line {number}: not UTF-8; its bad bytes are read as unknown characters")
        return line.decode(errors="replace").strip("\r\n ")


def _windows(source: BinaryIO, size: int) -> Iterator[List[bytes]]:
    lines: List[bytes] = []
    for line in source:
        lines.append(line)
        if len(lines) == size:
            yield lines
            lines = []
    if lines:
        yield lines
