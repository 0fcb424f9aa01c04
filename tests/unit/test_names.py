"""What options offer is what there is."""

from __future__ import annotations

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.tasks import TASK_REGISTRY

from fairseq_tg import names
from fairseq_tg.actors import ACTORS
from fairseq_tg.corpus import native_engine  # noqa: F401 (which registers two)
from fairseq_tg.corpus.engines import ENGINES, OF_BASES
from fairseq_tg.criterions.lists import ListCriterion
from fairseq_tg.languages import TASKS
from fairseq_tg.models.families import FAMILIES
from fairseq_tg.tasks.layer import TGTask
from tests.conftest import REPO


def test_every_name_is_offered() -> None:
    assert list(names.ACTORS) == ACTORS.names()
    assert sorted(names.ENGINES) == sorted(ENGINES.names()) and set(OF_BASES) < set(names.ENGINES)
    on_lists = [name for name, criterion in CRITERION_REGISTRY.items() if issubclass(criterion, ListCriterion)]
    assert sorted(names.LIST_CRITERIA) == sorted(on_lists)


def test_every_task_is_offered() -> None:
    assert sorted(TASKS) == sorted(name for name, task in TASK_REGISTRY.items() if issubclass(task, TGTask))


def test_the_reference_names_every_family_and_task() -> None:
    headings = [line for line in (REPO / "docs" / "reference.md").read_text().splitlines() if line.startswith("## ")]
    (models,) = (line for line in headings if "--arch" in line)
    (tasks,) = (line for line in headings if "--task" in line)
    assert all(f"tg_{family}`" in models for family in FAMILIES) and all(f"{task}`" in tasks for task in TASKS)


def test_names_in_words() -> None:
    assert names.one_of(names.SITES) == "attention, all or maps"
