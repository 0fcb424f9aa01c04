"""Translation edit rate in the words that everything else is scored in."""

from __future__ import annotations

from typing import List, Optional

from sacrebleu.metrics import TER

from fairseq_tg.tokenizers import USUAL, load_tokenizer


class WordTER(TER):
    """sacreBLEU's TER, whose words are what spaces divide; for other tokenizers than 13a, of text that they divided."""

    def __init__(self, tokenizer: str = USUAL, references: Optional[List[str]] = None) -> None:
        self._divide = load_tokenizer(tokenizer) if tokenizer != USUAL else None
        super().__init__(references=None if references is None else [references])
        if self._divide is not None:
            self.tokenizer_signature = f"{tokenizer}+{self.tokenizer_signature}"

    def _preprocess_segment(self, sent: str) -> str:
        return super()._preprocess_segment(self._divide(sent) if self._divide else sent)
