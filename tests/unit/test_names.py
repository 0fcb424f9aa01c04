"""What options offer is what there is."""

from __future__ import annotations

from fairseq.criterions import CRITERION_REGISTRY

from fairseq_tg import names
from fairseq_tg.actors import ACTORS
from fairseq_tg.corpus import native_engine  # noqa: F401 (which registers two)
from fairseq_tg.corpus.engines import ENGINES, OF_BASES
from fairseq_tg.criterions.lists import ListCriterion


def test_every_name_is_offered() -> None:
    assert list(names.ACTORS) == ACTORS.names()
    assert sorted(names.ENGINES) == sorted(ENGINES.names()) and set(OF_BASES) < set(names.ENGINES)
    on_lists = [name for name, criterion in CRITERION_REGISTRY.items() if issubclass(criterion, ListCriterion)]
    assert sorted(names.LIST_CRITERIA) == sorted(on_lists)


def test_names_in_words() -> None:
    assert names.one_of(names.SITES) == "attention, all or maps"
