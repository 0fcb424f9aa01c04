"""What is answered: texts as they were, more fields on request, of several actors, to each its own."""

from __future__ import annotations

import json
import re
import threading
from itertools import chain
from pathlib import Path
from typing import Any, List

import pytest

from fairseq_tg.compiled import Translator
from fairseq_tg.compiled.compile import compile_model
from fairseq_tg.compiled.explain import explain
from fairseq_tg.compiled.options import Compilation
from fairseq_tg.models.actor_files import export_actor
from tests.conftest import Workspace
from tests.service import Server, offline, serving

TEXT = "w1 w2 w3. W4 w5!\n\nw6"


def test_texts_keep_their_lines_and_their_order(server: Server, translator: Translator) -> None:
    parts = [offline(translator, part) for part in ("w1 w2 w3.", "W4 w5!", "w6")]
    expected = f"{parts[0]} {parts[1]}\n\n{parts[2]}"
    assert server.translate(TEXT) == {"translatedText": expected}
    assert server.translate([TEXT, "", "w6"])["translatedText"] == [expected, "", parts[2]]
    page = server.translate("<p>w1 w2 w3.</p> <b>w6</b>", format="html")["translatedText"]
    assert page == f"<p>{parts[0]}</p> <b>{parts[2]}</b>"
    page = server.translate("<p>w1 <b>w2</b> w3.</p>", format="html")["translatedText"]
    assert re.fullmatch("<p>.*<b>.+</b>.*</p>", page) and re.sub("<.*?>", "", page) == parts[0]


def test_more_fields_on_request(server: Server, translator: Translator) -> None:
    expected = explain(translator, "w1 w2 w8")
    for name, beam, actor in (("greedy", 1, False), ("beam 4", 4, False), ("tg", 1, True), ("tg + beam 4", 4, True)):
        found = server.translate("w1 w2 w8", beam=beam, actor=actor, scores=True, tokens=True)
        theirs = expected.translations[name]
        assert set(found) == {"translatedText", "scores", "tokens"}
        assert (found["translatedText"], found["tokens"]) == (theirs.text, [theirs.tokens])
        assert found["scores"] == pytest.approx([theirs.score])
    found = server.translate(["w1 w2 w8"], actions=True)
    assert found["actions"] == json.loads(json.dumps([[expected.to_json()["actions"]]]))


def test_the_command_explains_what_the_page_shows(server: Server, translator: Translator) -> None:
    """Of several sentences, and of one that is too long for the model."""
    text = "\n".join((TEXT, "--", " ".join(f"w{n % 9}" for n in range(400))))
    expected = explain(translator, text)
    for name, beam, actor in (("greedy", 1, False), ("beam 4", 4, False), ("tg", 1, True), ("tg + beam 4", 4, True)):
        found = server.translate(text, beam=beam, actor=actor, scores=True, tokens=True)
        theirs = expected.translations[name]
        assert (found["translatedText"], [*chain(*found["tokens"])]) == (theirs.text, theirs.tokens)
        assert sum(found["scores"]) / len(found["scores"]) == pytest.approx(theirs.score)
    found = server.translate(text, actions=True)
    joined = expected.to_json()["actions"]
    assert len(found["actions"]) == 4 and [*chain(*(part["source"] for part in found["actions"]))] == joined["source"]
    steps = [*chain(*(part["steps"] for part in found["actions"]))]
    assert [(step["token"], step["actions"]) for step in steps] == [(s["token"], s["actions"]) for s in joined["steps"]]


def test_of_a_sentence_in_pieces_all_is_told(server: Server) -> None:
    before = server.ask("/metrics")[1]
    found = server.translate(" ".join(f"w{n % 9}" for n in range(400)), actions=True, tokens=True)
    (actions,), (tokens,) = found["actions"], found["tokens"]
    assert [step["token"] for step in actions["steps"]] == tokens and tokens.count("</s>") > 1
    assert actions["source"].count("</s>") == tokens.count("</s>")
    seen = [max(index for index, _ in step["attention"][0]) for step in actions["steps"]]
    assert 390 < max(seen) < len(actions["source"]) and seen[0] < 200
    # a piece is a sentence of a batch, and not all of them are one that others would wait for
    translated = [int(re.findall(r"tg_sentences_total (\d+)", page)[0]) for page in (before, server.ask("/metrics")[1])]
    assert translated[1] - translated[0] == tokens.count("</s>")


def test_requests_together_are_not_mixed_up(server: Server, translator: Translator) -> None:
    texts = [" ".join(f"w{(n * k) % 9}" for k in range(1, 2 + n % 7)) for n in range(60)]
    expected = [offline(translator, text) for text in texts]
    found: List[Any] = [None] * len(texts)

    def ask(n: int) -> None:
        found[n] = server.translate(texts[n])["translatedText"]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_one_base_and_several_actors(workspace: Workspace, tmp_path: Path) -> None:
    base, actors = tmp_path / "base.tg", {}
    compile_model(workspace.base_model("transformer"), workspace.task(), Compilation("", str(base)))
    for name, seed in (("news", 1), ("talks", 2)):
        tg = workspace.train("transformer", tmp_path / name, "--lr", "0.3", "--seed", seed, "--max-update", "4")
        actors[name] = str(tmp_path / f"{name}.safetensors")
        export_actor(tg, actors[name])
    flags = [part for name, path in actors.items() for part in ("--actor", f"{name}={path}")]
    offline_one = Translator.load(str(base), actors=actors)
    text = "w1 w2 w3 w4"
    with serving(base, *flags, "--max-beam", 3000) as server:
        expected = {name: offline_one.translate_nbest([text], actor=name)[0][0] for name in (None, *actors)}
        assert len({round(one.score, 3) for one in expected.values()}) == 3
        for asked, name in ((False, None), (True, "news"), ("news", "news"), ("talks", "talks")):
            found = server.translate(text, actor=asked, actions=True, scores=True)
            assert (found["translatedText"], *found["scores"]) == pytest.approx(expected[name])
            assert len(found["actions"][0]["steps"][0]["actions"]) == (2 if name else 0)  # its layers
        assert server.translate(text, scores=True)["scores"] == pytest.approx([expected["news"].score])  # the first
        fields = {"q": text, "source": "xx", "target": "yy"}
        for more, reason in (({"actor": "other"}, "nor the name of one"), ({"beam": 2999}, "dictionary allows")):
            status, answer, _ = server.ask("/translate", {**fields, **more})
            assert status == 400 and reason in answer["error"]
        spec = server.ask("/spec")[1]["components"]["schemas"]["TranslationRequest"]["properties"]
        assert {"type": "string", "enum": ["news", "talks"]} in spec["actor"]["anyOf"]
