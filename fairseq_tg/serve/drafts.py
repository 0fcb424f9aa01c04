"""A text with holes where its sentences were, to be filled with their translations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, List, Sequence, Union

from fairseq_tg.serve.markup import escape_text, split_html
from fairseq_tg.serve.sentences import split_text


@dataclass
class Draft:
    html: bool
    parts: List[Union[str, int]] = field(default_factory=list)  # what stays, and the numbers of sentences
    sentences: List[str] = field(default_factory=list)

    @classmethod
    def of(cls, text: str, html: bool) -> Draft:
        draft = cls(html)
        for piece, translated in split_html(text) if html else [(text, True)]:
            if translated:
                draft._add_text(piece)
            else:
                draft.parts.append(piece)
        return draft

    def _add_text(self, text: str) -> None:
        for piece, is_sentence in split_text(text):
            if is_sentence and any(map(str.isalnum, piece)):  # a line of dashes stays one
                self.parts.append(len(self.sentences))
                self.sentences.append(piece)
            else:
                self.parts.append(self._written(piece))

    def _written(self, text: str) -> str:
        return escape_text(text) if self.html else text

    def fill(self, translation: Callable[[int], str]) -> str:
        """The text with the translation of each sentence, by its number."""
        return "".join(part if isinstance(part, str) else self._written(translation(part)) for part in self.parts)


def count_sentences(drafts: Sequence[Draft]) -> int:
    return sum(len(draft.sentences) for draft in drafts)
