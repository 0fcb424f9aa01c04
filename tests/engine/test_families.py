"""LSTMs and ConvS2S of random sizes and weights in the native engine alone, for a sanitizer to watch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_tg.compiled.engine import Engine, SearchSettings
from fairseq_tg.compiled.fconv_layout import FConvLayout
from fairseq_tg.compiled.layout import ACTORS, Layout
from fairseq_tg.compiled.library import GENERIC, library_path
from fairseq_tg.compiled.lstm_layout import LSTMLayout
from tests.engine.test_engine import (
    EOS,
    PAD,
    TOLERANCE,
    UNK,
    assert_alike,
    random_batch,
    random_tensors,
    small_layout,
)

COMMON: Dict[str, Any] = {
    "vocabulary": 23, "source_vocabulary": 19, "source_positions": 12, "target_positions": 10, "pad": PAD, "eos": EOS,
    "unk": UNK, "output_bias": True,
}  # fmt: skip
LSTM: Dict[str, Any] = {
    "layers": 2, "encoder_embedding": 9, "encoder_hidden": 7, "bidirectional": True, "embedding": 11, "hidden": 13,
    "out_embedding": 8, "attention": True, "residuals": False,
}  # fmt: skip
FCONV: Dict[str, Any] = {
    "embedding": 12, "encoder_channels": (9, 17), "encoder_widths": (3, 2), "encoder_residuals": (1, 2),
    "decoder_channels": (10, 10, 7), "decoder_widths": (3, 1, 4), "decoder_residuals": (0, 1, 3),
    "attention_layers": (0, 2), "out_embedding": 5,
}  # fmt: skip


def lstm_layout(**changes: Any) -> Layout:
    return LSTMLayout(**{**COMMON, **LSTM, **changes})


def fconv_layout(**changes: Any) -> Layout:
    actors = {"actor_layers": (0, 2)} if changes.get("actor") else {}
    return FConvLayout(**{**COMMON, **FCONV, **actors, **changes})


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("actor", ACTORS)
@pytest.mark.parametrize("build", [lstm_layout, fconv_layout])
def test_actors(library: Path, build: Any, actor: str, rank: int, int8: bool) -> None:
    layout = build(actor=actor, actor_hidden=rank, actor_rank=rank)
    found = assert_alike(library, layout, random_tensors(layout, int8))
    assert found[1] == [EOS] and max(map(len, found)) > 2  # some end at their limit, some by themselves


@st.composite
def lstm_layouts(draw: st.DrawFn) -> Layout:
    sizes = ("encoder_embedding", "encoder_hidden", "embedding", "hidden", "out_embedding")
    changes: Dict[str, Any] = {name: draw(st.integers(1, 40)) for name in sizes}
    flags = ("bidirectional", "attention", "residuals", "output_bias")
    changes |= {name: draw(st.booleans()) for name in flags}
    changes["layers"] = draw(st.integers(1, 3))
    if changes["attention"] and draw(st.booleans()):
        changes |= {"actor": draw(st.sampled_from(ACTORS[1:])), "actor_rank": draw(st.integers(0, 9))}
    return lstm_layout(**changes)


@st.composite
def fconv_layouts(draw: st.DrawFn) -> Layout:
    changes: Dict[str, Any] = {name: draw(st.integers(1, 40)) for name in ("embedding", "out_embedding")}
    for side in ("encoder", "decoder"):
        channels = tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)))
        changes[f"{side}_channels"] = channels
        changes[f"{side}_widths"] = tuple(draw(st.integers(1, 6)) for _ in channels)
        changes[f"{side}_residuals"] = tuple(draw(st.integers(0, layer + 1)) for layer in range(len(channels)))
    attention = tuple(sorted(draw(st.sets(st.integers(0, len(channels) - 1)))))
    changes["attention_layers"] = attention
    if attention and draw(st.booleans()):
        changes |= {"actor": draw(st.sampled_from(ACTORS[1:])), "actor_rank": draw(st.integers(0, 9))}
        changes["actor_layers"] = attention[:: draw(st.integers(1, 2))]
    return fconv_layout(**changes)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    layout=lstm_layouts() | fconv_layouts(),
    int8=st.booleans(),
    batch=st.integers(1, 9),
    beam=st.integers(2, 12),
    seed=st.integers(0, 9),
)
def test_any_size(library: Path, layout: Layout, int8: bool, batch: int, beam: int, seed: int) -> None:
    tensors = random_tensors(layout, int8, seed)
    assert_alike(library, layout, tensors, batch)
    sources, limits = random_batch(layout, batch, seed)
    expected, found = (
        Engine(layout, tensors, path).search(sources, limits, SearchSettings(beam=beam))
        for path in (library_path(GENERIC), library)
    )
    for theirs, ours in zip(expected, found):
        if not np.isfinite(theirs[0].score):
            continue
        assert abs(theirs[0].score - ours[0].score) < TOLERANCE
        assert all(0 <= token < layout.vocabulary for h in ours for token in h.tokens)


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("build", [lstm_layout, fconv_layout])
def test_weights_that_are_no_numbers(library: Path, build: Any, value: float) -> None:
    layout = build(actor="rnn")
    for name in ("encoder.1.input.bias", "encoder.1.conv.bias", "decoder.0.cell.bias", "decoder.0.conv.bias"):
        tensors = random_tensors(layout, int8=False)
        if name in tensors:
            tensors[name][::2] = value
            sources, limits = random_batch(layout, 5)
            for found in Engine(layout, tensors, library).search(sources, limits, SearchSettings(beam=3)):
                assert all(0 <= token < layout.vocabulary for h in found for token in h.tokens)


@pytest.mark.parametrize("build", [lstm_layout, fconv_layout])
def test_threads_share_an_engine(library: Path, build: Any) -> None:
    layout = build(actor="rnn")
    engine = Engine(layout, random_tensors(layout, int8=False), library)
    batches = [random_batch(layout, 5, seed) for seed in range(12)]
    settings = SearchSettings(beam=3)
    expected = [engine.search(*batch, settings) for batch in batches]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda batch: engine.search(*batch, settings), batches)) == expected


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("build", [small_layout, lstm_layout, fconv_layout])
def test_threads_of_one_search(library: Path, build: Any, int8: bool) -> None:
    """Each searches some of the sentences, while other searches, of as many threads, go on beside it."""
    layout = build(actor="rnn", **({"actor_hidden": 5, "actor_layers": (0, 1)} if build is small_layout else {}))
    engine = Engine(layout, random_tensors(layout, int8), library)
    batches = [random_batch(layout, 9, seed) for seed in range(4)]
    settings = SearchSettings(beam=3)
    expected = [engine.search(*batch, settings) for batch in batches]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda batch: engine.search(*batch, settings, threads=3), batches)) == expected
