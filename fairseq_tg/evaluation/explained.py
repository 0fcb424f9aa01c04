"""The report's examples as pictures: what the actors did with each sentence."""

from __future__ import annotations

from typing import Any, Dict, Sequence

from fairseq_tg.compiled.engine import EngineError
from fairseq_tg.compiled.explain import explain_tokens
from fairseq_tg.compiled.extract import extract, unsupported
from fairseq_tg.compiled.model_file import CompiledModel, TextOptions
from fairseq_tg.compiled.pictures import as_svg
from fairseq_tg.compiled.translator import Translator
from fairseq_tg.evaluation.examples import Example
from fairseq_tg.evaluation.subset import Subset


def picture_name(example: Example) -> str:
    return f"example-{example.index}.svg"


def draw_examples(model: Any, task: Any, subset: Subset, examples: Sequence[Example]) -> Dict[str, str]:
    """SVG by file name; none of a model that the native engine does not know, or where it is not built."""
    ((source_lang, target_lang),) = task.pairs
    marks = task.compiled_marks()
    if not examples or unsupported(model) or marks is None:
        return {}
    layout, tensors = extract(model)
    source, target = list(task.source_dictionary.symbols), list(task.target_dictionary.symbols)
    text = TextOptions(source_lang, target_lang, **marks)
    try:
        translator = Translator(CompiledModel(layout, text, source, target, b"", tensors, False))
        return {
            picture_name(example): as_svg(
                explain_tokens(translator, [[translator.marked(list(tokens)[:-1])]], example.source, subset.words)
            )
            for example in examples
            for tokens in [subset.sources[example.index]]
        }
    except EngineError:
        return {}
