"""Which languages a model of many is to work on, and what its checkpoint does not say of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Dict, Optional

from fairseq_tg.arguments import option

#: The tasks that there are actors in
TASKS = ("tg_translation", "tg_translation_multi_simple_epoch", "tg_translation_from_pretrained_bart")

LANGUAGES = "the task of a model of many languages; what is not given is as the checkpoint records it"


@dataclass(frozen=True)
class LanguageOptions:
    """The task's own options, by its own names. What is not given is as the checkpoint records it."""

    task: Optional[str] = option("the task, if it is not the one that the checkpoint records", None, choices=TASKS)
    source_lang: Optional[str] = option("the language to translate from", None)
    target_lang: Optional[str] = option("and into", None)
    lang_pairs: Optional[str] = option("several pairs, as de-en,en-de: one corpus, one actor, a report on each", None)
    langs: Optional[str] = option("the model's languages, in their order", None)
    lang_dict: Optional[str] = option("the same, from a file", None)
    fixed_dictionary: Optional[str] = option("the model's dictionary, which has the symbols of languages", None)
    encoder_langtok: Optional[str] = option(
        "whose symbol a source begins with: src or tgt", None, choices=("src", "tgt")
    )
    decoder_langtok: Optional[bool] = option("a target begins with its language's symbol", None)
    lang_tok_style: Optional[str] = option("of the symbols: multilingual or mbart", None)

    def given(self) -> Dict[str, object]:
        return {name: value for name, value in asdict(self).items() if value is not None}
