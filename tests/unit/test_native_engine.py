"""The batches of a corpus build by the native engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fairseq_tg.corpus.native_engine import CACHE, CACHE_OF_LARGE, LARGE, ROWS, plan_batches


def layout(cached: int, vocabulary: int, weights: int = 1) -> Any:
    matrices = {"output": (weights, 1, True)}
    return SimpleNamespace(cached_per_step=lambda: cached, vocabulary=vocabulary, matrices=lambda: matrices)


def test_batches_of_a_small_model_have_the_most_rows() -> None:
    batches = plan_batches([10] * 100, [200] * 100, 35, layout(1024, 1000))
    assert [len(batch) for batch in batches[:-1]] == [ROWS // 35] * (len(batches) - 1)
    assert [i for batch in batches for i in batch] == list(range(100))


def test_batches_of_a_large_model_have_room() -> None:
    """For what translations, sources and the scores of all words take; a sentence that has none is alone."""
    for cached, vocabulary, limit in ((24_576, 60_000, 5), (24_576, 60_000, 200), (1024, 2_000_000, 5)):
        lengths = [30] * 60
        for batch in plan_batches(lengths, [limit] * 60, 5, layout(cached, vocabulary)):
            steps, rows = min(70, limit + 1), 5 * len(batch)
            kept = 4 * ((rows * steps + 30 * len(batch)) * cached + rows * vocabulary)
            assert len(batch) == 1 or kept <= CACHE
    assert all(len(b) == 1 for b in plan_batches([30] * 3, [200] * 3, 35, layout(240_000, 60_000)))


def test_batches_beside_many_weights_have_less() -> None:
    few, many = (len(plan_batches([30] * 60, [20] * 60, 5, layout(24_576, 60_000, n))[0]) for n in (1, LARGE // 4))
    assert 1 < many <= few * CACHE_OF_LARGE / CACHE + 1 < few
