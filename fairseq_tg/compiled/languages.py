"""The language symbols that a compiled model of many languages wants around a sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import FrozenSet, List, Mapping, Optional

from fairseq_tg.compiled.model_file import TextOptions

#: What a source or target may begin with: nothing, or the symbol of one of the two languages
PLACES = ("", "src", "tgt")


@dataclass(frozen=True)
class Marks:
    """Of one pair: what a source begins with, what a translation is made to begin with, and what is no word."""

    source: List[int] = field(default_factory=list)
    target: List[int] = field(default_factory=list)
    hidden: FrozenSet[int] = frozenset()


def find_marks(
    text: TextOptions, numbers: Mapping[str, int], source_lang: Optional[str] = None, target_lang: Optional[str] = None
) -> Marks:
    """The marks of a pair; the model's own, if it is not said. Raises ValueError in one sentence.

    Args:
        numbers: the target's token ids, by symbol.
    """
    pair = {"src": source_lang or text.source_lang, "tgt": target_lang or text.target_lang}
    if not text.languages:
        for given, own in ((source_lang, text.source_lang), (target_lang, text.target_lang)):
            if given not in (None, own):
                raise ValueError(f"this model translates from {text.source_lang} to {text.target_lang}, not '{given}'")
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
    return Marks(source, target, frozenset(marks.values()))
