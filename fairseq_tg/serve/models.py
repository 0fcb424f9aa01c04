"""The models that are served, by their languages; they can be read again while they are in use."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from fairseq_tg.compiled import Translator, model_file
from fairseq_tg.compiled.actor_file import is_for
from fairseq_tg.errors import UserError
from fairseq_tg.serve.languages import detect, find_detector, language_name, plain_code
from fairseq_tg.serve.refusals import Refusal, invalid

Pair = Tuple[str, str]


class Served:
    """A model, and what it translates: from each of its sources into each other of its targets."""

    def __init__(self, path: str, name: str, actors: Mapping[str, str]) -> None:
        model = model_file.read(path)
        own = {name: file for name, file in actors.items() if is_for(file, model)}
        self.name, self.has_actors = name, bool(model.layout.actor)
        self.sources, self.targets = [model.text.source_lang], [model.text.target_lang]
        if model.text.languages and not model.text.source_lang:
            self.sources = self.targets = model.text.languages.split(",")
        first = self.pairs()[0]
        self._translators: Dict[Pair, Translator] = {
            first: Translator(model, source_lang=first[0], target_lang=first[1], actors=own)
        }
        self._translators[first].warm()
        self.actors = list(own)

    def pairs(self) -> List[Pair]:
        found = [(source, target) for source in self.sources for target in self.targets]
        return [pair for pair in found if pair[0] != pair[1]] or found

    def translator(self, pair: Pair) -> Translator:
        """Made when it is first asked for: there may be thousands of pairs."""
        if pair not in self._translators:
            self._translators[pair] = next(iter(self._translators.values())).of_pair(*pair)
        return self._translators[pair]

    def check_beam(self, beam: int) -> None:
        """Refuse one that it does not allow."""
        try:
            self.translator(self.pairs()[0]).check_beam(beam, 1)
        except ValueError as error:
            raise UserError(f"--beam {beam}, and the model '{self.name}': {error}") from None


def _read(path: str, actors: Mapping[str, str]) -> Served:
    """Read a model from a copy that nobody else knows: a mapped file that is written to may end the process."""
    if not Path(path).is_file():
        raise UserError(f"no compiled model at '{path}': make one with fairseq-tg compile TG.pt {path}")
    try:
        with tempfile.NamedTemporaryFile(prefix="fairseq_tg-") as copy:
            try:
                shutil.copyfile(path, copy.name)
                return Served(copy.name, Path(path).stem, actors)
            except (ValueError, RuntimeError) as error:
                raise UserError(str(error).replace(copy.name, path)) from None
    except OSError as error:
        raise UserError(
            f"cannot make a copy of '{path}' to read: {error.strerror}; there must be room for it in TMPDIR"
        ) from None


class Models:
    """What a request's languages are looked up in."""

    def __init__(self, paths: Sequence[str], actors: Optional[Mapping[str, str]] = None, beam: int = 1) -> None:
        self._paths, self._actors, self._beam = paths, actors or {}, beam
        self._by_pair: Dict[Pair, Served] = {}
        self._known: FrozenSet[str] = frozenset()  # codes of languages
        self._detector = find_detector()
        self.load()

    def load(self) -> None:
        """Read all files; those read before stay in use until all of the new ones are there, and if one is no good."""
        loaded: Dict[Pair, Served] = {}
        for path in self._paths:
            served = _read(path, self._actors)
            served.check_beam(self._beam)
            for pair in served.pairs():
                if pair in loaded:
                    raise UserError(f"two models translate {'-'.join(pair)}, the second is '{path}': give one")
                loaded[pair] = served
        known = {name for served in loaded.values() for name in served.actors}
        for name, path in self._actors.items():
            if name not in known:
                raise UserError(f"--actor {name}={path}: it was trained on the base of none of the models")
        self._by_pair, self._known = loaded, frozenset(code for pair in loaded for code in pair)

    def actors(self) -> List[str]:
        """The names that requests may choose by."""
        return list(self._actors)

    def detects(self) -> bool:
        """Whether the language of a text can be told."""
        return self._detector is not None or len({source for source, _ in self._by_pair}) == 1

    def languages(self) -> List[Dict[str, Any]]:
        """As LibreTranslate lists them: each has itself among its targets."""
        targets = {code: {code} for code in sorted(self._known)}
        for source, target in self._by_pair:  # of which a model of 200 languages has 39,800
            targets[source].add(target)
        return [{"code": code, "name": language_name(code), "targets": sorted(to)} for code, to in targets.items()]

    def first_pair(self) -> Pair:
        return next(iter(self._by_pair))

    def settings(self) -> List[Dict[str, Any]]:
        """What the page has to know."""
        return [
            {
                "sources": item.sources,
                "targets": item.targets,
                "name": item.name,
                "actors": item.has_actors or bool(item.actors),
            }
            for item in dict.fromkeys(self._by_pair.values())
        ]

    def described(self) -> str:
        """For the operator: pairs, or how many languages there are."""
        models = dict.fromkeys(self._by_pair.values())
        return ", ".join(
            "-".join(item.pairs()[0]) if len(item.sources) == 1 else f"{len(item.sources)} languages" for item in models
        )

    def find(self, source: str, target: str, text: str) -> Tuple[Optional[Translator], Optional[Dict[str, Any]]]:
        """What translates a text between two languages, and what was detected if the first is `auto`.

        From a language into itself nothing has to.
        """
        detected = None
        if source == "auto":
            detected = self.detect(text)[0]
            source = detected["language"]
        for code in (source, target):
            if code not in self._known:
                raise Refusal(400, f"{code[:20]} is not supported")
        found = self._by_pair.get((source, target))
        if found is None and source == target:
            return None, detected
        if found is None:
            raise Refusal(
                400,
                f"{language_name(target)} ({target}) is not available as a target language from "
                f"{language_name(source)} ({source})",
            )
        return found.translator((source, target)), detected

    def detect(self, text: str) -> List[Dict[str, Any]]:
        """The languages that a text may be in, likeliest first. If models translate from one only, it is that."""
        sources = sorted({source for source, _ in self._by_pair})
        if len(sources) == 1:
            return [{"confidence": 100.0, "language": sources[0]}]
        if self._detector is None:
            raise invalid("this server cannot detect languages: give the source language")
        known = {plain_code(code): code for code in reversed(sources)}
        likely = [item for item in detect(self._detector, text) if item["language"] in known]
        found = [{**item, "language": known[item["language"]]} for item in likely]
        return found or [{"confidence": 0.0, "language": sources[0]}]
