"""The report's examples as pictures: what the actors did with each sentence."""

from __future__ import annotations

import os
import tempfile
from typing import Dict, Sequence

from fairseq_tg.compiled.compile import can_compile, compile_model
from fairseq_tg.compiled.engine import EngineError
from fairseq_tg.compiled.explain import explain_tokens
from fairseq_tg.compiled.options import Compilation
from fairseq_tg.compiled.pictures import as_svg
from fairseq_tg.compiled.translator import Translator
from fairseq_tg.evaluation.examples import Example
from fairseq_tg.evaluation.held import Held
from fairseq_tg.evaluation.subset import Subset


def picture_name(example: Example) -> str:
    return f"example-{example.index}.svg"


def draw_examples(held: Held, path: str, data: str, subset: Subset, examples: Sequence[Example]) -> Dict[str, str]:
    """SVG by file name; none of a model that the native engine does not know, or where it is not built."""
    held.make_room()  # of weights that were joined for torch
    if not examples or not can_compile(*held.model(path, data)):
        return {}
    with tempfile.TemporaryDirectory() as directory:
        compiled = os.path.join(directory, "model.tg")
        compile_model(*held.model(path, data), Compilation(path, compiled, no_subword=True))
        held.make_room()
        return _draw(compiled, subset, examples)


def _draw(compiled: str, subset: Subset, examples: Sequence[Example]) -> Dict[str, str]:
    try:
        translator = Translator.load(compiled, alone=True)
        return {
            picture_name(example): as_svg(
                explain_tokens(translator, [[translator.marked(list(tokens)[:-1])]], example.source, subset.words)
            )
            for example in examples
            for tokens in [subset.sources[example.index]]
        }
    except EngineError:
        return {}
