"""The native engine: a C++ library of the package's own, called through ctypes."""

from __future__ import annotations

import ctypes
import functools
import math
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_void_p
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from fairseq_tg.compiled.layout import ACTIVATIONS, ACTORS, Layout

_INTEGERS = (
    "vocabulary source_vocabulary dim encoder_dim encoder_layers decoder_layers encoder_heads decoder_heads "
    "encoder_pre_norm decoder_pre_norm activation pad eos unk actor actor_hidden"
)


class _Config(ctypes.Structure):  # engine.h's Config
    _fields_ = [(name, c_int32) for name in _INTEGERS.split()] + [
        ("encoder_scale", c_float),
        ("decoder_scale", c_float),
    ]


class _Request(ctypes.Structure):  # engine.h's Request
    _fields_ = [
        ("tokens", c_void_p),
        ("lengths", c_void_p),
        ("limits", c_void_p),
        ("prefix", c_void_p),
        ("batch", c_int),
        ("prefix_length", c_int),
        ("min_length", c_int),
        ("unk_penalty", c_float),
    ]


OUT_OF_MEMORY = "there is not enough memory for this model"


class EngineError(RuntimeError):
    """The engine is not there, or cannot do what it was asked for."""


#: The libraries that setup.py builds: for any machine, and for one with AVX2.
GENERIC, AVX2 = "_native", "_native_avx2"


def library_path(name: str) -> Path:
    return Path(__file__).parent / f"{name}{EXTENSION_SUFFIXES[0]}"


def build_failure(name: str) -> str:
    """Why setup.py could not build a library, if it tried."""
    note = Path(__file__).parent / f"{name}.failed"
    return note.read_text().strip() if note.exists() else ""


@functools.cache
def _library(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        reason = build_failure(GENERIC) or ("it is not there" if not path.exists() else str(error))
        raise EngineError(
            f"native engine: not built ({reason}); install fairseq_tg again where there is a C++ compiler"
        ) from None
    pointer = c_void_p
    for function, result, arguments in (
        ("tg_has_avx2", c_int, []),
        ("tg_new", pointer, [POINTER(_Config)]),
        ("tg_free", None, [pointer]),
        ("tg_matrix", c_int, [pointer, c_char_p, pointer, pointer, pointer, c_int, c_int]),
        ("tg_embedding", c_int, [pointer, c_char_p, pointer, pointer, c_int, c_int]),
        ("tg_positions", c_int, [pointer, c_char_p, pointer]),
        ("tg_norm", c_int, [pointer, c_char_p, pointer, pointer, c_int]),
        ("tg_connect", c_char_p, [pointer]),
        ("tg_translate", c_int, [pointer, POINTER(_Request), c_int, pointer, c_int, pointer, pointer]),
    ):
        bound = getattr(library, function)
        bound.restype, bound.argtypes = result, arguments
    return library


def best_library() -> str:
    """The name of the library for this machine's instruction set."""
    return AVX2 if library_path(AVX2).exists() and _library(library_path(GENERIC)).tg_has_avx2() else GENERIC


def described() -> str:
    """Which engine there is, in a few words: a build that failed leaves the rest of the package as it is."""
    try:
        name = best_library()
        _library(library_path(name))
    except EngineError as error:
        return str(error)
    better = build_failure(AVX2)
    return "native engine: avx2" if name == AVX2 else f"native engine: generic{better and f' (avx2: {better})'}"


def sinusoidal_positions(count: int, dim: int, pad: int) -> np.ndarray:
    """fairseq's table of positions, from the first token's on: count x dim."""
    half = dim // 2
    rates = np.exp(np.arange(half, dtype=np.float32) * np.float32(-math.log(10000) / max(half - 1, 1)))
    angles = np.arange(pad + 1, pad + 1 + count, dtype=np.float32)[:, None] * rates[None]
    table = np.zeros((count, dim), dtype=np.float32)
    table[:, :half], table[:, half : 2 * half] = np.sin(angles), np.cos(angles)
    return table


class Engine:
    """A model ready to translate token ids. It is not changed by that: any number of threads may share it."""

    def __init__(self, layout: Layout, tensors: Dict[str, np.ndarray], library: Optional[Path] = None) -> None:
        """tensors: those of `layout.tensors`, checked; library: another than the package's own for this machine."""
        self.layout = layout
        self._library = _library(library or library_path(best_library()))
        config = _Config(
            **{name: getattr(layout, name) for name, *_ in _Config._fields_ if name not in ("activation", "actor")},
            activation=ACTIVATIONS.index(layout.activation),
            actor=ACTORS.index(layout.actor),
        )
        self._model = c_void_p(self._library.tg_new(ctypes.byref(config)))
        if not self._model:
            raise EngineError(OUT_OF_MEMORY)
        self._kept: List[np.ndarray] = []  # what the engine reads in place
        for name, (rows, columns, _) in layout.matrices().items():
            weight, scale = tensors[f"{name}.weight"], tensors.get(f"{name}.scale")
            addresses = (_at(weight), _at(scale), _at(tensors.get(f"{name}.bias")))
            self._give(self._library.tg_matrix, name.encode(), *addresses, rows, columns)
        for side in ("encoder", "decoder"):
            name = "output" if side in layout.shared_embeddings else f"{side}.embedding"
            weight, scale = tensors[f"{name}.weight"], tensors.get(f"{name}.scale")
            self._kept.append(weight)
            self._give(self._library.tg_embedding, f"{side}.embedding".encode(), _at(weight), _at(scale), *weight.shape)
            dim = weight.shape[1]
            kind = getattr(layout, f"{side}_position_kind")
            count = layout.source_positions if side == "encoder" else layout.target_positions
            if kind != "none":
                table = (
                    sinusoidal_positions(count, dim, layout.pad)
                    if kind == "sinusoidal"
                    else tensors[f"{side}.positions"]
                )
                self._kept.append(table)
                self._give(self._library.tg_positions, f"{side}.positions".encode(), _at(table))
        for name, size in layout.norms().items():
            self._give(
                self._library.tg_norm, name.encode(), _at(tensors[f"{name}.weight"]), _at(tensors[f"{name}.bias"]), size
            )
        missing = self._library.tg_connect(self._model)
        if missing is not None:
            raise EngineError(f"the model has no {missing.decode()}")

    def _give(self, function: Callable[..., int], *arguments: Any) -> None:
        if function(self._model, *arguments):
            raise EngineError(OUT_OF_MEMORY)

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self._library.tg_free(self._model)

    def translate(
        self,
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        threads: int = 1,
        min_length: int = 1,
        unk_penalty: float = 0.0,
        scores: bool = False,
        prefixes: Optional[np.ndarray] = None,
    ) -> Tuple[List[List[int]], Optional[List[List[float]]]]:
        """Translate a batch greedily.

        Args:
            sources: token ids of each sentence, ending with eos.
            limits: the most tokens of each translation, eos not counted.
            threads: how many share each product.
            min_length: the least tokens, eos not counted.
            unk_penalty: taken from the unknown word's log-probability.
            scores: whether to give each token's log-probability, too.
            prefixes: the first tokens of each translation, a row each, with pad where there is no more.

        Returns:
            Token ids of each translation, ending with eos; the tokens' scores, or None.
        """
        if not sources:
            return [], [] if scores else None
        if len(limits) != len(sources) or min(limits) < 0 or threads < 1:
            raise EngineError(f"{len(limits)} limits for {len(sources)} sentences, {threads} threads")
        longest, most = max(map(len, sources)), max(limits)
        if longest > self.layout.source_positions or most >= self.layout.target_positions:
            raise EngineError(
                f"{longest} tokens, translations of up to {most}: the model's limits are "
                f"{self.layout.source_positions} and {self.layout.target_positions - 1}"
            )
        tokens = np.concatenate([np.asarray(source, dtype=np.int32) for source in sources])
        if min(map(len, sources)) < 1 or tokens.min() < 0 or tokens.max() >= self.layout.source_vocabulary:
            raise EngineError("an empty sentence, or a token that is not in the dictionary")
        lengths = np.array([len(source) for source in sources], dtype=np.int32)
        limit = np.array(limits, dtype=np.int32)
        stride = most + 1
        out = np.empty((len(sources), stride), dtype=np.int32)
        out_lengths = np.zeros(len(sources), dtype=np.int32)
        log_probs = np.empty((len(sources), stride), dtype=np.float32) if scores else None
        prefix = None if prefixes is None else np.ascontiguousarray(prefixes, dtype=np.int32)
        if prefix is not None and (
            prefix.ndim != 2
            or len(prefix) != len(sources)
            or (prefix.size and not 0 <= prefix.min() <= prefix.max() < self.layout.vocabulary)
        ):
            raise EngineError("prefixes that are not of this batch, or not of the dictionary")
        request = _Request(
            _at(tokens),
            _at(lengths),
            _at(limit),
            _at(prefix),
            len(sources),
            0 if prefix is None else prefix.shape[1],
            min_length,
            unk_penalty,
        )
        failed = self._library.tg_translate(
            self._model, ctypes.byref(request), threads, _at(out), stride, _at(out_lengths), _at(log_probs)
        )
        if failed:
            raise EngineError(f"not enough memory for a batch of {len(sources)} sentences: make it smaller")
        targets = [row[:length].tolist() for row, length in zip(out, out_lengths)]
        if log_probs is None:
            return targets, None
        return targets, [row[:length].tolist() for row, length in zip(log_probs, out_lengths)]


def _at(array: Optional[np.ndarray]) -> Optional[int]:
    """The address of an array's memory, null for none."""
    return None if array is None else array.ctypes.data
