"""fairseq's hub interface: a tg checkpoint, or a base with an actor file, from Python in two lines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from fairseq_tg.errors import UserError
from fairseq_tg.models.bart import TGBARTModel
from fairseq_tg.models.fconv import TGFConvModel
from fairseq_tg.models.lstm import TGLSTMModel
from fairseq_tg.models.transformer import TGTransformerModel
from tests.conftest import FAMILIES, IN_PROCESS, USER_DIR, hypotheses, run, run_tg
from tests.multilingual import _BART as BART_MODEL
from tests.multilingual import KINDS, World

MODELS: Dict[str, Any] = {"transformer": TGTransformerModel, "lstm": TGLSTMModel, "fconv": TGFConvModel}
LINES = ["w1 w2 w3", "w5", "w4 w4 w0 w8 w2", "w7 unheard w7"]
LIMIT = 20
FILES = Path(__file__).parents[1] / "fixtures" / "fairseq-0.12.3"  # with actors that do something


def interactive(family: str, beam: int, tmp_path: Path) -> Tuple[List[str], List[float]]:
    """What fairseq-interactive prints for the lines: translations and their scores, which are logarithms of base 2."""
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in LINES))
    printed = run(
        *("fairseq-interactive", FILES, "--user-dir", USER_DIR, "--task", "tg_translation", "--beam", beam),
        *("--path", FILES / f"tg_{family}.pt", "--max-len-b", LIMIT, "--input", tmp_path / "lines", *IN_PROCESS),
    )
    found = hypotheses(printed)
    scores = {line.split("\t")[0]: float(line.split("\t")[1]) for line in printed.splitlines() if line[:2] == "H-"}
    return [found[i] for i in range(len(LINES))], [scores[f"H-{i}"] * math.log(2) for i in range(len(LINES))]


@pytest.mark.parametrize("family", FAMILIES)
def test_translations_are_those_of_fairseq_interactive(family: str, tmp_path: Path) -> None:
    checkpoint = MODELS[family].from_pretrained(str(FILES), f"tg_{family}.pt", data_name_or_path=str(FILES))
    actors = str(FILES / f"{family}.safetensors")
    base = MODELS[family].from_pretrained(str(FILES), f"{family}.pt", actor_weights=actors)  # with the data in "."
    for beam in (1, 4):
        texts, scores = interactive(family, beam, tmp_path)
        for hub in (checkpoint, base):
            assert isinstance(hub.models[0], MODELS[family])
            assert hub.translate(LINES, beam=beam, max_len_b=LIMIT) == texts
            assert hub.translate(LINES[0], beam=beam, max_len_b=LIMIT) == texts[0]
            found = hub.generate([hub.encode(line) for line in LINES], beam=beam, max_len_b=LIMIT)
            assert [float(best["score"]) for best, *_ in found] == pytest.approx(scores, abs=2e-4)
        assert len(set(scores)) == len(LINES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_many_languages(world: World, kind: str, tmp_path: Path) -> None:
    """A tg checkpoint, and its base with an actor file, whose task is in the checkpoint's record."""
    tg, actors = world.train(kind, tmp_path / "tg"), tmp_path / "actor.safetensors"
    run_tg("actor", "export", tg, actors)
    expected = hypotheses(world.generate(kind, "aa-en", tg, "--beam", "3"))
    lines = (world.directory / "valid.aa-en.aa").read_text().splitlines()
    pair = {"source_lang": "aa", "target_lang": "en"}
    for path, more in ((tg, {}), (world.base(kind), {"actor_weights": str(actors)})):
        directory, name = Path(path).parent, Path(path).name
        cls = TGBARTModel if KINDS[kind][2] is BART_MODEL else TGTransformerModel
        hub = cls.from_pretrained(str(directory), name, data_name_or_path=world.data, **pair, **more)
        assert hub.translate(lines, beam=3, max_len_b=20) == [expected[i] for i in range(len(lines))]
    allowed = [*range(hub.tgt_dict.nspecial), *hub.task.marks, hub.tgt_dict.index("E3")]
    found = hub.generate([hub.encode("a1 a2")], beam=1, max_len_b=5, prefix_allowed_tokens_fn=lambda *_: allowed)
    assert set(found[0][0]["tokens"].tolist()) <= {*allowed}


def test_an_actor_file_of_another_base_is_refused() -> None:
    with pytest.raises(UserError, match="lstm"):
        TGTransformerModel.from_pretrained(str(FILES), "transformer.pt", actor_weights=str(FILES / "lstm.safetensors"))


def test_a_sentence_that_is_too_long_is_refused() -> None:
    """The translations of a list go by their places: none may be missing."""
    hub = TGTransformerModel.from_pretrained(str(FILES), "tg_transformer.pt", data_name_or_path=str(FILES))
    with pytest.raises(UserError, match="a sentence is too long for the model"):
        hub.translate([LINES[0], "w1 " * 2000])


def test_a_search_that_cannot_be_is_refused() -> None:
    hub = TGTransformerModel.from_pretrained(str(FILES), "tg_transformer.pt", data_name_or_path=str(FILES))
    with pytest.raises(UserError, match="--nbest 9 of a beam of 4: give 1 to 4"):
        hub.generate([hub.encode(LINES[0])], beam=4, nbest=9)
