"""A text with holes where its sentences were, to be filled with their translations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, List, Optional, Union

import numpy as np

from fairseq_tg.sentences import split_text
from fairseq_tg.serve.markup import Block, split_html
from fairseq_tg.serve.tags import Tag, TaggedSentence, escape_text, is_opening, with_tags

#: White space of HTML, as the space that it is shown as
_SPACES = str.maketrans("\n\r\t\f", "    ")


class Aligned(str):
    """A sentence for whose tags has to be known which words of the translation came from which."""


@dataclass
class Hole:
    number: int  # of the sentence
    tagged: Optional[TaggedSentence] = None


@dataclass
class Draft:
    html: bool
    parts: List[Union[str, Hole]] = field(default_factory=list)
    sentences: List[str] = field(default_factory=list)

    @classmethod
    def of(cls, text: str, html: bool) -> Draft:
        draft = cls(html)
        if not html:
            draft._add_text(text)
            return draft
        for piece in split_html(text):
            if isinstance(piece, Block):
                draft._add_block(piece)
            else:
                draft.parts.append(piece)
        return draft

    def _add_text(self, text: str) -> None:
        for piece, is_sentence in split_text(text):
            if is_sentence:
                self._add_sentence(piece)
            else:
                self.parts.append(piece)

    def _add_sentence(self, sentence: str, tagged: Optional[TaggedSentence] = None) -> None:
        self.parts.append(Hole(len(self.sentences), tagged))
        self.sentences.append(sentence)

    def _add_block(self, block: Block) -> None:
        tags, start = list(block.tags), 0
        for piece, is_sentence in split_text(block.text.translate(_SPACES)):
            end = start + len(piece)
            # what opens at the end of a sentence belongs to what comes then, and so do all after it
            taken = 0
            while taken < len(tags) and (
                tags[taken].place < end or (is_sentence and tags[taken].place == end and not _opens(tags[taken]))
            ):
                taken += 1
            own = [tag._replace(place=tag.place - start) for tag in tags[:taken]]
            del tags[:taken]
            if not is_sentence:
                self.parts.append(with_tags(block.text[start:end], own))
            elif own:
                tagged = TaggedSentence(piece, own)
                self._add_sentence(Aligned(piece) if tagged.needs_alignment else piece, tagged)
            else:
                self._add_sentence(piece)
            start = end
        self.parts += [tag.text for tag in tags]

    def fill(
        self,
        translation: Callable[[int], str],
        alignment: Callable[[int], Optional[np.ndarray]] = lambda number: None,
    ) -> str:
        """The text with the translation of each sentence, by its number, and its tags where the alignment says."""
        return "".join(
            part if isinstance(part, str) else self._filled(part, translation(part.number), alignment(part.number))
            for part in self.parts
        )

    def _filled(self, hole: Hole, text: str, alignment: Optional[np.ndarray]) -> str:
        if hole.tagged is not None:
            return hole.tagged.filled(text, alignment)
        return escape_text(text) if self.html else text


def _opens(tag: Tag) -> bool:
    return not tag.whole and is_opening(tag.text)
