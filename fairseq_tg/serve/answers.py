"""What /translate answers: LibreTranslate's fields, and more on request."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence

from fairseq_tg.serve.drafts import Draft
from fairseq_tg.serve.forms import TranslationRequest
from fairseq_tg.serve.systems import Hypothesis


def translation_answer(
    asked: TranslationRequest,
    drafts: Sequence[Draft],
    found: Sequence[List[Hypothesis]],
    detected: Sequence[Optional[Dict[str, Any]]],
) -> Dict[str, Any]:
    """found: of each sentence of all drafts its hypotheses, best first; detected: of each draft its language."""
    by_text: List[Sequence[List[Hypothesis]]] = []
    at = 0
    for draft in drafts:
        by_text.append(found[at : at + len(draft.sentences)])
        at += len(draft.sentences)

    def of_each(value: Callable[[Draft, Sequence[List[Hypothesis]]], Any]) -> Any:
        """A value for each text; of a request with one text, that alone."""
        values = [value(draft, sentences) for draft, sentences in zip(drafts, by_text)]
        return values if asked.is_list else values[0]

    def of_sentences(name: str) -> Any:
        return of_each(lambda draft, sentences: [getattr(best[0], name) for best in sentences])

    result: Dict[str, Any] = {"translatedText": of_each(lambda draft, sentences: _filled(draft, sentences, 0))}
    if asked.source == "auto":
        result["detectedLanguage"] = list(detected) if asked.is_list else detected[0]
    if asked.alternatives:
        result["alternatives"] = of_each(lambda draft, sentences: _alternatives(asked, draft, sentences))
    for name in ("scores", "tokens", "actions"):
        if getattr(asked, name):
            result[name] = of_sentences("score" if name == "scores" else name)
    return result


def _filled(draft: Draft, sentences: Sequence[List[Hypothesis]], rank: int) -> str:
    """The draft with each sentence's hypothesis of a rank, or with the last it has."""
    chosen = [best[min(rank, len(best) - 1)] for best in sentences]
    return draft.fill(lambda number: chosen[number].text, lambda number: chosen[number].alignment)


def _alternatives(asked: TranslationRequest, draft: Draft, sentences: Sequence[List[Hypothesis]]) -> List[str]:
    if asked.html:
        return []  # as LibreTranslate has it
    texts = [_filled(draft, sentences, rank) for rank in range(asked.alternatives + 1)]
    return [text for text in dict.fromkeys(texts) if text != texts[0]]
