"""Compiled models of many languages, and a server for all pairs."""

from __future__ import annotations

import json

import pytest

from fairseq_tg.compiled.translator import Translator
from fairseq_tg.errors import UserError
from fairseq_tg.tasks import multi_simple_epoch
from tests.conftest import hypotheses, run_tg
from tests.multilingual import BART, KINDS
from tests.service import Server


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_models_are_told_the_languages(world, kind, tmp_path):
    out = tmp_path / "model.tg"
    printed = run_tg("compile", world.base(kind), out, "--data", world.data, "--no-subword")
    one_pair = KINDS[kind][0] == BART  # which such a model was made for
    assert ("aa-en, no actors" if one_pair else "3 languages, no actors") in printed
    for pair in ("aa-en",) if one_pair else ("aa-en", "en-bb"):
        source, target = pair.split("-")
        translator = Translator.load(str(out), source_lang=source, target_lang=target, max_len_b=20)
        name = world.directory / f"valid.{pair if target == 'en' else f'{target}-{source}'}.{source}"
        found = translator.translate(name.read_text().splitlines())
        expected = hypotheses(world.generate(kind, pair, world.base(kind), "--beam", "1"))
        assert dict(enumerate(found)) == expected
    shown = json.loads(run_tg("explain", out, "a1 a2", "--json", "--source-lang", "aa", "--target-lang", "en"))
    assert shown["translations"]["greedy"]["text"] == translator.of_pair("aa", "en").translate(["a1 a2"])[0]
    tg = world.train(kind, tmp_path / "tg", "--max-update", "2")
    run_tg("actor", "export", tg, tmp_path / "actor.safetensors")
    acted = Translator.load(str(out), source_lang="aa", target_lang="en", actors={"a": tmp_path / "actor.safetensors"})
    assert acted.actors == ["a"] and acted.translate(["a1 a2"], actor="a")
    if one_pair:
        assert Translator.load(str(out)).translate(["a1 a2"]) == translator.of_pair("aa", "en").translate(["a1 a2"])
    else:
        with pytest.raises(ValueError, match="give --source-lang and --target-lang, of aa,bb,en"):
            Translator.load(str(out))
    only = "translates from aa to en, not '{}'" if one_pair else "does not know '{}': it has aa,bb,en"
    for language in ("zz", "bb") if one_pair else ("zz",):
        with pytest.raises(ValueError, match=f"this model {only.format(language)}"):
            Translator.load(str(out), source_lang=language, target_lang="en")


def test_one_server_for_all_pairs(world, tmp_path):
    out = tmp_path / "model.tg"
    run_tg("compile", world.base("m2m"), out, "--data", world.data, "--no-subword")
    server = Server(out)
    try:
        listed = [(item["code"], item["targets"]) for item in server.ask("/languages")[1]]
        assert listed == [(code, ["aa", "bb", "en"]) for code in ("aa", "bb", "en")]
        for source, target, line in (("aa", "en", "a1 a2 a3"), ("en", "bb", "E4 E5"), ("bb", "aa", "b1 b6")):
            translator = Translator.load(str(out), source_lang=source, target_lang=target)
            assert server.translate(line, source=source, target=target) == {
                "translatedText": translator.translate([line])[0]
            }
        page = server.translate("a1 <b>a2</b> a3", source="aa", target="en", format="html")["translatedText"]
        assert page.count("<b>") == page.count("</b>") == 1 and "__" not in page
        assert server.translate("a1", source="aa", target="en", actions=True)["actions"][0]["source"][0] == "__aa__"
        fields = {"q": "a1", "source": "auto", "target": "en"}
        assert server.ask("/translate", fields)[:2] == (
            400,
            {"error": "Invalid request: this server cannot detect languages: give the source language"},
        )
        assert server.translate("a1 e2", source="en", target="en") == {"translatedText": "a1 e2"}
    finally:
        assert server.stop() == 0


def test_other_symbols_are_not_compiled(world, tmp_path, monkeypatch):
    monkeypatch.setattr(multi_simple_epoch, "PLACES", ("",))  # there are no others yet
    with pytest.raises(UserError, match="cannot be compiled: what symbols it has of its languages"):
        run_tg("compile", world.base("m2m"), tmp_path / "model.tg", "--data", world.data, "--no-subword")
    assert not list(tmp_path.iterdir())
