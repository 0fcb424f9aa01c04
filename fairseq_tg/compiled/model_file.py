"""The compiled file: safetensors with JSON metadata, one hash over all of it, and no code.

It holds the weights (float32 or int8), the actors', both dictionaries, the subword model and what to do with text.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import zipfile
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, BinaryIO, Dict, Iterable, List, Mapping, Optional, Tuple

import numpy as np
from safetensors import SafetensorError, safe_open

from fairseq_tg.compiled.engine import Shortlist
from fairseq_tg.compiled.layout import ACTED, Layout, Shape
from fairseq_tg.compiled.layouts import FIRST_FAMILY, layout_from_json, layout_to_json
from fairseq_tg.compiled.made import Made, Tensors
from fairseq_tg.files import parse_json
from fairseq_tg.memory import MappedFiles

METADATA_KEY = "fairseq_tg.compiled"  # one key, because safetensors does not keep the order of several
#: Of the files that this version reads, by what they may hold: Transformers alone, any family, many languages, a
#: shortlist, matrices with actors
FORMATS = (1, 2, 3, 4, 5)
#: Files beside the weights, as tensors of bytes.
DICTIONARIES = ("source.dictionary", "target.dictionary")
SUBWORD_MODEL = "subword.model"
SHORTLIST = ("shortlist.starts", "shortlist.tokens")
ALIGNMENT = 64  # of the first tensor in the file; larger items come first, so that all can be used where they are
#: Of language symbols: see languages.py
LANGUAGE_PLACES = ("", "behind", "behind bos", "instead")
SUBWORDS, TOKENIZERS = ("none", "sentencepiece", "subword_nmt"), ("none", "moses")

Kind = Tuple[str, Shape]  # of a tensor: its type and shape
Kinds = Mapping[str, Kind]


class CompiledFileError(ValueError):
    """A file that is not a compiled model, or not a whole one."""


@dataclass(frozen=True)
class TextOptions:
    """How a line becomes symbols of the dictionary, and how symbols become a line."""

    source_lang: str
    target_lang: str
    subword: str = "none"  # one of SUBWORDS
    tokenizer: str = "none"  # one of TOKENIZERS
    # Of a model of many languages, whose pair is said when it translates:
    languages: str = ""  # all of them, with commas between
    language_symbol: str = ""  # of a language, as in __{}__
    source_symbol: str = ""  # whose symbol a source begins with: src, tgt or none
    target_symbol: str = ""  # and a target
    language_place: str = ""  # where these symbols are, if it is not there: see languages.py


@dataclass(frozen=True)
class CompiledModel:
    layout: Layout
    text: TextOptions
    source_symbols: List[str]
    target_symbols: List[str]
    subword_model: bytes
    tensors: Tensors
    int8: bool
    base_fingerprint: str = ""
    made_with: str = ""
    shortlist: Optional[Shortlist] = None


def write(path: str, model: CompiledModel) -> None:
    """Write a compiled file to `path` (the caller moves it into place)."""
    files = {SUBWORD_MODEL: _bytes(model.subword_model), **dict(zip(SHORTLIST, model.shortlist or ()))}
    for name, symbols in zip(DICTIONARIES, (model.source_symbols, model.target_symbols)):
        files[name] = _bytes("\n".join(symbols).encode())
    text = json.dumps(
        {
            "format": _format(model),
            "made_with": model.made_with,
            "base_fingerprint": model.base_fingerprint,
            "int8": model.int8,
            "layout": layout_to_json(model.layout),
            "text": {name: value for name, value in asdict(model.text).items() if value},
        },
        sort_keys=True,
    )
    makers = {name: partial(tensors.__getitem__, name) for tensors in (model.tensors, files) for name in tensors}
    _save(path, text, Made(makers), {**model.layout.tensors(model.int8), **_kinds(files)})


def _format(model: CompiledModel) -> int:
    """The first that has room for it, so that older versions read what they can."""
    if model.layout.acted:
        return 5
    if model.shortlist is not None:
        return 4
    return 3 if model.text.languages else 1 if model.layout.family == FIRST_FAMILY else 2


def _save(path: str, text: str, tensors: Tensors, kinds: Optional[Kinds] = None) -> None:
    """Write safetensors' format tensor by tensor, each looked up once and let go of: all would be another model.

    kinds: of the tensors, if they are made when they are looked up.
    """
    kinds = _kinds(tensors) if kinds is None else kinds
    header: Dict[str, Any] = {"__metadata__": {}}
    starts, end = {}, 0
    for name in sorted(kinds, key=lambda name: (-np.dtype(kinds[name][0]).itemsize, name)):
        dtype, shape = np.dtype(kinds[name][0]), kinds[name][1]
        starts[name], end = end, end + dtype.itemsize * math.prod(shape)
        kind = {"i": "I", "u": "U", "f": "F"}[dtype.kind] + str(8 * dtype.itemsize)
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [starts[name], end]}

    def head(digest: str) -> bytes:
        header["__metadata__"][METADATA_KEY] = json.dumps({"model": text, "sha256": digest})
        content = json.dumps(header, separators=(",", ":")).encode()
        content += b" " * (-(len(content) + 8) % ALIGNMENT)
        return len(content).to_bytes(8, "little") + content

    digest, files = hashlib.sha256(text.encode()), MappedFiles()
    first = len(head(digest.hexdigest()))  # as long as with any other digest

    def put(name: str, file: BinaryIO) -> None:
        tensor = tensors[name]
        if _kind(tensor) != kinds[name]:
            raise ValueError(f"'{name}' is {_kind(tensor)} and not {kinds[name]}")
        tensor = np.ascontiguousarray(tensor)
        _digest(digest, name, tensor)
        file.seek(first + starts[name])
        file.write(tensor.reshape(-1).view(np.uint8).data)
        files.page_out(tensor.ctypes.data, tensor.nbytes)

    with open(path, "wb") as file:
        for name in sorted(kinds):
            put(name, file)
        file.seek(0)
        file.write(head(digest.hexdigest()))


def _mapped(path: str, names: Iterable[str]) -> Dict[str, np.ndarray]:
    """The tensors of a file that safetensors has found to be whole, mapped; copied where they do not lie well."""
    content = np.memmap(path, dtype=np.uint8, mode="r")
    size = int.from_bytes(content[:8].tobytes(), "little")
    header = json.loads(content[8 : 8 + size].tobytes())
    tensors = {}
    for name in names:
        about = header[name]
        start, end = (8 + size + offset for offset in about["data_offsets"])
        kind = {"I": "i", "U": "u", "F": "f"}[about["dtype"][0]] + str(int(about["dtype"][1:]) // 8)
        part = content[start:end]
        aligned = part if part.ctypes.data % np.dtype(kind).itemsize == 0 else part.copy()
        tensors[name] = np.asarray(aligned).view(kind).reshape(about["shape"])
    return tensors


def read(path: str) -> CompiledModel:
    """Read a compiled file; whatever is wrong with it is said in one sentence."""
    if not os.path.isfile(path):
        raise CompiledFileError(f"no compiled model at '{path}': make one with fairseq-tg compile TG.pt {path}")
    if zipfile.is_zipfile(path):  # as torch saves them
        raise CompiledFileError(f"'{path}' is a checkpoint: compile it, with fairseq-tg compile {path} model.tg")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if METADATA_KEY not in metadata:
                raise CompiledFileError(f"'{path}' is no compiled model: give a file that fairseq-tg compile made")
            sealed = parse_json(metadata[METADATA_KEY])
            raw = parse_json(sealed["model"])
            if raw.get("format") not in FORMATS:
                raise CompiledFileError(
                    f"'{path}' has format {raw.get('format')}, this version reads up to {max(FORMATS)}: compile it "
                    f"again, or use the fairseq_tg that made it ({raw.get('made_with')})"
                )
            tensors = _mapped(path, file.keys())
        if _hash(sealed["model"], tensors) != sealed["sha256"]:
            raise CompiledFileError(
                f"'{path}' is damaged: its contents have not the hash they were written with; compile it again"
            )
        return _checked(raw, tensors)
    except CompiledFileError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError, MemoryError) as error:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            raise CompiledFileError(f"there is not enough memory to read '{path}'") from None
        reason = " ".join(str(error).split())
        raise CompiledFileError(
            f"'{path}' is no compiled model, or a damaged one ({reason}): compile it again"
        ) from None


def _checked(raw: Dict[str, Any], tensors: Dict[str, np.ndarray]) -> CompiledModel:
    """The model, if every tensor is as the layout says: the engine trusts it from here on."""
    layout = layout_from_json(raw["layout"])
    text = TextOptions(**{"source_lang": "", "target_lang": "", **raw["text"]})
    if type(raw["int8"]) is not bool or not all(type(value) is str for value in asdict(text).values()):
        raise ValueError(f"text options {raw['text']}")
    if text.subword not in SUBWORDS or text.tokenizer not in TOKENIZERS:
        raise ValueError(f"subwords of {text.subword!r}, a tokenizer {text.tokenizer!r}")
    if text.language_place not in LANGUAGE_PLACES:
        raise ValueError(f"language symbols {text.language_place!r}")
    for name in (*DICTIONARIES, SUBWORD_MODEL):
        if tensors[name].dtype != np.uint8 or tensors[name].ndim != 1:
            raise ValueError(f"'{name}' is no text")
    source, target = (bytes(tensors.pop(name)).decode().split("\n") for name in DICTIONARIES)
    if len(source) != layout.source_vocabulary or len(target) != layout.vocabulary:
        raise ValueError(f"dictionaries of {len(source)} and {len(target)} symbols")
    subword_model = bytes(tensors.pop(SUBWORD_MODEL))
    shortlist = _take_shortlist(tensors, layout)
    found = _kinds(tensors)
    expected = layout.tensors(raw["int8"])
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            raise ValueError(f"'{name}' is {found.get(name)} and not {expected.get(name)}")
    about = raw["int8"], raw["base_fingerprint"], raw["made_with"]
    return CompiledModel(layout, text, source, target, subword_model, tensors, *about, shortlist)


def _take_shortlist(tensors: Dict[str, np.ndarray], layout: Layout) -> Optional[Shortlist]:
    if not tensors.keys() & set(SHORTLIST):
        return None
    found = Shortlist(*(tensors.pop(name) for name in SHORTLIST))
    if any(array.dtype != np.int32 or array.ndim != 1 for array in found):
        raise ValueError("a shortlist that is no list of numbers")
    starts, tokens = found
    if len(starts) != layout.source_vocabulary + 1 or starts[0] != 0 or starts[-1] != len(tokens):
        raise ValueError(f"a shortlist for {len(starts) - 1} source tokens")
    if (np.diff(starts) < 0).any() or (len(tokens) and not 0 <= tokens.min() <= tokens.max() < layout.vocabulary):
        raise ValueError("a shortlist of tokens that are not in the dictionary")
    return found


def _bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8)


def _hash(text: str, tensors: Tensors) -> str:
    digest, files = hashlib.sha256(text.encode()), MappedFiles()
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name])
        _digest(digest, name, tensor)
        files.page_out(tensor.ctypes.data, tensor.nbytes)
    return digest.hexdigest()


def _digest(digest: Any, name: str, tensor: np.ndarray) -> None:
    digest.update(f"\n{name} {tensor.dtype} {tensor.shape}\n".encode())
    digest.update(tensor.reshape(-1).view(np.uint8).data)


def _kind(tensor: np.ndarray) -> Kind:
    return str(tensor.dtype), tensor.shape


def _kinds(tensors: Tensors) -> Kinds:
    return {name: _kind(tensor) for name, tensor in tensors.items()}


def summary(model: CompiledModel) -> Tuple[str, int]:
    """A few words on a model, and how many parameters it has."""
    actor = f"{model.layout.actor} actors" if model.layout.actor else "no actors"
    shapes = {name: shape for name, (_, shape) in model.layout.tensors(model.int8).items()}
    count = sum(math.prod(shapes[name]) for name in shapes if not name.endswith(".scale") and ACTED not in name)
    text = model.text
    pair = (
        f"{text.source_lang}-{text.target_lang}" if text.source_lang else f"{text.languages.count(',') + 1} languages"
    )
    shortlist = ", a shortlist" if model.shortlist else ""
    return f"{pair}, {actor}, {'int8' if model.int8 else 'float32'}{shortlist}", count
