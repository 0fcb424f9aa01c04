"""The models that are served, by their languages; they can be read again while they are in use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from fairseq_tg.compiled import Translator, model_file
from fairseq_tg.errors import UserError
from fairseq_tg.serve.languages import detect, find_detector, language_name
from fairseq_tg.serve.refusals import Refusal, invalid


@dataclass(frozen=True)
class Served:
    translator: Translator
    source: str
    target: str
    name: str  # the file's, without its directory
    has_actors: bool


class Models:
    """What a request's languages are looked up in."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._by_pair: Dict[Tuple[str, str], Served] = {}
        self._detector = find_detector()
        self.load()

    def load(self) -> None:
        """Read all files; those read before stay in use until all of the new ones are there, and if one is no good."""
        loaded: Dict[Tuple[str, str], Served] = {}
        for path in self._paths:
            try:
                model = model_file.read(path)
                translator = Translator(model)
            except (ValueError, RuntimeError) as error:
                raise UserError(str(error)) from None
            pair = (model.text.source_lang, model.text.target_lang)
            if pair in loaded:
                raise UserError(f"two models translate {'-'.join(pair)}, the second is '{path}': give one")
            loaded[pair] = Served(translator, *pair, Path(path).stem, bool(model.layout.actor))
        self._by_pair = loaded

    def languages(self) -> List[Dict[str, Any]]:
        """As LibreTranslate lists them."""
        codes = sorted({code for pair in self._by_pair for code in pair})
        targets = {code: sorted(target for source, target in self._by_pair if source == code) for code in codes}
        return [{"code": code, "name": language_name(code), "targets": targets[code]} for code in codes]

    def settings(self) -> List[Dict[str, Any]]:
        """What the page has to know."""
        return [
            {"source": item.source, "target": item.target, "name": item.name, "actors": item.has_actors}
            for item in self._by_pair.values()
        ]

    def find(self, source: str, target: str, text: str) -> Tuple[Served, Optional[Dict[str, Any]]]:
        """The model of two languages, and what was detected if the first is `auto`."""
        detected = None
        if source == "auto":
            detected = self.detect(text)[0]
            source = detected["language"]
        known = {code for pair in self._by_pair for code in pair}
        for code in (source, target):
            if code not in known:
                raise Refusal(400, f"{code[:20]} is not supported")
        found = self._by_pair.get((source, target))
        if found is None:
            raise Refusal(
                400,
                f"{language_name(target)} ({target}) is not available as a target language from "
                f"{language_name(source)} ({source})",
            )
        return found, detected

    def detect(self, text: str) -> List[Dict[str, Any]]:
        """The languages that a text may be in, likeliest first. If models translate from one only, it is that."""
        sources = sorted({source for source, _ in self._by_pair})
        if len(sources) == 1:
            return [{"confidence": 100.0, "language": sources[0]}]
        if self._detector is None:
            raise invalid("this server cannot detect languages: give the source language")
        found = [item for item in detect(self._detector, text) if item["language"] in sources]
        return found or [{"confidence": 0.0, "language": sources[0]}]
