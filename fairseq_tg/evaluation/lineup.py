"""Which systems are compared: ways to decode what the user has, converted and compiled where that needs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Sequence, Tuple

from fairseq_tg.compiled.compile import compile_model
from fairseq_tg.compiled.extract import extract_lazily, unsupported
from fairseq_tg.compiled.options import Compilation
from fairseq_tg.corpus.engines import convert_to_ctranslate2, import_ctranslate2
from fairseq_tg.errors import UserError, printable
from fairseq_tg.evaluation.options import Evaluation
from fairseq_tg.evaluation.systems import SYMBOLS, Load, System, Translate, build
from fairseq_tg.languages import LanguageOptions
from fairseq_tg.loading.checkpoints import fingerprint
from fairseq_tg.models.base import ActorModel

#: What models are called: the base with actors, and the whole base trained on what actors are trained on
ACTED, CONT = "tg", "cont."
PRECISIONS = {"float32": 4, "int8": 1}  # bytes of a weight


class Lineup:
    """Systems by their names, all of one data directory and with the same settings.

    Args:
        load: reads every checkpoint once.
    """

    def __init__(
        self,
        load: Load,
        data: str,
        threads: int,
        max_len_b: int = 200,
        languages: LanguageOptions = LanguageOptions(),  # noqa: B008 (frozen)
    ) -> None:
        self.systems: Dict[str, System] = {}
        self.weights: Dict[str, Tuple[int, int]] = {}  # that a step reads, and the bytes of each; by model, precision
        self._load, self._data, self._threads, self._max_len_b = load, data, threads, max_len_b
        self._languages = languages

    def add(self, name: str, kind: str, path: str, beam: int = 1) -> None:
        limits = {"beam": beam, "max_len_b": self._max_len_b, "threads": self._threads}
        self.systems[name] = System(name, kind, path, self._data, **limits, languages=self._languages)

    def build(self) -> Dict[str, Translate]:
        return {name: build(system, self._load) for name, system in self.systems.items()}

    def can_compile(self, path: str) -> bool:
        model, task = self._load(path, self._data)
        return unsupported(model) is None and task.compiled_marks() is not None

    def add_bound(self, label: str, path: str) -> None:
        weights = extract_lazily(self._load(path, self._data)[0])[0].weights_per_token()
        self.weights.update({f"{label} {name}": (weights, size) for name, size in PRECISIONS.items()})

    def add_compiled(self, label: str, path: str, out: Path, beams: Sequence[int] = (1, 4)) -> None:
        """Compile a checkpoint in both precisions."""
        model, task = self._load(path, self._data)
        for precision in PRECISIONS:
            file = str(out / f"{label.replace(':', '-').rstrip('.')}.{precision}.tg")
            compile_model(model, task, Compilation(path, file, no_subword=True, int8=precision == "int8"))
            for beam in beams:
                search = "" if beam == 1 else f" beam {beam}"
                self.add(f"compiled {label}{search} {precision}", "compiled", file, beam)
        self.add_bound(label, path)

    def add_converted(self, label: str, path: str, beams: Sequence[int], out: Path) -> None:
        """Convert a checkpoint for CTranslate2 in both precisions."""
        _, task = self._load(path, self._data)
        if task.marks:
            raise UserError("--peer ctranslate2 is not told of language symbols here: leave it out")
        symbols = {"source": task.source_dictionary.symbols, "target": task.target_dictionary.symbols}
        for precision in PRECISIONS:
            directory = out / f"ct2{label.replace(' ', '-').rstrip('.')}-{precision}"
            convert_to_ctranslate2(path, task.cfg, str(directory), None if precision == "float32" else precision)
            (directory / SYMBOLS).write_text(json.dumps(symbols))
            for beam in beams:
                search = "greedy" if beam == 1 else f"beam {beam}"
                self.add(f"CTranslate2 {search}{label} {precision}", "ctranslate2", str(directory), beam)


def check_peer(options: Evaluation) -> None:
    """If the engine to compare with is not there, that is found before anything is measured."""
    if options.peer:
        import_ctranslate2(f"--peer {options.peer}")


def load_compared(load: Load, options: Evaluation) -> Tuple[Any, Any, str, Dict[str, ActorModel]]:
    """The base and its task, its fingerprint, and the tg models by their labels; refuses what is not what it is for."""
    base, task = load(options.base, options.data)
    if isinstance(base, ActorModel):
        raise UserError(f"--base {options.base} has actors: give the checkpoint they were trained on")
    found, models = fingerprint(base.state_dict()), {}
    for label, path in label_files(ACTED, options.actor).items():
        model, _ = load(path, options.data)
        if not isinstance(model, ActorModel):
            raise UserError(f"--actor {path} has no actors: give a checkpoint trained with --arch tg_*")
        if model.base.fingerprint != found:
            raise UserError(f"--actor {path} was trained on another base than {options.base}: give its own")
        models[label] = model
    for path in options.cont:
        if isinstance(load(path, options.data)[0], ActorModel):
            raise UserError(f"--cont {path} has actors: give it to --actor")
    return base, task, found, models


def label_files(name: str, paths: Sequence[str]) -> Dict[str, str]:
    """Checkpoints by a short name, or by several, with the last part of their paths that tells them apart."""
    if len(paths) == 1:
        return {name: paths[0]}
    parts = [[printable(part) for part in (Path(p).stem, *(above.name for above in Path(p).parents))] for p in paths]
    for found in zip(*parts):
        if len(set(found)) == len(found):
            return {f"{name}:{part}": path for part, path in zip(found, paths)}
    if paths:
        raise UserError(f"the checkpoints have the same name: {', '.join(paths)}; rename them")
    return {}
