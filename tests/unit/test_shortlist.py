"""Shortlists: how they are made of k-best lists, and what a search with one finds."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_tg.compiled import Translator, model_file
from fairseq_tg.compiled.engine import Engine, SearchSettings, Shortlist
from fairseq_tg.compiled.extract import extract
from fairseq_tg.compiled.library import library_path, usable_libraries
from fairseq_tg.compiled.quantize import quantize
from fairseq_tg.corpus import shortlist as counting
from fairseq_tg.corpus.lists import KBestLists
from fairseq_tg.errors import UserError
from tests.conftest import Workspace, run_tg, stir
from tests.unit.test_compiled import random_sources, rewrite

FAMILIES = pytest.mark.parametrize("base", ["transformer", "transformer_prenorm", "lstm", "fconv"])
LIMIT = 8


def random_shortlist(layout: Any, each: int, seed: int = 1) -> Shortlist:
    words = random.Random(seed)
    brought = [sorted(words.sample(range(layout.vocabulary), each)) for _ in range(layout.source_vocabulary)]
    return Shortlist(
        np.arange(0, each * len(brought) + 1, each, dtype=np.int32), np.concatenate(brought).astype(np.int32)
    )


def brought_by(shortlist: Shortlist) -> List[List[int]]:
    """By every source token."""
    return [tokens.tolist() for tokens in np.split(shortlist.tokens, shortlist.starts[1:-1])]


def allowed(shortlist: Shortlist, layout: Any, source: List[int]) -> List[int]:
    special, brought = {layout.pad, layout.eos, layout.unk}, brought_by(shortlist)
    return sorted(special.union(*(brought[token] for token in source)))


@FAMILIES
@pytest.mark.parametrize("beam", [1, 2, 4])
def test_the_search_is_that_of_fairseq_with_all_other_tokens_impossible(
    workspace: Workspace, base: str, beam: int
) -> None:
    task, model = workspace.task(), stir(workspace.actor_model(base), 0.5).eval()
    layout, tensors = extract(model)
    shortlist = random_shortlist(layout, 3)
    engine = Engine(layout, tensors, shortlist=shortlist)
    generator = SequenceGenerator([model], task.target_dictionary, beam_size=beam, max_len_b=LIMIT)
    sizes = []
    for source in random_sources(layout, 8):
        tokens = allowed(shortlist, layout, source)
        sizes.append(len(tokens))
        mask = torch.full((layout.vocabulary,), -torch.inf)
        mask[tokens] = 0.0
        model.get_normalized_probs = lambda out, log_probs, sample=None, mask=mask: (out[0] + mask).log_softmax(-1)
        sample = {"net_input": {"src_tokens": torch.tensor([source]), "src_lengths": torch.tensor([len(source)])}}
        theirs = [h for h in generator.generate([model], sample)[0] if float(h["score"]) > -torch.inf]
        ours = engine.search([source], [LIMIT], SearchSettings(beam=beam))[0][: len(theirs)]
        assert [h["tokens"].tolist() for h in theirs] == [found.tokens for found in ours]
        for their, our in zip(theirs, ours):
            np.testing.assert_allclose(our.positional, their["positional_scores"].numpy(), atol=1e-4)
            assert {*our.tokens} <= {*tokens}
    assert min(sizes) < layout.vocabulary  # else there is nothing to see


@FAMILIES
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("beam", [1, 3])
def test_a_sentence_does_not_depend_on_its_batch(workspace: Workspace, base: str, int8: bool, beam: int) -> None:
    layout, tensors = extract(stir(workspace.actor_model(base), 0.5))
    tensors = quantize(tensors, layout) if int8 else tensors
    sources, settings = random_sources(layout, 12), SearchSettings(beam=beam)
    for name in usable_libraries():
        engine = Engine(layout, tensors, library_path(name), shortlist=random_shortlist(layout, 3))
        together = engine.search(sources, [LIMIT] * len(sources), settings, threads=2)
        assert [engine.search([source], [LIMIT], settings)[0] for source in sources] == together  # to the bit


@FAMILIES
@pytest.mark.parametrize("int8", [False, True])
def test_a_shortlist_of_everything_changes_nothing(workspace: Workspace, base: str, int8: bool) -> None:
    layout, tensors = extract(workspace.base_model(base))
    tensors = quantize(tensors, layout) if int8 else tensors
    sources, limits = random_sources(layout, 12), [LIMIT] * 12
    plain, everything, few = (
        Engine(layout, tensors, shortlist=shortlist)
        for shortlist in (None, random_shortlist(layout, layout.vocabulary), random_shortlist(layout, 2))
    )
    for beam in (1, 4):
        expected = plain.search(sources, limits, SearchSettings(beam=beam))
        assert everything.search(sources, limits, SearchSettings(beam=beam)) == expected
        assert few.search(sources, limits, SearchSettings(beam=beam)) != expected
        assert few.search(sources, limits, SearchSettings(beam=beam, shortlist=False)) == expected


def test_a_prefix_is_possible_whatever_the_shortlist(workspace: Workspace) -> None:
    layout, tensors = extract(workspace.base_model("transformer"))
    none = Shortlist(np.zeros(layout.source_vocabulary + 1, np.int32), np.zeros(0, np.int32))
    engine, prefix = Engine(layout, tensors, shortlist=none), layout.vocabulary - 1
    for beam in (1, 2):
        (found,) = engine.search([[5, layout.eos]], [5], SearchSettings(beam=beam), prefixes=np.array([[prefix]]))
        assert found[0].tokens[0] == prefix
        assert {*found[0].tokens[1:]} <= {prefix, layout.eos, layout.unk}


def test_actors_on_a_base_have_its_shortlist(workspace: Workspace) -> None:
    base, acted = workspace.base_model("transformer"), stir(workspace.actor_model("transformer"), 2.0)
    shortlist = random_shortlist(extract(base)[0], 3)
    layout, tensors = extract(acted)
    shared = Engine(layout, tensors, base=Engine(*extract(base), shortlist=shortlist))
    own, sources = Engine(layout, tensors, shortlist=shortlist), random_sources(layout, 12)
    for beam in (1, 3):
        batch = sources, [LIMIT] * len(sources), SearchSettings(beam=beam)
        assert shared.search(*batch) == own.search(*batch) != Engine(layout, tensors).search(*batch)


def test_pairs_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    words, vocabulary = random.Random(3), 11
    sources = [[*words.choices(range(4, 9), k=words.randint(1, 5)), 2] for _ in range(30)]
    texts = [
        [[*words.choices(range(4, 11), k=words.randint(0, 5)), 2] for _ in range(words.randint(1, 4))] for _ in sources
    ]
    flat = [text for some in texts for text in some]
    lists = KBestLists(
        np.arange(len(sources)),
        np.cumsum([0, *map(len, texts)]),
        np.cumsum([0, *map(len, flat)]),
        np.concatenate(flat),
        np.zeros(len(flat)),
    )
    expected: Counter = Counter()
    for source, some in zip(sources, texts):
        expected.update(s * vocabulary + t for s in {*source} for text in some for t in text)
    monkeypatch.setattr(counting, "TOGETHER", 50)
    keys, counts = counting.count_pairs(lists, [torch.tensor(source) for source in sources], vocabulary)
    assert dict(zip(keys.tolist(), counts.tolist())) == expected
    monkeypatch.setattr(counting, "MOST_PAIRS", 9)
    assert len(counting.count_pairs(lists, [torch.tensor(source) for source in sources], vocabulary)[0]) <= 9


def test_what_is_seen_most_is_brought() -> None:
    seen: Dict[Any, int] = {(2, 2): 9, (2, 5): 8, (2, 6): 3, (2, 7): 3, (4, 2): 9, (4, 6): 1, (4, 7): 2, (5, 5): 8}
    keys, counts = (np.array(x) for x in ([10 * s + t for s, t in sorted(seen)], [seen[key] for key in sorted(seen)]))
    made = counting.most_seen(keys, counts, source_vocabulary=7, vocabulary=10, eos=2, each=1, frequent=2)
    assert brought_by(made) == [[], [], [2, 5], [], [7], [], []]
    made = counting.most_seen(keys, counts, source_vocabulary=7, vocabulary=10, eos=2, each=5, frequent=3)
    assert [brought_by(made)[token] for token in (2, 4, 5)] == [[2, 5, 6], [7], []]


@pytest.fixture(scope="module")
def corpus(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With its lists."""
    path = tmp_path_factory.mktemp("lists") / "corpus"
    flags = ["--gen-subset", "train", "--beam", "3", "--kbest-dir", path, "--kbest-jsonl"]
    workspace.generate(workspace.bases["transformer"], *flags)
    return path


@pytest.mark.parametrize("int8", [False, True])
def test_the_command(workspace: Workspace, corpus: Path, tmp_path: Path, int8: bool) -> None:
    out = tmp_path / "model.tg"
    flags = [workspace.bases["transformer"], out, "--data", workspace.data, *(["--int8"] if int8 else [])]
    said = run_tg("compile", *flags, "--shortlist", corpus / "kbest.jsonl.gz", "--shortlist-each", 2,
                  "--shortlist-frequent", 3)  # fmt: skip
    assert "a shortlist" in said
    model = model_file.read(str(out))
    assert model.shortlist is not None
    eos = model.layout.eos
    brought = brought_by(model.shortlist)[eos]
    assert len(brought) == 3 and eos in brought
    translator = Translator.load(str(out))
    source = translator.encode("w1 w2 w3")
    found = translator.search([source], beam=2)[0]
    assert {token for item in found for token in item.tokens} <= {*allowed(model.shortlist, model.layout, source)}
    whole = Translator.load(str(out), no_shortlist=True, max_len_b=8).search([source], beam=2)[0]
    assert whole == Engine(model.layout, model.tensors).search([source], [8], SearchSettings(2, 1))[0]


FORGERIES: Dict[str, Any] = {
    "numbers that fall": lambda tensors: tensors["shortlist.starts"].__setitem__(1, 10**6),
    "a token beyond the dictionary": lambda tensors: tensors["shortlist.tokens"].__setitem__(0, 10**6),
    "a token below it": lambda tensors: tensors["shortlist.tokens"].__setitem__(0, -1),
    "too few": lambda tensors: tensors.update({"shortlist.starts": tensors["shortlist.starts"][:-1]}),
    "other numbers": lambda tensors: tensors.update(
        {"shortlist.tokens": tensors["shortlist.tokens"].astype(np.float32)}
    ),
    "half of it": lambda tensors: tensors.pop("shortlist.tokens"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_shortlist_that_makes_no_sense_is_refused(
    workspace: Workspace, corpus: Path, tmp_path: Path, forgery: str
) -> None:
    good, bad = tmp_path / "good.tg", tmp_path / "bad.tg"
    flags = [workspace.bases["transformer"], good, "--data", workspace.data]
    run_tg("compile", *flags, "--shortlist", corpus / "kbest.jsonl.gz")
    rewrite(good, bad, lambda raw, tensors: FORGERIES[forgery](tensors))
    with pytest.raises(ValueError, match=r"bad\.tg"):
        model_file.read(str(bad))


def test_lists_of_something_else_are_refused(workspace: Workspace, corpus: Path, tmp_path: Path) -> None:
    def refused(base: str, lists: Any) -> str:
        with pytest.raises(UserError) as error:
            run_tg("compile", workspace.bases[base], tmp_path / "no.tg", "--data", workspace.data, "--shortlist", lists)
        assert not (tmp_path / "no.tg").exists()
        return str(error.value)

    assert "of another base" in refused("lstm", corpus / "kbest.jsonl.gz")
    assert "there is no k-best corpus" in refused("transformer", tmp_path / "kbest.jsonl.gz")
    assert "give the kbest.jsonl.gz of a corpus" in refused("transformer", corpus)
