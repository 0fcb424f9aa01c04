"""Between a line of text and symbols of a dictionary, as fairseq's --bpe and --tokenizer do it."""

from __future__ import annotations

import io
from typing import Any, Callable, Tuple

from fairseq_tg.compiled.model_file import TextOptions

Function = Callable[[str], str]
#: Words whose subwords are kept
MOST_CACHED = 100_000


class TextError(ValueError):
    """A subword model or a library for it that is not there or not usable."""


def text_functions(options: TextOptions, model: bytes) -> Tuple[Function, Function]:
    """encode: a line to symbols with spaces between them; decode: the way back."""
    return with_tokenizer(options, *subword_functions(options, model))


def subword_functions(options: TextOptions, model: bytes) -> Tuple[Function, Function]:
    """The part of both that is the same in all languages."""
    return _SUBWORDS[options.subword](model)


def with_tokenizer(options: TextOptions, segment: Function, join: Function) -> Tuple[Function, Function]:
    """Both with the tokenizers of a pair of languages."""
    if options.tokenizer == "none":
        return segment, join
    tokenize, detokenize = _moses(options)
    return (lambda line: segment(tokenize(line))), (lambda symbols: detokenize(join(symbols)))


def _none(model: bytes) -> Tuple[Function, Function]:
    return (lambda line: line), (lambda symbols: symbols)


def _sentencepiece(model: bytes) -> Tuple[Function, Function]:
    processor: Any = _library("sentencepiece").SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        if "bad_alloc" in str(error):  # it says so of some of its allocations; of others it raises the other error
            raise MemoryError(str(error)) from None
        raise TextError(f"the subword model is not one of sentencepiece's ({error})") from None
    return (
        lambda line: " ".join(processor.Encode(line, out_type=str)),
        lambda symbols: symbols.replace(" ", "").replace("\u2581", " ").strip(),
    )


def _subword_nmt(model: bytes) -> Tuple[Function, Function]:
    _library("subword_nmt")
    from subword_nmt.apply_bpe import BPE

    try:
        bpe = BPE(io.StringIO(model.decode()))
    except (SystemExit, ValueError) as error:
        raise TextError(f"the BPE codes are not subword-nmt's ({error})") from None

    def encode(line: str) -> str:
        if len(bpe.cache) > MOST_CACHED:  # it keeps every word that it has ever seen
            bpe.cache = {}
        return bpe.process_line(line)

    return encode, lambda symbols: (symbols + " ").replace("@@ ", "").rstrip()


def _moses(options: TextOptions) -> Tuple[Function, Function]:
    sacremoses = _library("sacremoses")
    tokenizer = sacremoses.MosesTokenizer(options.source_lang)
    detokenizer = sacremoses.MosesDetokenizer(options.target_lang)
    return (
        lambda line: tokenizer.tokenize(line, aggressive_dash_splits=True, return_str=True),
        lambda tokens: detokenizer.detokenize(tokens.split()),
    )


_SUBWORDS = {"none": _none, "sentencepiece": _sentencepiece, "subword_nmt": _subword_nmt}


def _library(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise TextError(f"this model's text needs {name}: pip install {name.replace('_', '-')}") from None
