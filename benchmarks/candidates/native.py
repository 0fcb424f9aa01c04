"""The engine that was kept, fairseq_tg's own, behind the interface of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List

from fairseq_tg.compiled import model_file
from fairseq_tg.compiled.translator import Translator


def build(model: Any, directory: Path, int8: bool) -> None:
    from fairseq_tg.compiled.extract import extract, quantize

    layout, tensors = extract(model)
    tensors = quantize(tensors, layout) if int8 else tensors
    text = model_file.TextOptions("xx", "yy")
    source, target = model.encoder.dictionary.symbols, model.decoder.dictionary.symbols
    compiled = model_file.CompiledModel(layout, text, source, target, b"", tensors, int8)
    model_file.write(str(directory / "model.tg"), compiled)


class Engine:
    def __init__(self, directory: Path, threads: int) -> None:
        self.translator = Translator.load(str(directory / "model.tg"), threads=threads)

    def translate(self, tokens: List[int], max_len: int) -> List[int]:
        return self.translator._engine.translate([tokens], [max_len], self.translator.threads)[0][0]
