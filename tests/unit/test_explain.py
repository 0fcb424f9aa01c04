"""What an explanation says, beside what the model does in torch."""

from __future__ import annotations

import re
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_tg.compiled import Translator
from fairseq_tg.compiled.alignment import _shares, align, units
from fairseq_tg.compiled.compile import compile_model
from fairseq_tg.compiled.engine import Engine, EngineError, SearchSettings
from fairseq_tg.compiled.explain import ATTENDED, Actions, Explanation, Step, Translation, explain, join_actions
from fairseq_tg.compiled.extract import extract
from fairseq_tg.compiled.options import Compilation
from fairseq_tg.compiled.pictures import as_svg, as_terminal, attended_words
from fairseq_tg.differences import differing_words
from fairseq_tg.models.actor_files import export_actor
from fairseq_tg.serve.models import Served
from tests.conftest import FAMILIES, Workspace, stir

SOURCE, TARGET = [5, 9, 7, 4, 2], [6, 11, 4, 9, 2]


@pytest.mark.parametrize("actor", ["gate", "rnn"])
@pytest.mark.parametrize("base", ["transformer", "transformer_prenorm", "lstm", "fconv"])
def test_a_trace_is_what_torch_computes(workspace: Workspace, base: str, actor: str) -> None:
    model = stir(workspace.actor_model(base, actor=actor), 0.5).eval()
    engine = Engine(*extract(model))
    for actors in (True, False):
        traced = engine.trace(SOURCE, TARGET, actors)
        tokens = torch.tensor([[2, *TARGET[:-1]]])
        plain = model if actors else workspace.base_model(base).eval()
        with torch.no_grad(), model.recorded_norms() as recorded:
            args = (torch.tensor([SOURCE]), torch.tensor([len(SOURCE)]))
            logits, _ = plain(*args, prev_output_tokens=tokens)
            encoded = plain.encoder(*args)
            layer = {"alignment_layer": 0} if base.startswith("transformer") else {}
            _, extra = plain.decoder(tokens, encoded, **layer)
        likely = torch.softmax(logits[0], -1).topk(5)
        assert traced.tokens[:, 0].tolist() == likely.indices[:, 0].tolist()
        np.testing.assert_allclose(traced.probabilities, likely.values, atol=1e-5)
        attention = extra["attn"][0][0] if base.startswith("transformer") else extra[0]
        # a fconv gives the mean over all layers, also those without attention
        seen = traced.attention.sum(1) / 3 if base == "fconv" else traced.attention[:, 0]
        np.testing.assert_allclose(seen, attention.reshape(seen.shape), atol=1e-5)
        np.testing.assert_allclose(traced.attention.sum(-1), 1, atol=1e-5)
        if actors:
            # T x B, or so many calls of 1 x B; and all of it twice
            ratios = [torch.cat([call.action / call.state for call in calls])[: len(TARGET)] for calls in recorded]
            np.testing.assert_allclose(traced.actions, torch.cat(ratios, 1), rtol=1e-4)
        else:
            assert not traced.actions.any()


def test_words_are_aligned_by_attention(workspace: Workspace, tmp_path: Path) -> None:
    compile_model(
        stir(workspace.actor_model("transformer"), 2.0), workspace.task(), Compilation("", str(tmp_path / "model.tg"))
    )
    translator = Translator.load(str(tmp_path / "model.tg"))
    line = "w1 w2, w3"  # the second word is two units, and unknown to the dictionary
    target = [*translator.search([translator.encode("w1 w4 w2")])[0][0].tokens[:-1], 6, 7, 2]
    output = translator.decode(target)
    found = align(translator, line, output, target)
    attention = translator.trace(translator.encode(line), target).attention.mean(1)[:-1, :-1]
    expected = attention[:, [0, 1, 1, 2]] * [1, 2 / 3, 1 / 3, 1]
    np.testing.assert_allclose(found, expected / expected.sum(1, keepdims=True), atol=1e-6)
    assert [output[start:end] for start, end in units(output)] == output.split()


def test_subwords_are_put_together() -> None:
    assert _shares(["\u2581Hun", "d", "\u2581Hu", "nde", ".", ""], "Hund  Hunde.").tolist() == [
        *([[1, 0, 0]] * 2),
        *([[0, 1, 0]] * 2),
        *([[0, 0, 1], [0, 0, 0]]),
    ]
    assert _shares(["a@@", "b-c"], "ab-c").tolist() == [[1], [1]]
    assert [("ja, 你好 don't!"[a:b]) for a, b in units("ja, 你好 don't!")] == ["ja", ",", "你", "好", "don't", "!"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sites", ["attention", "all", "maps"])
def test_without_its_actors_a_model_is_its_base(workspace: Workspace, sites: str, family: str) -> None:
    engine = Engine(*extract(stir(workspace.actor_model(family, actor_sites=sites), 2.0)))
    base = Engine(*extract(workspace.base_model(family)))
    sources = [SOURCE, [4, 2], [8, 8, 6, 2]]
    for beam in (1, 4):
        ours = engine.search(sources, [9] * 3, SearchSettings(beam=beam, actors=False))
        theirs = base.search(sources, [9] * 3, SearchSettings(beam=beam))
        assert ours == theirs
    assert engine.search(sources, [9] * 3, SearchSettings()) != base.search(sources, [9] * 3, SearchSettings())


@pytest.mark.parametrize("source, target", [([], [2]), ([5, 2], []), ([5, 2], [5]), ([99, 2], [2]), ([5, 2], [-1, 2])])
def test_a_trace_takes_only_what_the_model_knows(workspace: Workspace, source: list, target: list) -> None:
    with pytest.raises(EngineError):
        Engine(*extract(workspace.base_model("transformer"))).trace(source, target)


@pytest.fixture(scope="module")
def explanation(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Explanation:
    path = tmp_path_factory.mktemp("compiled") / "model.tg"
    model = stir(workspace.actor_model("transformer"), 1.0)
    compile_model(model, workspace.task(), Compilation("", str(path)))
    return explain(Translator.load(str(path)), "w1 w2 w3 w8")


def test_four_systems_are_in_one_file(explanation: Explanation) -> None:
    assert list(explanation.translations) == ["greedy", "beam 4", "tg", "tg + beam 4"]
    for found in explanation.translations.values():
        assert [word for word, _ in found.words] == found.text.split() and found.tokens[-1] == "</s>"
        assert found.milliseconds > 0 > found.score
    tg = explanation.translations["tg"]
    actions = explanation.actions
    assert [step.token for step in actions.steps] == tg.tokens
    assert [step.tg[0][0] for step in actions.steps][1:] == tg.tokens[1:]  # the first may not be the end
    assert actions.places == ["layer 1", "layer 2"]
    greedy = explanation.translations["greedy"].text
    assert all(found.words == differing_words(found.text, greedy) for found in explanation.translations.values())


@pytest.mark.parametrize("sites", ["attention", "maps"])
@pytest.mark.parametrize("family", FAMILIES)
def test_with_one_side_in_memory_at_a_time_all_is_the_same(
    workspace: Workspace, family: str, sites: str, tmp_path: Path
) -> None:
    model = stir(workspace.actor_model(family, actor_sites=sites), 1.0)
    compile_model(model, workspace.task(), Compilation("", str(tmp_path / "model.tg")))
    found = [
        explain(Translator.load(str(tmp_path / "model.tg"), alone=alone), "w1 w2. w3 w8") for alone in (False, True)
    ]
    both, alone = (
        replace(
            item, translations={name: replace(told, milliseconds=0) for name, told in item.translations.items()}
        ).to_json()
        for item in found
    )
    assert both == alone and both["translations"]["greedy"] != both["translations"]["tg"]


def test_several_sentences_are_each_explained(workspace: Workspace, tmp_path: Path) -> None:
    model = stir(workspace.actor_model("transformer"), 1.0)
    compile_model(model, workspace.task(), Compilation("", str(tmp_path / "model.tg")))
    translator = Translator.load(str(tmp_path / "model.tg"))
    found, parts = explain(translator, "w1 w2 w3.\n\nW4 w5! --"), ("w1 w2 w3.", "W4 w5! --")
    alone = [explain(translator, part) for part in parts]
    assert found.actions == join_actions([one.actions for one in alone])
    assert found.actions.source == [token for one in alone for token in one.actions.source]
    assert [step.actions for step in found.actions.steps] == [s.actions for one in alone for s in one.actions.steps]
    for name, translation in found.translations.items():
        theirs = [one.translations[name] for one in alone]
        assert translation.text == "\n\n".join(one.text for one in theirs)
        assert translation.tokens == [token for one in theirs for token in one.tokens]
        assert translation.score == pytest.approx(sum(one.score for one in theirs) / 2)
    assert "layer 1  " in as_terminal(found, colours=False)
    boxes = [box for box in ElementTree.fromstring(as_svg(found)).iter() if box.get("class") == "cell"]
    assert len(boxes) == 2 * len(found.actions.steps)
    nothing = explain(translator, "\n--")
    assert nothing.translations["tg"].text == "\n--" and not nothing.actions.steps
    assert "\n--" in as_terminal(nothing, colours=False) and as_svg(nothing)


def test_a_search_is_timed_when_it_is_warm(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compile_model(workspace.base_model("transformer"), workspace.task(), Compilation("", str(tmp_path / "model.tg")))
    translator = Translator.load(str(tmp_path / "model.tg"))
    search, seen = translator.search, []

    def cold(sources: Any, beam: int, actors: bool) -> Any:
        time.sleep(0 if (beam, actors) in seen else 0.5)
        seen.append((beam, actors))
        return search(sources, beam=beam, actors=actors)

    monkeypatch.setattr(translator, "search", cold)
    assert all(found.milliseconds < 400 for found in explain(translator, "w1 w2").translations.values())


def test_a_model_is_warm_when_it_is_served(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its base and its actors, by each search, of a token: a model may take long for more."""
    path, actors = tmp_path / "base.tg", tmp_path / "actors.safetensors"
    compile_model(workspace.base_model("transformer"), workspace.task(), Compilation("", str(path)))
    export_actor(workspace.train("transformer", tmp_path / "tg", "--max-update", "1"), str(actors))
    search, seen = Engine.search, []

    def counted(self: Engine, sources: Any, limits: Any, settings: SearchSettings, *more: Any) -> Any:
        seen.append((id(self), settings.beam, *limits))
        return search(self, sources, limits, settings, *more)

    monkeypatch.setattr(Engine, "search", counted)
    served = Served(str(path), "base", {"a": str(actors)})
    translator = served.translator(served.pairs()[0])
    engines = [id(translator.engine(name)) for name in (None, "a")]
    assert seen == [(engine, beam, 1) for engine in engines for beam in (1, 2)]


def test_the_pictures_show_all_of_it(explanation: Explanation) -> None:
    printed = as_terminal(explanation, colours=False)
    for name, found in explanation.translations.items():
        assert name in printed and f"score {found.score:.3f}" in printed
    assert printed.count("layer 1  ") == printed.count("layer 2  ") >= 1
    root = ElementTree.fromstring(as_svg(explanation))
    boxes = [box for box in root.iter() if box.get("class") == "cell"]
    assert len(boxes) == 2 * len(explanation.actions.steps)
    assert max(float(box.get("fill-opacity", 0)) for box in boxes) == 1


def test_text_in_a_picture_is_escaped() -> None:
    found = Translation("<b>&", [("<b>&", True)], ["<b>", "&", "</s>"], -1.0, 1.0)
    step = Step("<b>", [0.1], [[(0, 1.0)]], [("&", 0.5)], [("<b>", 0.6)])
    picture = as_svg(Explanation("<x>", {"greedy": found}, Actions(["<x>"], ["layer 1"], [0], [step])))
    texts = [element.text for element in ElementTree.fromstring(picture).iter() if element.text]
    assert "<b>&" in texts and "<x>" in texts


def test_text_that_no_picture_can_have_is_shown_all_the_same() -> None:
    """From a command line, or from a test set: a control character, or bytes that are no text."""
    found = Translation("a\x1bb", [("a\x1bb", False)], ["a\x1bb"], -1.0, 1.0)
    picture = as_svg(Explanation("x \udcff \u200d\U0001f600", {"greedy": found}, Actions([], [], [], [])))
    texts = [element.text for element in ElementTree.fromstring(picture.encode()).iter() if element.text]
    assert {"a\\x1bb", "\\udcff", "\u200d\U0001f600"} <= set(texts)


def test_words_that_were_attended_to() -> None:
    step = Step("a", [0.1], [[(1, 0.3), (2, 0.3), (0, 0.2), (3, 0.2)]], [], [])
    actions = Actions(["\u2581Ein", "\u2581Ter", "rier", "</s>"], ["layer 1"], [0], [step])
    assert attended_words(actions, step, 0, 2) == [("Terrier", 0.6), ("Ein", 0.2)]
    bpe = Actions(["Ein", "Ter@@", "rier", "</s>"], ["layer 1"], [0], [step])
    assert attended_words(bpe, step, 0, 1) == [("Terrier", 0.6)]


def test_a_model_without_actors_says_so(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "model.tg"
    compile_model(workspace.base_model("transformer"), workspace.task(), Compilation("", str(path)))
    found = explain(Translator.load(str(path)), "w1 " * 20)
    assert list(found.translations) == ["greedy", "beam 4"] and not found.actions.places
    assert all(len(step.attention[0]) == ATTENDED for step in found.actions.steps)
    assert re.search("This model has no actors.", as_terminal(found, colours=True))
    ElementTree.fromstring(as_svg(found))


@pytest.mark.parametrize("base, places", [("transformer", 6), ("lstm", 3), ("fconv", 5)])
def test_actors_at_more_places_are_all_seen(workspace: Workspace, base: str, places: int) -> None:
    engine = Engine(*extract(stir(workspace.actor_model(base, actor_sites="all"), 0.5)))
    traced = engine.trace(SOURCE, TARGET)
    assert traced.actions.shape == (len(TARGET), places) and traced.actions.all()
    names = engine.layout.places()
    assert len(names) == places and not engine.trace(SOURCE, TARGET, actors=False).actions.any()
    if base == "transformer":
        assert names[:3] == ["decoder.0.self.actor", "decoder.0.actor", "decoder.0.ffn.actor"]
