"""From a model, its dictionaries and its subword model to one compiled file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, List, Optional, Tuple

from fairseq.data import Dictionary

from fairseq_tg import __version__
from fairseq_tg.compiled import model_file
from fairseq_tg.compiled.engine import Shortlist
from fairseq_tg.compiled.extract import extract_lazily, unsupported
from fairseq_tg.compiled.model_file import CompiledModel, TextOptions
from fairseq_tg.compiled.options import Compilation
from fairseq_tg.compiled.quantize import quantize
from fairseq_tg.compiled.text import TextError, text_functions
from fairseq_tg.errors import UserError
from fairseq_tg.files import replacing
from fairseq_tg.loading.checkpoints import fingerprint, split_tensors
from fairseq_tg.subwords import guess_subwords

SUBWORD_FLAGS = ("sentencepiece_model", "bpe_codes", "no_subword")


def read_subword_model(symbols: List[str], options: Compilation) -> Tuple[str, bytes]:
    """The kind of subword model and its bytes, if they are those of the dictionary."""
    sentencepiece_model, bpe_codes = options.sentencepiece_model, options.bpe_codes
    given = [f"--{name.replace('_', '-')}" for name in SUBWORD_FLAGS if getattr(options, name)]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)} exclude each other: give one")
    kind = "sentencepiece" if sentencepiece_model else "subword_nmt" if bpe_codes else "none"
    guessed = guess_subwords(symbols) or "none"
    if not given and guessed != "none":
        flag = "--sentencepiece-model FILE" if guessed == "sentencepiece" else "--bpe-codes FILE"
        raise UserError(
            f"no subword model, and the dictionary is made of {guessed}'s pieces: give {flag} (or --no-subword, "
            "if lines will be in such pieces already)"
        )
    path = sentencepiece_model or bpe_codes
    if path is None:
        return "none", b""
    if guessed != kind:
        raise UserError(f"'{path}' is not the dictionary's subword model: that has the marks of {guessed}")
    try:
        return kind, Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the subword model '{path}': {error.strerror}") from None


def can_compile(model: Any, task: Any) -> bool:
    return unsupported(model) is None and task.compiled_marks() is not None


def compile_model(
    model: Any, task: Any, options: Compilation, make_shortlist: Optional[Callable[[str], Shortlist]] = None
) -> CompiledModel:
    """Write the compiled file of a model, with or without actors, whose task has its dictionaries.

    make_shortlist: from the base's fingerprint; None for no shortlist.
    """
    source: Dictionary = task.source_dictionary
    kind, subword_model = read_subword_model(source.symbols, options)
    marks = task.compiled_marks()
    if marks is None:
        raise UserError(
            "this model cannot be compiled: what symbols it has of its languages is not known to compiled ones; "
            "fairseq-interactive translates with it"
        )
    text = TextOptions(task.cfg.source_lang or "", task.cfg.target_lang or "", kind, options.tokenizer, **marks)
    try:
        text_functions(text, subword_model)
    except TextError as error:
        raise UserError(str(error)) from None
    base_fingerprint = fingerprint(
        split_tensors(model.state_dict())[0]
    )  # before pages are given back, to read them once
    shortlist = make_shortlist(base_fingerprint) if make_shortlist else None
    layout, tensors = extract_lazily(model)
    compiled = CompiledModel(
        layout=layout,
        text=text,
        source_symbols=list(source.symbols),
        target_symbols=list(task.target_dictionary.symbols),
        subword_model=subword_model,
        tensors=quantize(tensors, layout) if options.int8 else tensors,
        int8=options.int8,
        base_fingerprint=base_fingerprint,
        made_with=__version__,
        shortlist=shortlist,
    )
    with replacing(options.out) as temporary:
        model_file.write(temporary, compiled)
    return compiled
