"""The native engine alone, on models of random sizes and weights: every path through it, for a sanitizer to watch.

Each library gives what the package's generic one gives. Beside that, these tests are there for what they touch: run by
`make test-sanitizers`, an access out of bounds, undefined behaviour or a race ends them.
"""

from __future__ import annotations

import ctypes
import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_tg.compiled.engine import Engine, SearchSettings
from fairseq_tg.compiled.layout import ACTIVATIONS, ACTORS, Layout
from fairseq_tg.compiled.library import GENERIC, library_path
from fairseq_tg.compiled.transformer_layout import TransformerLayout
from tests.engine.cases import greedy

PAD, EOS, UNK = 1, 2, 3
TOLERANCE = 2e-3  # of log-probabilities; an int8 activation on the edge between two steps may fall to either side
Tensors = Dict[str, np.ndarray]
SMALL: Dict[str, Any] = {
    "vocabulary": 23, "source_vocabulary": 19, "dim": 12, "encoder_dim": 20, "encoder_ffn": 17, "decoder_ffn": 33,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_heads": 2, "decoder_heads": 3, "encoder_pre_norm": False,
    "decoder_pre_norm": False, "activation": "relu", "encoder_scale": 2.0, "decoder_scale": 1.5, "source_positions": 12,
    "target_positions": 10, "pad": PAD, "eos": EOS, "unk": UNK, "encoder_position_kind": "sinusoidal",
    "decoder_position_kind": "learned",
}  # fmt: skip


def small_layout(**changes: Any) -> Layout:
    return TransformerLayout(**{**SMALL, **changes})


def random_tensors(layout: Layout, int8: bool, seed: int = 0) -> Tensors:
    """Weights that keep activations as large as they were: larger ones would make differences of rounding grow."""
    generator = np.random.default_rng(seed)
    tensors: Tensors = {}
    for name, (kind, shape) in layout.tensors(int8).items():
        if kind == "int8":
            tensors[name] = generator.integers(-127, 128, size=shape, dtype=np.int8)
        elif name.endswith(".scale"):
            columns = tensors[name.replace(".scale", ".weight")].shape[1]
            tensors[name] = (generator.uniform(0.5, 1.5, size=shape) / (73 * np.sqrt(columns))).astype(np.float32)
        else:
            spread = 1 / np.sqrt(shape[1]) if len(shape) == 2 else 0.3
            mean = 1.0 if name.endswith("norm.weight") else 0.0
            tensors[name] = generator.normal(mean, spread, size=shape).astype(np.float32)
    return tensors


def random_batch(layout: Layout, count: int, seed: int = 0) -> Tuple[List[List[int]], List[int]]:
    """Sentences and limits: the longest, the shortest and what lies between."""
    generator = np.random.default_rng(seed)
    lengths, limits = (
        [most - 1, 0, *generator.integers(0, most, size=count)][:count]
        for most in (layout.source_positions, layout.target_positions)
    )
    return [[*generator.integers(4, layout.source_vocabulary, size=n).tolist(), EOS] for n in lengths], limits


Result = Tuple[List[List[int]], Optional[List[List[float]]]]


def assert_near(expected: Result, found: Result) -> None:
    """Tokens and scores agree, up to where two tokens of almost one score change places: the order of sums differs."""
    for a, x, b, y in zip(*expected, *found):
        assert len(a) == len(x) and len(b) == len(y)
        same = next((i for i, pair in enumerate(zip(a, b)) if pair[0] != pair[1]), min(len(a), len(b)) - 1) + 1
        np.testing.assert_allclose(x[:same], y[:same], atol=TOLERANCE)


def assert_alike(
    library: Path, layout: Layout, tensors: Tensors, batch: int = 7, threads: int = 1, **options: Any
) -> List[List[int]]:
    """A library gives the tokens and scores of the package's generic one: by itself, and token by token of those."""
    sources, limits = random_batch(layout, batch)
    expected = greedy(Engine(layout, tensors, library_path(GENERIC)), sources, limits, scores=True, **options)
    engine = Engine(layout, tensors, library)
    found = greedy(engine, sources, limits, threads, scores=True, **options)
    assert_near(expected, found)
    longest = max(map(len, expected[0]))
    prefixes = np.array([tokens + [PAD] * (longest - len(tokens)) for tokens in expected[0]])
    forced = greedy(engine, sources, limits, threads, scores=True, **{**options, "prefixes": prefixes})
    assert forced[0] == expected[0]
    assert_near(expected, forced)
    assert greedy(engine, sources, limits, threads, **options)[0] == found[0]  # without scores it ends earlier
    if "prefixes" not in options:
        for i in range(batch):
            single = greedy(engine, sources[i : i + 1], limits[i : i + 1], threads, scores=True, **options)
            assert_near((expected[0][i : i + 1], expected[1] and expected[1][i : i + 1]), single)
    return found[0]


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("actor", ACTORS)
def test_actors(library: Path, actor: str, rank: int, pre_norm: bool, int8: bool) -> None:
    norms = {f"{side}_{kind}": pre_norm for side in ("encoder", "decoder") for kind in ("pre_norm", "top_norm")}
    more = {"actor_hidden": 13, "actor_rank": rank, "actor_layers": (0, 1)} if actor else {}
    layout = small_layout(actor=actor, **norms, **more)
    found = assert_alike(library, layout, random_tensors(layout, int8))
    assert found[1] == [EOS] and max(map(len, found)) > 2  # some end at their limit, some by themselves


SPECIAL: Dict[str, Dict[str, Any]] = {
    **{activation: {"activation": activation} for activation in ACTIVATIONS},
    "shared embeddings": {"encoder_dim": 12, "source_vocabulary": 23, "shared_embeddings": ("encoder", "decoder")},
    "embedding norms": {"encoder_embedding_norm": True, "decoder_embedding_norm": True, "output_bias": True},
    "no positions": {"encoder_position_kind": "none", "decoder_position_kind": "none"},
    "odd positions": {"encoder_dim": 7, "encoder_heads": 1, "decoder_position_kind": "sinusoidal"},
    "the last actor": {"actor": "rnn", "actor_hidden": 5, "actor_layers": (1,)},
    "no layers": {"encoder_layers": 0, "decoder_layers": 0},
    "one dimension": {"dim": 1, "encoder_dim": 1, "encoder_heads": 1, "decoder_heads": 1},
    "the smallest dictionary": {"vocabulary": 5, "source_vocabulary": 5},
    "a wide head": {"dim": 77, "decoder_heads": 1, "decoder_ffn": 1},
}


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("kind", SPECIAL)
def test_kinds_of_models(library: Path, kind: str, int8: bool) -> None:
    layout = small_layout(**SPECIAL[kind])
    assert_alike(library, layout, random_tensors(layout, int8))


OPTIONS: Dict[str, Dict[str, Any]] = {
    "least length": {"min_length": 6},
    "a least length beyond the limits": {"min_length": 10**6},
    "no unknown words": {"unk_penalty": 1e9},
    "unknown words": {"unk_penalty": -1e9},
    "prefixes": {"prefixes": np.array([[4, 5, EOS], [4, PAD, PAD], [PAD, 5, 6], [UNK, EOS, 0], *[[PAD] * 3] * 3])},
    "prefixes beyond the limits": {"prefixes": np.full((7, 40), 4)},
    "prefixes of no length": {"prefixes": np.zeros((7, 0), dtype=np.int32)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options(library: Path, options: Dict[str, Any]) -> None:
    layout = small_layout(actor="rnn", actor_hidden=5, actor_layers=(0, 1))
    found = assert_alike(library, layout, random_tensors(layout, int8=False), **options)
    if "prefixes" in options:
        assert [row[:1] for row in found[:2]] != [[EOS], [EOS]]


@pytest.mark.parametrize("int8", [False, True])
def test_products_in_parallel(library: Path, int8: bool) -> None:
    """Matrices large enough for that, and no multiples of anything."""
    sizes = {"dim": 139, "encoder_dim": 131, "encoder_ffn": 517, "decoder_ffn": 211, "vocabulary": 1003}
    layout = small_layout(**sizes, encoder_heads=1, decoder_heads=1, actor="gate", actor_layers=(0, 1))
    for batch in (1, 13):
        assert_alike(library, layout, random_tensors(layout, int8), batch, threads=3)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any model at all, of a size to be run in no time."""
    changes: Dict[str, Any] = {}
    for side, dim in (("encoder", "encoder_dim"), ("decoder", "dim")):
        heads = draw(st.integers(1, 5))
        changes |= {dim: heads * draw(st.integers(1, 40)), f"{side}_heads": heads}
        changes |= {f"{side}_{name}": draw(st.booleans()) for name in ("pre_norm", "embedding_norm", "top_norm")}
        changes |= {f"{side}_layers": draw(st.integers(0, 3)), f"{side}_ffn": draw(st.integers(1, 70))}
        changes[f"{side}_position_kind"] = draw(st.sampled_from(["sinusoidal", "learned", "none"]))
    changes |= {name: draw(st.integers(5, 80)) for name in ("vocabulary", "source_vocabulary")}
    changes |= {name: draw(st.integers(2, 40)) for name in ("source_positions", "target_positions")}
    changes |= {"activation": draw(st.sampled_from(ACTIVATIONS)), "output_bias": draw(st.booleans())}
    if changes["decoder_layers"] and draw(st.booleans()):
        changes |= {"actor": draw(st.sampled_from(ACTORS[1:])), "actor_hidden": draw(st.integers(1, 40))}
        layers = st.sets(st.integers(0, changes["decoder_layers"] - 1), min_size=1)
        changes |= {"actor_rank": draw(st.integers(0, 9)), "actor_layers": tuple(sorted(draw(layers)))}
        if draw(st.booleans()):
            changes |= {"site_rank": draw(st.integers(0, 9)), "site_layers": tuple(sorted(draw(layers)))}
    return small_layout(**changes)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(layout=layouts(), int8=st.booleans(), batch=st.integers(1, 9), seed=st.integers(0, 9), data=st.data())
def test_any_size(library: Path, layout: Layout, int8: bool, batch: int, seed: int, data: st.DataObject) -> None:
    options: Dict[str, Any] = {"min_length": data.draw(st.integers(0, 50))}
    if data.draw(st.booleans()):
        shape = batch, data.draw(st.integers(0, 45))
        options["prefixes"] = np.random.default_rng(seed).integers(0, layout.vocabulary, size=shape)
    assert_alike(library, layout, random_tensors(layout, int8, seed), batch, **options)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(layout=layouts(), int8=st.booleans(), batch=st.integers(1, 9), beam=st.integers(2, 12), data=st.data())
def test_any_beam(library: Path, layout: Layout, int8: bool, batch: int, beam: int, data: st.DataObject) -> None:
    """A sentence's hypotheses are the same in any batch, on any threads, and as probable as they should be."""
    settings = SearchSettings(
        beam=beam,
        nbest=data.draw(st.integers(1, beam)),
        min_length=data.draw(st.integers(0, 12)),
        length_penalty=data.draw(st.sampled_from([1.0, 0.0, 2.0])),
        normalize=data.draw(st.booleans()),
    )
    tensors, (sources, limits) = random_tensors(layout, int8), random_batch(layout, batch)
    engine = Engine(layout, tensors, library)
    found = engine.search(sources, limits, settings)
    assert engine.search(sources, limits, settings, threads=2) == found
    assert [engine.search([a], [b], settings)[0] for a, b in zip(sources, limits)] == found
    expected = Engine(layout, tensors, library_path(GENERIC)).search(sources, limits, settings)
    for ours, theirs, limit in zip(found, expected, limits):
        assert len(ours) == len(theirs) >= 1
        assert all(h.tokens[-1] == EOS and len(h.tokens) == len(h.positional) <= limit + 1 for h in ours)
        assert [h.score for h in ours] == sorted((h.score for h in ours), reverse=True)
        assert abs(ours[0].score - theirs[0].score) < TOLERANCE * (1 if settings.normalize else limit + 1)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("where", ["output.weight", "encoder.0.fc1.bias", "decoder.1.norm.weight"])
def test_weights_that_are_no_numbers(library: Path, where: str, value: float, int8: bool) -> None:
    """A file may hold anything: the translation makes no sense then, and harms nobody."""
    layout = small_layout(actor="gate", actor_layers=(0,), output_bias=True)
    tensors = random_tensors(layout, int8)
    name = where if tensors[where].dtype == np.float32 else where.replace(".weight", ".scale")
    tensors[name].flat[::2] = value
    sources, limits = random_batch(layout, 5)
    engine = Engine(layout, tensors, library)
    for hypotheses in engine.search(sources, limits, SearchSettings(beam=4)):
        assert hypotheses and all(0 <= token < layout.vocabulary for h in hypotheses for token in h.tokens)
    found, _ = greedy(engine, sources, limits, scores=True)
    assert all(0 <= token < layout.vocabulary for tokens in found for token in tokens)
    assert [tokens[-1] == EOS and len(tokens) <= limit + 1 for tokens, limit in zip(found, limits)] == [True] * 5


def test_the_largest_sums_of_int8(library: Path) -> None:
    """All weights -128, which this package never writes but a file may hold, and all activations the largest."""
    layout = small_layout(dim=1201, decoder_heads=1, decoder_layers=1)
    tensors = random_tensors(layout, int8=True)
    for name, tensor in tensors.items():
        if tensor.dtype == np.int8:
            tensor[:] = -128
        elif ".norm" in name:
            tensor[:] = 5 if name.endswith("bias") else 0  # whatever comes in, 5 goes out
    logits = tensors["output.scale"] * -128 * 5 * layout.dim
    _, scores = greedy(Engine(layout, tensors, library), [[4, EOS]], [2], min_length=3, unk_penalty=1e9, scores=True)
    allowed = np.delete(logits, [PAD, EOS, UNK])
    expected = allowed.max() - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    assert scores is not None
    np.testing.assert_allclose(scores[0][:2], [expected] * 2, rtol=1e-3)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("shared", [("encoder", "decoder"), ("decoder",)], ids="+".join)
def test_embeddings_that_are_the_rows_of_a_large_matrix(
    library: Path, monkeypatch: pytest.MonkeyPatch, shared: Tuple[str, ...], int8: bool
) -> None:
    """They are in memory once, and the same number for number; the matrix is large enough for pages of its own."""
    sizes = {"dim": 139, "encoder_dim": 139, "vocabulary": 15013, "source_vocabulary": 15013}
    layout = small_layout(**sizes, encoder_heads=1, decoder_heads=1, shared_embeddings=shared)
    tensors, batch = random_tensors(layout, int8), random_batch(layout, 7)
    apart = Engine(layout, tensors, library)
    monkeypatch.setattr("fairseq_tg.compiled.engine.LARGE_TABLE", 1 << 20)
    tied = Engine(layout, tensors, library)
    assert "output.weight" in apart._kept and "output.weight" not in tied._kept
    assert greedy(tied, *batch, scores=True) == greedy(apart, *batch, scores=True)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("actor", ["gate", "rnn"])
def test_threads_share_an_engine(library: Path, actor: str, int8: bool) -> None:
    layout = small_layout(actor=actor, actor_hidden=13, actor_layers=(0, 1))
    engine = Engine(layout, random_tensors(layout, int8), library)
    batches = [random_batch(layout, 5, seed) for seed in range(24)]
    expected = [greedy(engine, *batch, scores=True) for batch in batches]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda batch: greedy(engine, *batch, scores=True), batches)) == expected


def test_threads_make_and_free_engines(library: Path) -> None:
    layout = small_layout(actor="ff2", actor_hidden=13, actor_rank=2, actor_layers=(0, 1))
    tensors, batch = random_tensors(layout, int8=True), random_batch(layout, 5)
    expected = greedy(Engine(layout, tensors, library), *batch)
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda _: greedy(Engine(layout, tensors, library), *batch), range(20))
        assert list(found) == [expected] * 20


def allocated() -> Optional[int]:
    """Bytes that are in use in this process, if a sanitizer counts them."""
    count = getattr(ctypes.CDLL(None), "__sanitizer_get_current_allocated_bytes", None)
    if count is None:
        return None
    count.restype = ctypes.c_size_t
    return count()


def test_engines_leave_no_memory_behind(library: Path) -> None:
    layout = small_layout(vocabulary=5003, actor="rnn", actor_hidden=13, actor_layers=(0, 1))
    tensors, batch = random_tensors(layout, int8=False), random_batch(layout, 9)
    before = []
    for _ in range(6):
        for _ in range(5):
            greedy(Engine(layout, tensors, library), *batch, scores=True)
        gc.collect()
        before.append(allocated())
    if before[0] is None:
        pytest.skip("only a sanitizer counts what is in use")
    weights = sum(tensor.nbytes for tensor in tensors.values())
    assert before[-1] - before[1] < weights / 10, before
