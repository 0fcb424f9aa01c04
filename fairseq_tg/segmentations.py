"""Other subwords for the same words: sampled as in Kudo (2018), or split. Neither torch nor fairseq is needed here."""

from __future__ import annotations

import math
import random
from functools import lru_cache
from itertools import accumulate
from typing import Any, Dict, List, Optional, Sequence, Tuple

from fairseq_tg.errors import UserError
from fairseq_tg.subwords import WORD_START

#: Segmentations of a word that are sampled from, the most probable ones (the paper's l)
N_BEST = 64

#: The ids of a word, and the same word in its segmentations with their cumulative weights
Word = Tuple[int, ...]
Weighted = Tuple[List[Word], List[float]]


class Segmentations:
    """The segmentations of words by a SentencePiece model of the unigram kind, of pieces that a dictionary has.

    SentencePiece samples too, but from one random state for all of a thread that cannot be set again: what a sentence
    gets would depend on those before it. So its n best of every word are sampled from here. Words do not share pieces:
    this is what sampling from a whole sentence gives.

    Args:
        model: SentencePiece's file.
        symbols: of the dictionary, in the order of their ids.
        alpha: the weight of a segmentation is its probability to this power; the less, the more even.
    """

    def __init__(self, model: str, symbols: Sequence[str], alpha: float) -> None:
        self._processor = _load(model)
        self._symbols = symbols
        known = ((i, symbol, self._processor.piece_to_id(symbol)) for i, symbol in enumerate(symbols))
        unknown = self._processor.unk_id()
        #: The id and the score of a piece, which is the logarithm of its probability
        self._pieces = {s: (i, alpha * self._processor.get_score(p)) for i, s, p in known if p != unknown}
        self._of = lru_cache(maxsize=1 << 17)(self._find)

    def sample(self, word: Word, chance: random.Random) -> Word:
        found, weights = self._of(word)
        return chance.choices(found, cum_weights=weights)[0] if len(found) > 1 else word

    def _find(self, word: Word) -> Weighted:
        symbols = [self._symbols[i] for i in word]
        if not all(symbol in self._pieces for symbol in symbols):  # an unknown one stands for a text that is not known
            return [word], [1.0]
        text = "".join(symbols)
        found = {}
        for pieces in self._processor.nbest_encode_as_pieces(text.replace(WORD_START, " ").strip(), N_BEST):
            known = [self._pieces[piece] for piece in pieces if piece in self._pieces]
            if len(known) == len(pieces) and "".join(pieces) == text:
                found[tuple(i for i, _ in known)] = sum(score for _, score in known)
        if not found:
            return [word], [1.0]
        best = max(found.values())
        return list(found), list(accumulate(math.exp(score - best) for score in found.values()))


class Splits:
    """Subwords in two smaller ones of the same dictionary: needs no subword model.

    As in BPE dropout (Provilkov et al., 2020), a sentence is met in smaller pieces than usual; which merges made a
    subword is not known from a dictionary, so that any two of its symbols that give it may take its place.

    Args:
        symbols: of the dictionary, in the order of their ids.
        subwords: what made them, as `guess_subwords` says.
    """

    def __init__(self, symbols: Sequence[str], subwords: Optional[str]) -> None:
        ids = {symbol: i for i, symbol in enumerate(symbols)}
        mark = "@@" if subwords == "subword_nmt" else ""  # a subword has it unless it ends a word
        self._halves: Dict[int, List[Tuple[int, int]]] = {}
        for symbol, i in ids.items():
            pairs = ((symbol[:cut] + mark, symbol[cut:]) for cut in range(1, len(symbol)))
            found = [(ids[left], ids[right]) for left, right in pairs if left in ids and right in ids]
            if found:
                self._halves[i] = found

    def sample(self, word: Word, rate: float, chance: random.Random) -> Word:
        """The word with each subword split with the probability `rate`, and its halves again."""
        split: List[int] = []
        waiting = list(reversed(word))
        while waiting:
            subword = waiting.pop()
            if subword in self._halves and chance.random() < rate:
                waiting += reversed(chance.choice(self._halves[subword]))
            else:
                split.append(subword)
        return tuple(split)


def _load(model: str) -> Any:
    try:
        import sentencepiece
    except ImportError:
        raise UserError("--source-sampling needs SentencePiece: pip install sentencepiece") from None
    try:
        processor = sentencepiece.SentencePieceProcessor()
        processor.Load(model)
    except (OSError, RuntimeError, TypeError) as error:
        raise UserError(f"--sentencepiece-model {model} cannot be read: {error}") from None
    try:
        processor.nbest_encode_as_pieces("a", 2)
    except RuntimeError:
        raise UserError(
            f"--source-sampling: '{model}' is no unigram model of SentencePiece, whose segmentations have probabilities"
        ) from None
    return processor
