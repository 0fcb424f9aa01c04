"""The language symbols that a compiled model of many languages wants around a sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import FrozenSet, List, Mapping, Optional

from fairseq_tg.compiled.model_file import LANGUAGE_PLACES, TextOptions

#: What a source or target is marked with: nothing, or the symbol of one of the two languages
PLACES = ("", "src", "tgt")
#: Where that is. Before the words; behind the end of a source, and in the place of what a decoder begins with and of
#: what ends a translation, as in mBART-25, whose sources may begin with bos; or in the place of a source's end, and of
#: what a decoder begins with.
BEFORE, BEHIND, BEHIND_BOS, INSTEAD = LANGUAGE_PLACES
#: fairseq's
BOS = 0


@dataclass(frozen=True)
class Marks:
    """Of one pair."""

    source: List[int] = field(default_factory=list)  # what a source begins with
    source_end: Optional[List[int]] = None  # and ends with, if that is not eos
    target: List[int] = field(default_factory=list)  # what a translation is made to begin with
    first: Optional[int] = None  # what a decoder begins with, if that is not eos
    end: Optional[int] = None  # and what ends a translation
    hidden: FrozenSet[int] = frozenset()  # no words


def find_marks(
    text: TextOptions,
    numbers: Mapping[str, int],
    eos: int,
    source_lang: Optional[str] = None,
    target_lang: Optional[str] = None,
) -> Marks:
    """The marks of a pair; the model's own, if it is not said. Raises ValueError in one sentence.

    Args:
        numbers: the target's token ids, by symbol.
        eos: the end of sentence's.
    """
    pair = {"src": source_lang or text.source_lang, "tgt": target_lang or text.target_lang}
    if not text.languages or (text.source_lang and text.language_place in (BEHIND, BEHIND_BOS)):
        for given, own in ((source_lang, text.source_lang), (target_lang, text.target_lang)):
            if given not in (None, own):
                raise ValueError(f"this model translates from {text.source_lang} to {text.target_lang}, not '{given}'")
    if not text.languages:
        return Marks()
    languages = text.languages.split(",")
    for language in pair.values():
        if not language:
            raise ValueError(f"a model of many languages: give --source-lang and --target-lang, of {text.languages}")
        if language not in languages:
            raise ValueError(f"this model does not know '{language}': it has {text.languages}")
    try:
        marks = {language: numbers[text.language_symbol.replace("{}", language)] for language in languages}
    except KeyError as error:
        raise ValueError(f"the model's dictionary has no {error.args[0]!r}: compile it again") from None
    source, target = ([marks[pair[place]]] if place else [] for place in (text.source_symbol, text.target_symbol))
    hidden, first = frozenset(marks.values()), target[0] if target else None
    if text.language_place == BEFORE:
        return Marks(source, None, target, hidden=hidden)
    if text.language_place == INSTEAD:
        return Marks([], source or None, [], first, hidden=hidden)
    bos = [BOS] if text.language_place == BEHIND_BOS else []
    return Marks(bos, [eos, *source], [], first, first, hidden)
