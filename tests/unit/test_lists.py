"""k-best lists to train on: what is drawn from them, and the batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fairseq_tg.corpus.drawing import UNCOUNTED, Best, Candidates, TriePaths, draw_ranks
from fairseq_tg.corpus.list_dataset import ListDataset
from fairseq_tg.corpus.lists import KBestList, KBestLists, join_lists
from fairseq_tg.errors import UserError

EOS = 2


def kbest(scores, *hypotheses):
    return KBestList([np.array([*tokens, EOS]) for tokens in hypotheses], np.array(scores, dtype=float))


def random_list(seed, k=12):
    """Hypotheses that have much in common, as those of a beam, some of them equally good."""
    generator = np.random.default_rng(seed)
    found = {tuple(generator.integers(4, 6, generator.integers(0, 6)).tolist()) for _ in range(k)}
    return kbest(generator.integers(0, 4, len(found)), *sorted(found, key=lambda _: generator.random()))


def seeded():
    return np.random.default_rng(0)


def test_the_best_and_the_first_are_always_drawn():
    some = kbest([1, 3, 2, 3, 0], [5], [6], [7], [8], [9])
    for _ in range(20):
        ranks = draw_ranks(some, 3, np.random.default_rng())
        assert ranks[:2] == [1, 0] and ranks[2] in (2, 3, 4)
    assert draw_ranks(some, 1, seeded()) == [1] and draw_ranks(some, 2, seeded()) == [1, 0]
    assert sorted(draw_ranks(some, 9, seeded())) == [0, 1, 2, 3, 4]
    assert draw_ranks(kbest([3, 1], [5], [6]), 4, seeded()) == [0, 1]
    assert draw_ranks(kbest([3, 1], [5], [6]), 1, seeded()) == [0]


def test_candidates_are_the_hypotheses():
    some = kbest([1, 3, 2], [5, 4], [6], [])
    rows = Candidates(3)(some, seeded())
    assert [row.rank for row in rows] == [1, 0, 2]
    assert [row.targets.tolist() for row in rows] == [[6, 2], [5, 4, 2], [2]]


def test_the_best_alone():
    (row,) = Best()(kbest([1, 3, 2], [5, 4], [6], []), seeded())
    assert row.rank == 1 and row.targets.tolist() == [6, 2]


def test_paths_lead_to_the_best_that_is_still_reachable():
    #            5 6 7 (best)   5 6 8 9     5 8     4 8 (second)   4 8 8
    some = kbest([1, 9, 3, 8, 2], [5, 6, 8, 9], [5, 6, 7], [5, 8], [4, 8], [4, 8, 8])
    rows = {row.rank: row.targets.tolist() for row in TriePaths(5, repeats=True)(some, seeded())}
    assert rows[1] == [5, 6, 7, EOS]
    assert rows[0] == [5, 6, 7, 9, EOS]  # it should have said 7, and after the 8 goes on with the 9
    assert rows[2] == [5, 6, EOS]
    assert rows[3] == [5, 8, EOS]
    assert rows[4] == [5, 8, EOS, EOS]  # after 4 8 it should have ended
    once = {row.rank: row.targets.tolist() for row in TriePaths(5)(some, seeded())}
    assert once[1] == rows[1] and once[0] == [UNCOUNTED] * 3 + [9, EOS]


@pytest.mark.parametrize("seed", range(20))
def test_paths_against_a_plain_search(seed):
    some = random_list(seed)
    order = sorted(range(len(some.scores)), key=lambda rank: (-some.scores[rank], rank))

    def best_after(prefix):
        reachable = (rank for rank in order if some.hypotheses[rank][: len(prefix)].tolist() == prefix)
        return int(some.hypotheses[next(reachable)][len(prefix)])

    counted = set()
    for row, repeating in zip(TriePaths(4)(some, seeded()), TriePaths(4, repeats=True)(some, seeded())):
        path = some.hypotheses[row.rank].tolist()
        assert row.rank == repeating.rank and len(row.targets) == len(path)
        for length in range(len(path)):
            prefix = path[:length]
            assert repeating.targets[length] == best_after(prefix)
            assert row.targets[length] == (UNCOUNTED if tuple(prefix) in counted else best_after(prefix))
            counted.add(tuple(prefix))


def make_lists(lists):
    lengths = [len(hypothesis) for some in lists for hypothesis in some.hypotheses]
    return KBestLists(
        np.arange(len(lists)),
        np.cumsum([0, *(len(some.scores) for some in lists)]),
        np.cumsum([0, *lengths]),
        np.concatenate([hypothesis for some in lists for hypothesis in some.hypotheses]),
        np.concatenate([some.scores for some in lists]),
    )


def test_lists_are_kept_and_joined():
    originals = [random_list(seed) for seed in range(5)]
    joined = join_lists([make_lists(originals[:2]), make_lists(originals[2:])], [2, 3])
    assert len(joined) == 5 and joined.sources.tolist() == [0, 1, 2, 3, 4]
    for index, original in enumerate(originals):
        assert [h.tolist() for h in joined[index].hypotheses] == [h.tolist() for h in original.hypotheses]
        assert joined[index].scores.tolist() == original.scores.tolist()
        assert joined.longest()[index] == max(map(len, original.hypotheses))
        assert joined.counts()[index] == len(original.scores)


@pytest.fixture()
def dataset(workspace):
    task = workspace.task()
    task.load_dataset("valid")
    return ListDataset(
        [task.dataset("valid")], make_lists([random_list(seed) for seed in range(8)]), TriePaths(3), seed=1
    )


def test_a_batch(dataset):
    samples = [dataset[index] for index in range(4)]
    batch = dataset.collater(samples)
    by_length = sorted(samples, key=lambda sample: -len(sample["source"]))
    assert batch["id"].tolist() == [sample["id"] for sample in by_length] and batch["nsentences"] == 4
    rows = batch["net_input"]["rows"].tolist()
    assert rows == [index for index, sample in enumerate(by_length) for _ in sample["targets"]]
    assert batch["net_input"]["src_lengths"].tolist() == [len(sample["source"]) for sample in by_length]
    hypotheses = [(hypothesis, target) for sample in by_length for hypothesis, target in zip(*both(sample))]
    assert batch["ntokens"] == sum(int((target != UNCOUNTED).sum()) for _, target in hypotheses)
    for row, (hypothesis, target) in enumerate(hypotheses):
        size = len(hypothesis)
        assert batch["net_input"]["prev_output_tokens"][row, :size].tolist() == [EOS, *hypothesis[:-1].tolist()]
        expected = torch.where(target == UNCOUNTED, 1, target).tolist()
        assert batch["target"][row].tolist() == expected + [1] * (batch["target"].size(1) - size)
    assert batch["scores"].dtype == torch.double and len(batch["scores"]) == len(rows)


def both(sample):
    return sample["hypotheses"], sample["targets"]


def test_all_rows_count_as_tokens_of_a_batch(dataset):
    for index in range(len(dataset)):
        sample = dataset[index]
        rows = len(sample["targets"])
        longest = max(map(len, dataset.lists[index].hypotheses))
        assert dataset.num_tokens(index) == max(len(sample["source"]), rows * longest)


def test_of_lists_with_long_hypotheses_fewer_are_taken(dataset):
    before = [dataset[index] for index in range(len(dataset))]
    needed = int(dataset.sizes.max())
    dataset.fit(2 * needed)
    for index, whole in enumerate(before):
        sample = dataset[index]
        room = 2 * needed // max(map(len, dataset.lists[index].hypotheses))
        assert len(sample["targets"]) == min(len(whole["targets"]), room)
        assert dataset.num_tokens(index) <= 2 * needed
        assert torch.equal(sample["targets"][0], whole["targets"][0])
    with pytest.raises(UserError, match=f"--max-tokens {needed - 1} has no room .* give at least {needed}"):
        dataset.fit(needed - 1)


def test_what_is_drawn_depends_on_seed_epoch_and_sentence(dataset):
    def drawn(epoch, seed=1):
        dataset.seed = seed
        dataset.set_epoch(epoch)
        return [[hypothesis.tolist() for hypothesis in dataset[i]["hypotheses"]] for i in range(len(dataset))]

    first = drawn(1)
    assert drawn(2) != first and drawn(1) == first and drawn(1, seed=2) != first
