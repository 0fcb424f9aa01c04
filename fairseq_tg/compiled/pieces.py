"""A sentence in as many pieces as a model needs."""

from __future__ import annotations

from typing import List

from fairseq_tg.compiled.translator import InputError, Translator
from fairseq_tg.sentences import halves

#: How much longer than its source a translation may be, in tokens, and still have room: without, it would be cut
LONGER = 1.25


def encode_pieces(translator: Translator, sentence: str) -> List[List[int]]:
    """A sentence's token ids, in as many pieces as the model needs, and as their translations have room for."""
    short = len(sentence.strip()) < 2  # which may be too long by itself: others of its batch are not to blame
    try:
        tokens = translator.encode(sentence)
        if short or len(tokens) * LONGER <= translator.limit(tokens):
            return [tokens]
    except InputError:
        if short:
            return [translator.encode("")]
    first, second = halves(sentence)
    return [*encode_pieces(translator, first), *encode_pieces(translator, second)]
