"""The loop over a test set."""

from __future__ import annotations

from typing import List

from fairseq_tg.evaluation.batches import by_length, in_batches, translate_all


def test_batches_have_like_lengths_and_results_the_order_of_the_sentences() -> None:
    sources = [[1, 1, 1], [2], [3, 3], [4], [5, 5, 5, 5]]
    assert by_length([len(source) for source in sources], 2) == [[1, 3], [2, 0], [4]]
    seen: List[int] = []

    def translate(batch):
        seen.append(len(batch))
        return [[10 * source[0]] for source in batch]

    said: List[str] = []
    found = translate_all(translate, sources, said.append, "greedy", batch_size=2)
    assert found == [[10], [20], [30], [40], [50]] and seen == [2, 2, 1]
    assert said[1] == "greedy: 2 of 5 sentences"
    assert in_batches(lambda batch: (i * i for i in batch), [[2, 0], [1]], said.append, "") == [0, 1, 4]
