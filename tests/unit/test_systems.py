"""Systems that share one model translate as fairseq-generate does."""

from __future__ import annotations

import functools
import weakref
from typing import Any, List, Tuple

import pytest

from fairseq_tg.evaluation import held
from fairseq_tg.evaluation.held import Held
from fairseq_tg.evaluation.systems import System, build, build_search
from fairseq_tg.tasks.loading import load_model
from tests.conftest import BASES, Workspace, hypotheses


@pytest.mark.parametrize("base", BASES)
def test_searches_of_one_model_do_not_disturb_each_other(workspace: Workspace, base: str) -> None:
    load = functools.cache(load_model)
    path, data = workspace.bases[base], workspace.data
    model, task = load(path, data)
    task.load_dataset("valid")
    sources = [task.dataset("valid").src[i].tolist() for i in range(30)]
    systems = {
        name: System(name, kind, path, data, beam, max_len_b=20)
        for name, kind, beam in (("greedy", "fairseq", 1), ("beam", "fairseq", 4), ("fast", "fast", 1))
    }
    functions = {name: build(system, load) for name, system in systems.items()}
    found = {name: functions[name](sources) for name in ("beam", "fast", "greedy", "beam")}
    assert load.cache_info().misses == 1 and load(path, data)[0] is model
    assert found["fast"] == found["greedy"]
    for name, beam in (("greedy", 1), ("beam", 4)):
        printed = hypotheses(workspace.generate(path, "--beam", beam, "--no-fast-greedy"))
        assert [task.target_dictionary.string(tokens) for tokens in found[name]] == [printed[i] for i in range(30)]
    every = build_search(systems["beam"], load)(sources)
    assert [best for best, *_ in every] == found["beam"] and {len(items) for items in every} == {4}


def test_of_large_models_one_is_in_memory_at_a_time(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    path, data = workspace.bases["transformer"], workspace.data
    other, loaded = workspace.bases["lstm"], []
    task = load_model(path, data)[1]
    task.load_dataset("valid")
    sources = [task.dataset("valid").src[i].tolist() for i in range(5)]
    systems = [System("a", "fast", path, data), System("b", "fairseq", path, data, 4), System("c", "fast", other, data)]

    def load(path: str, data: str) -> Tuple[Any, Any]:
        assert large > 0 or all(model() is None for model in loaded), "a large model was still there"
        model, task = load_model(path, data)
        loaded.append(weakref.ref(model))
        return model, task

    found: List[List[Any]] = []
    for large in (held.LARGE, 0):
        monkeypatch.setattr(held, "LARGE", large)
        evaluated = Held(load)
        loaded.clear()
        task = evaluated.model(path, data)[1]  # which outlives its model
        assert loaded[0]() is not None
        evaluated.make_room()
        functions = [evaluated.translate(system) for system in systems]
        assert len(loaded) == 1, "systems are built when they are used"
        lists = evaluated.search(System("d", "fairseq", path, data, 4))
        found.append([function(sources) for function in (*functions, lists, *functions)])
        assert len(loaded) == (2 if large else 8)
        assert evaluated.model(path, data)[0] is evaluated.model(path, data)[0]
        del evaluated, functions, lists, task
    assert found[0] == found[1] and found[0][0] != found[0][2]
    assert [best for best, *_ in found[0][3]] == found[0][1]
