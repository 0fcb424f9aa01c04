"""The objective follows from the length of the base's translations, unless it is given."""

from dataclasses import replace
from typing import List

import pytest
from sacrebleu.metrics import BLEU

from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.batches import translate_all
from fairseq_tg.evaluation.subset import Subset, read_subset
from fairseq_tg.evaluation.systems import System, build
from fairseq_tg.evaluation.tables import Progress
from fairseq_tg.recipe.lengths import check_words, choose_objective, validate, with_objective
from fairseq_tg.recipe.options import Recipe
from fairseq_tg.tasks.loading import load_model
from tests.conftest import BASES, Workspace


@pytest.mark.parametrize("ratio, objective", [(0.9, "sbleu+2"), (1.0, "sbleu+1"), (1.1, "sbleu")])
def test_the_longer_the_base_the_less_it_is_lengthened(ratio: float, objective: str) -> None:
    assert choose_objective(ratio) == objective


def test_a_validation_is_of_words_whatever_translates(workspace: Workspace) -> None:
    base = workspace.bases["lstm"]
    recipe = Recipe(data=workspace.data, base=base, out="", workers=1)
    model, task = load_model(base, workspace.data)
    found = validate(recipe, model, task)
    assert found == validate(recipe, model, task, base)
    valid = read_subset(task, "valid", model)
    system = build(System("", "fairseq", base, workspace.data), lambda *_: (model, task))
    words = [valid.words(tokens) for tokens in translate_all(system, valid.sources, Progress(), "")]
    scored = BLEU().corpus_score(words, [valid.references])
    assert found.bleu == pytest.approx(scored.score)
    assert found.length == pytest.approx(scored.sys_len / scored.ref_len)


def test_what_auto_stands_for(workspace: Workspace, capsys) -> None:
    base = workspace.bases[next(iter(BASES))]
    recipe = Recipe(data=workspace.data, base=base, out="", workers=1)
    model, task = load_model(base, workspace.data)
    chosen = with_objective(recipe, model, task).objective
    printed = capsys.readouterr().out
    assert printed.startswith(f"objective: {chosen}, as") and chosen == with_objective(recipe, model, task).objective
    given = replace(recipe, objective="chrf")
    assert with_objective(given, model, task) is given


def subset(references: List[str], tokens: int) -> Subset:
    return Subset([], [[5] * tokens for _ in references], [], references, None, {"valid": range(len(references))})  # type: ignore[arg-type]


def test_references_without_words_are_refused() -> None:
    with pytest.raises(UserError, match=r"the references of valid have 1\.0 words each"):
        check_words(subset(["\u6211\u4eec\u5728\u516c\u56ed", "\u4e00\u53ea\u72d7"], 9))
    check_words(subset(["ja", "nein"], 2))  # one word each they are
    check_words(subset(["a dog runs here"], 20))
