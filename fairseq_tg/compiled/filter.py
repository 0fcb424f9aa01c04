"""`fairseq-tg translate`: lines from standard input to standard output, one for one."""

from __future__ import annotations

import sys
from typing import BinaryIO, Iterator, List

from fairseq_tg.compiled.translator import InputError, Translator

#: Lines read ahead for each line of a batch, so that batches have sentences of like length.
READ_AHEAD = 16


def translate_stream(translator: Translator, source: BinaryIO, target: BinaryIO, batch_size: int) -> int:
    """Translate line by line, or by batches; returns how many lines could not be.

    Every line gives one line, in order: what cannot be translated gives an empty one and a message.
    """
    failed = done = 0
    for lines in _chunks(source, batch_size if batch_size == 1 else batch_size * READ_AHEAD):
        tokens: List[List[int]] = []
        for line in lines:
            done += 1
            try:
                tokens.append(translator.encode(_text(line, done)))
            except InputError as error:
                failed += 1
                print(f"fairseq_tg: line {done}: {error}; its translation is left empty", file=sys.stderr)
                tokens.append([translator.layout.eos])
        for translation in translator.translate_all(tokens, batch_size):
            target.write(translator.decode(translation).encode() + b"\n")
        target.flush()
    return failed


def _text(line: bytes, number: int) -> str:
    try:
        return line.decode().strip()
    except UnicodeDecodeError:
        print(f"fairseq_tg: line {number}: not UTF-8; its bad bytes are read as unknown characters", file=sys.stderr)
        return line.decode(errors="replace").strip()


def _chunks(source: BinaryIO, size: int) -> Iterator[List[bytes]]:
    lines: List[bytes] = []
    for line in source:
        lines.append(line)
        if len(lines) == size:
            yield lines
            lines = []
    if lines:
        yield lines
