"""Times and what is made of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fairseq_tg.evaluation.bench import Result, ratios
from fairseq_tg.evaluation.measure import Spread, Turns, latency_table, ratio, take_turns
from fairseq_tg.evaluation.options import BenchOptions


def test_turns_are_taken_in_changing_order_and_timed() -> None:
    order = []

    def system(name):
        return lambda batch: order.append(name) or [[5, *source] for source in batch]

    sources = [[7, 2], [8, 9, 2]]
    results = take_turns({"a": system("a"), "b": system("b")}, sources, [[1], [0]], 2, eos=2)
    assert "".join(order) == "ab" + "aaabbb" + "bbbaaa"  # a warm-up, then two turns, each after a sentence untimed
    for turns in results.values():
        assert turns.tokens == [5, 5] and turns.sentences == 2 and len(turns.seconds) == 2
        assert {length: len(values) for length, values in turns.latencies.items()} == {2: 2, 3: 2}  # no warm-up
        assert turns.outputs == [[5, 7, 2], [5, 8, 9, 2]]  # in the order of the sentences, not of the batches
        for length, values in turns.latencies.items():
            assert all(0 < value < seconds for value, seconds in zip(values, turns.seconds)), length
    both = take_turns({"a": system("a")}, sources, [[0, 1]], 1, eos=2)["a"]
    assert both.latencies == {} and both.outputs == results["a"].outputs


def test_ratios_are_of_turns() -> None:
    assert ratio(Turns([10, 30], [1.0, 1.0]), Turns([5, 5], [1.0, 1.0])) == Spread(4.0, 2.0, 6.0)
    assert ratio(Turns([6], [1.0]), Turns([0], [1.0])) is None


def test_there_is_no_ratio_to_a_system_that_says_nothing() -> None:
    """A base that has learned nothing may end every sentence at once."""
    turns = {"fast greedy base": Turns([0, 0], [1.0, 1.0]), "fairseq greedy": Turns([0, 0], [1.0, 1.0])}
    turns |= {"fast beam 4 base": Turns([0, 0], [1.0, 1.0]), "fairseq beam 4": Turns([6, 6], [1.0, 2.0])}
    rows: Any = {name: SimpleNamespace(single=of_system) for name, of_system in turns.items()}
    result = Result(BenchOptions(data="bin", base="base.pt"), rows, *[None] * 4)  # type: ignore[arg-type]
    assert ratios(result) == [("fast beam 4 base", "fairseq beam 4", Spread(0.0, 0.0, 0.0))]


def test_latencies_are_of_thirds_of_the_sources() -> None:
    """Percentiles of each third by length, of all times of its sentences."""
    latencies = {2: [3.0, 1.0, 2.0], 5: [4.0, 6.0, 5.0], 9: [7.0, 9.0, 8.0]}
    assert latency_table(Turns(latencies=latencies)) == [
        ("1-2", {50: 2.0, 90: 3.0, 99: 3.0}),
        ("3-5", {50: 5.0, 90: 6.0, 99: 6.0}),
        ("6-9", {50: 8.0, 90: 9.0, 99: 9.0}),
    ]
    assert latency_table(Turns(latencies={4: [1.0, 2.0]})) == [("1-4", {50: 1.0, 90: 2.0, 99: 2.0})]
    assert latency_table(Turns()) == []
