"""Which systems are compared: ways to decode what the user has, converted and compiled where that needs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, Optional, Sequence, Tuple

from fairseq_tg.compiled.compile import can_compile, compile_model
from fairseq_tg.compiled.extract import extract_lazily
from fairseq_tg.compiled.options import Compilation
from fairseq_tg.corpus.engines import convert_to_ctranslate2, import_ctranslate2
from fairseq_tg.errors import UserError, printable
from fairseq_tg.evaluation.held import Held
from fairseq_tg.evaluation.options import Evaluation
from fairseq_tg.evaluation.systems import SYMBOLS, System, Translate
from fairseq_tg.loading.checkpoints import fingerprint
from fairseq_tg.models.base import ActorModel

#: What models are called: the base with actors, and the whole base trained on what actors are trained on
ACTED, CONT = "tg", "cont."
PRECISIONS = {"float32": 4, "int8": 1}  # bytes of a weight


class Lineup:
    """Systems by their names, all of one data directory and with the same settings."""

    def __init__(self, held: Held, options: Evaluation) -> None:
        self.systems: Dict[str, System] = {}
        self.weights: Dict[str, Tuple[int, int]] = {}  # that a step reads, and the bytes of each; by model, precision
        self._held, self._options, self._data = held, options, options.data

    def add(self, name: str, kind: str, path: str, beam: int = 1) -> None:
        options = self._options
        limits = {"beam": beam, "max_len_b": options.max_len_b, "threads": options.threads}
        self.systems[name] = System(name, kind, path, options.data, **limits, languages=options.languages)

    def functions(self) -> Dict[str, Translate]:
        return {name: self._held.translate(system) for name, system in self.systems.items()}

    def can_compile(self, path: str) -> bool:
        return can_compile(*self._held.model(path, self._data))

    def add_bound(self, label: str, path: str) -> None:
        weights = extract_lazily(self._held.model(path, self._data)[0])[0].weights_per_token()
        self.weights.update({f"{label} {name}": (weights, size) for name, size in PRECISIONS.items()})

    def add_compiled(self, label: str, path: str, out: Path, beams: Sequence[int] = (1, 4)) -> None:
        """Compile a checkpoint in both precisions."""
        model, task = self._held.model(path, self._data)
        for precision in PRECISIONS:
            file = str(out / f"{file_name(label)}.{precision}.tg")
            compile_model(model, task, Compilation(path, file, no_subword=True, int8=precision == "int8"))
            for beam in beams:
                search = "" if beam == 1 else f" beam {beam}"
                self.add(f"compiled {label}{search} {precision}", "compiled", file, beam)
        self.add_bound(label, path)

    def add_converted(self, label: str, path: str, beams: Sequence[int], out: Path) -> None:
        """Convert a checkpoint for CTranslate2 in both precisions."""
        _, task = self._held.model(path, self._data)
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


def check_compared(held: Held, options: Evaluation) -> str:
    """The base's fingerprint; refuses a checkpoint that is not what it is given as."""

    def base_of_actors(path: str) -> Optional[str]:
        model, _ = held.model(path, options.data)
        return model.base.fingerprint if isinstance(model, ActorModel) else None

    label_files(ACTED, options.actor)  # two of one name are found here
    if base_of_actors(options.base):
        raise UserError(f"--base {options.base} has actors: give the checkpoint they were trained on")
    found = fingerprint(held.model(options.base, options.data)[0].state_dict())
    for path in options.actor:
        theirs = base_of_actors(path)
        if theirs is None:
            raise UserError(f"--actor {path} has no actors: give a checkpoint trained with --arch tg_*")
        if theirs != found:
            raise UserError(f"--actor {path} was trained on another base than {options.base}: give its own")
    for path in options.cont:
        if base_of_actors(path):
            raise UserError(f"--cont {path} has actors: give it to --actor")
    return found


def file_name(label: str) -> str:
    """What the files that are made of a model are called."""
    return label.replace(":", "-").rstrip(".")


def label_files(name: str, paths: Sequence[str]) -> Dict[str, str]:
    """Checkpoints by a short name, or by several, with the last part of their paths that tells them apart."""
    if len(paths) == 1:
        return {name: paths[0]}
    parts = [[printable(part) for part in (Path(p).stem, *(above.name for above in Path(p).parents))] for p in paths]
    for found in zip(*parts):
        if len(set(map(file_name, found))) == len(found):
            return {f"{name}:{part}": path for part, path in zip(found, paths)}
    if paths:
        raise UserError(f"the checkpoints have the same name: {', '.join(paths)}; rename them")
    return {}
