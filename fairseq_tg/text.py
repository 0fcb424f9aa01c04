"""From the ids of a dictionary to words: subwords joined, and decoded by fairseq's --bpe and --tokenizer if given."""

from __future__ import annotations

from argparse import Namespace
from typing import AbstractSet, Any, Dict, Optional, Sequence

from fairseq.data import encoders
from fairseq.data.data_utils import post_process

from fairseq_tg.errors import UserError
from fairseq_tg.subwords import WordOptions, guess_subwords


class Words:
    """A function from ids to text. What a dictionary's subwords are is looked up once: it takes milliseconds.

    Args:
        bpe, tokenizer: fairseq's, to decode with; None to leave out.
        subwords: what joins subwords instead of `bpe`, by fairseq's names of --remove-bpe.
        marks: ids of what is no word, and is left out.
    """

    def __init__(
        self,
        dictionary: Any,
        bpe: Any = None,
        tokenizer: Any = None,
        subwords: Optional[str] = None,
        marks: AbstractSet[int] = frozenset(),
    ) -> None:
        self._hidden = {dictionary.bos(), dictionary.eos(), *marks}
        self._symbols = list(dictionary.symbols)
        self._unknown = dictionary.unk()
        self._unknown_of_reference = dictionary.unk_string(escape=True)
        self.subwords = subwords or (None if bpe else guess_subwords(dictionary.symbols))
        self._decoders = [decoder for decoder in (bpe, tokenizer) if decoder]

    @classmethod
    def of(cls, dictionary: Any, options: WordOptions, language: str, marks: AbstractSet[int] = frozenset()) -> Words:
        given = Namespace(target_lang=language, tokenizer=options.tokenizer, **options.subword_options())
        made: Dict[str, Any] = {}
        for flag, known, make in (
            ("bpe", encoders.BPE_REGISTRY, encoders.build_bpe),
            ("tokenizer", encoders.TOKENIZER_REGISTRY, encoders.build_tokenizer),
        ):
            name = getattr(options, flag)
            if name is not None and name not in known:
                raise UserError(f"--{flag} {name}: fairseq has {', '.join(sorted(known))}")
            try:
                made[flag] = make(given)
            except Exception as error:  # a library or a file that is not there, said in many ways
                raise UserError(f"--{flag} {name} cannot be used: {error}") from None
        return cls(dictionary, **made, marks=marks)

    def __call__(self, tokens: Sequence[int], reference: bool = False) -> str:
        """An unknown word of a reference is written in another way, so that to give out an unknown word is no match."""
        # What dictionary.string gives, at a tenth of its time: corpora have millions of hypotheses
        unknown = self._unknown if reference else None
        symbols = [
            self._unknown_of_reference if token == unknown else self._symbols[token]
            for token in tokens
            if token not in self._hidden
        ]
        text = post_process(" ".join(symbols), self.subwords)
        for decoder in self._decoders:
            text = decoder.decode(text)
        return text
