"""The fast search gives what fairseq's gives: over every actor, family and search option."""

from __future__ import annotations

import random
from typing import Any, Dict, List

import pytest
import torch
from fairseq.dataclass.configs import GenerationConfig
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf

from fairseq_tg.actors import ACTORS
from fairseq_tg.compiled.engine import SearchSettings
from fairseq_tg.decoding.fast_search import FastGenerator, is_plain, shared_engine
from fairseq_tg.decoding.sessions import find_session
from tests.conftest import BASES, Workspace, sample, stir
from tests.fairseq_cases import build_lstm, prepare

SENTENCES, BATCH = 60, 20  # for each of the cells below: more than 5,000 in all
ACTOR_SHAPES = ["", *(f"{actor}{rank}" for actor in ACTORS.names() for rank in ("", ":3"))]
ALL_SITES, MAPS = "rnn+", "gate*"
CELLS = [(base, way) for base in BASES for way in ("session", "engine")]
LIMIT = 12


def build_model(workspace: Workspace, base: str, actor: str, fast: bool = True) -> Any:
    if actor:
        name, _, rank = actor.strip("+*").partition(":")
        sites = {ALL_SITES: "all", MAPS: "maps"}.get(actor, "attention")
        wrapped: Any = workspace.actor_model(base, actor=name, actor_rank=int(rank or 0), actor_sites=sites)
        model = stir(wrapped, 0.2 if sites == "maps" else 0.5)  # of products of weights it takes less
    else:
        model = workspace.base_model(base)
    model.eval()
    if fast:
        model.prepare_for_inference_(generation_config())
    return model


def generation_config() -> Any:
    return OmegaConf.create({"generation": {"beam": 1, "no_beamable_mm": False}})


def random_batches(task: Any, sentences: int = SENTENCES) -> List[Dict[str, Any]]:
    """Sentences of random words, of one to fifteen, in padded batches."""
    generator, words = random.Random(3), range(task.source_dictionary.nspecial, len(task.source_dictionary))
    made = []
    for _ in range(0, sentences, BATCH):
        tokens = [
            torch.tensor([*generator.choices(words, k=generator.randint(1, 15)), task.source_dictionary.eos()])
            for _ in range(BATCH)
        ]
        dataset = task.build_dataset_for_inference(tokens, [len(t) for t in tokens])
        made.append(dataset.collater([dataset[i] for i in range(BATCH)]))
    return made


def assert_same(
    workspace: Workspace, model: Any, batches: List[Dict[str, Any]], way: str, prefix: Any = None, **options: Any
) -> int:
    """Both generators on all batches; gives how many sentences ended before the limit."""
    options = {"beam_size": 1, "max_len_b": LIMIT, **options}
    dictionary = workspace.task().target_dictionary
    slow = SequenceGenerator([model], dictionary, **options)
    fast = FastGenerator([model], dictionary, **options)
    if way == "session":
        fast._engine_tried = True
    ended = 0
    for batch in batches:
        prefixes = None if prefix is None else prefix(batch)
        for all_theirs, all_ours in zip(
            slow.generate([model], batch, prefix_tokens=prefixes), fast.generate([model], batch, prefix_tokens=prefixes)
        ):
            for theirs, ours in zip(all_theirs, all_ours, strict=True):
                assert ours["tokens"].tolist() == theirs["tokens"].tolist()
                assert ours["tokens"].dtype == theirs["tokens"].dtype
                for name in ("positional_scores", "score"):
                    torch.testing.assert_close(ours[name], theirs[name], atol=2e-5, rtol=1e-5)
            ended += len(all_ours[0]["tokens"]) <= LIMIT
    assert (fast._engine is not None) == (way == "engine")
    return ended


@pytest.mark.parametrize("actor", ACTOR_SHAPES)
@pytest.mark.parametrize(("base", "way"), CELLS)
def test_tokens_and_scores_are_those_of_fairseq(workspace: Workspace, base: str, way: str, actor: str) -> None:
    model = build_model(workspace, base, actor)
    assert_same(workspace, model, random_batches(workspace.task()), way)


@pytest.mark.parametrize("base", BASES)
def test_actors_at_all_sites(workspace: Workspace, base: str) -> None:
    for actor in (ALL_SITES, MAPS):
        model = build_model(workspace, base, actor)
        for way, beam in (("session", 1), ("engine", 1), ("engine", 4)):
            assert_same(workspace, model, random_batches(workspace.task(), BATCH), way, beam_size=beam)


def test_an_lstm_without_attention(workspace: Workspace) -> None:
    """No session knows it, nor any actor: the engine searches, whatever the beam."""
    shape = {"layers": 2, "encoder_bidirectional": True, "decoder_attention": "0", "residuals": False}
    sizes = dict.fromkeys(("encoder_embed_dim", "encoder_hidden_size", "decoder_embed_dim", "decoder_hidden_size"), 12)
    shape.update(sizes, decoder_out_embed_dim=9, share_decoder_input_output_embed=False)
    task = workspace.task()
    model = prepare(build_lstm(task, shape), 1)
    model.prepare_for_inference_(generation_config())
    assert find_session(model) is None
    for beam in (1, 4):
        assert type(task.build_generator([model], generation(beam=beam))) is FastGenerator
        assert_same(workspace, model, random_batches(task), "engine", beam_size=beam)


OPTIONS: Dict[str, Dict[str, Any]] = {
    "a beam": {"beam_size": 5},
    "a beam, short": {"beam_size": 4, "max_len_b": 2, "min_len": 0},
    "a beam, unknown words": {"beam_size": 3, "unk_penalty": -50.0, "max_len_b": 4, "len_penalty": 2.0},
    "a beam as large as the dictionary allows": {"beam_size": 1000, "normalize_scores": False, "max_len_b": 3},
    "short": {"max_len_b": 2},
    "in proportion": {"max_len_a": 0.5, "max_len_b": 1},
    "long enough": {"min_len": 6},
    "no unknown words": {"unk_penalty": 50.0},
    "unknown words": {"unk_penalty": -50.0, "max_len_b": 4},
    "length penalty": {"len_penalty": 0.3},
    "sums": {"normalize_scores": False},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("base", "way"), CELLS)
def test_search_options(workspace: Workspace, base: str, way: str, options: Dict[str, Any]) -> None:
    if way == "session" and "beam_size" in options:
        pytest.skip("sessions are for greedy search")
    batches = random_batches(workspace.task(), BATCH)
    assert_same(workspace, build_model(workspace, base, "gate"), batches, way, **options)


@pytest.mark.parametrize(("base", "way"), CELLS)
def test_prefixes(workspace: Workspace, base: str, way: str) -> None:
    dictionary = workspace.task().target_dictionary

    def prefixes(batch: Dict[str, Any]) -> torch.Tensor:
        tokens = batch["net_input"]["src_tokens"].new_full((BATCH, 3), dictionary.pad())
        for row in range(BATCH):
            for column in range(row % 4):  # some have none, some end within the longest
                tokens[row, column] = dictionary.nspecial + (row + column) % 5
        tokens[-1, 1] = dictionary.eos()
        return tokens

    model, batches = build_model(workspace, base, "rnn"), random_batches(workspace.task(), BATCH)
    for beam in (1, 4) if way == "engine" else (1,):
        assert_same(workspace, model, batches, way, prefix=prefixes, min_len=5, beam_size=beam)


def test_sentences_end_at_different_steps(workspace: Workspace) -> None:
    """Else the tests above would say nothing of sentences that are dropped from a batch."""
    ended = assert_same(
        workspace, build_model(workspace, "lstm", "gate"), [sample(workspace.task(), 20)], "session", max_len_b=12
    )
    assert ended > 5


@pytest.mark.parametrize("base", BASES)
def test_a_model_in_training_is_decoded_with_the_weights_it_has(workspace: Workspace, base: str) -> None:
    model = build_model(workspace, base, "gate", fast=False)
    dictionary, batch = workspace.task().target_dictionary, random_batches(workspace.task(), BATCH)[0]
    fast = FastGenerator([model], dictionary, max_len_b=LIMIT)
    before = fast.generate([model], batch)
    stir(model, 2.0)
    slow = SequenceGenerator([model], dictionary, beam_size=1, max_len_b=LIMIT).generate([model], batch)
    after = fast.generate([model], batch)
    assert [h[0]["tokens"].tolist() for h in after] == [h[0]["tokens"].tolist() for h in slow]
    assert [float(h[0]["score"]) for h in after] != [float(h[0]["score"]) for h in before]


def generation(**options: Any) -> Any:
    # With all other options too: what is missing is None to omegaconf 2.0, as fairseq 0.12.2 has it, and no default
    return OmegaConf.merge(OmegaConf.structured(GenerationConfig()), {"beam": 1, **options})


def test_who_asks_for_more_than_greedy_search_gets_fairseqs_generator(workspace: Workspace) -> None:
    model = workspace.base_model("transformer")
    assert is_plain([model], generation())
    assert not is_plain([model, model], generation())
    assert is_plain([model], OmegaConf.structured(GenerationConfig()))  # fairseq's default, a beam of 5
    for options in (
        {"sampling": True},
        {"temperature": 2.0},
        {"no_repeat_ngram_size": 2},
        {"constraints": "ordered"},
        {"match_source_len": True},
        {"print_alignment": "hard"},
        {"diversity_rate": 0.5},
        {"diverse_beam_groups": 1},
        {"retain_dropout": True},
        {"replace_unk": ""},
        {"lm_path": "lm.pt"},
    ):
        assert not is_plain([model], generation(**options)), options
    assert not is_plain([model], generation(), extra_gen_cls_kwargs={"lm_model": model})
    assert not is_plain([model], generation(), extra_gen_cls_kwargs={"eos": 5})
    assert is_plain([model], generation(), extra_gen_cls_kwargs={"lm_model": None, "lm_weight": 1.0})


def test_the_task_takes_the_fast_path_by_itself_and_can_be_told_not_to(workspace: Workspace) -> None:
    task, model = workspace.task(), workspace.base_model("lstm")
    assert type(task.build_generator([model], generation())) is FastGenerator
    assert type(task.build_generator([model], generation(beam=2))) is FastGenerator
    task.cfg.no_fast_search = True
    assert type(task.build_generator([model], generation())) is SequenceGenerator


def test_searches_of_one_model_share_an_engine(workspace: Workspace) -> None:
    """As long as its weights are the same."""
    model = workspace.base_model("lstm")
    engine = shared_engine(model)
    assert shared_engine(model) is engine and shared_engine(workspace.base_model("lstm")) is not engine
    tokens = engine.search([[5, 6, 2]], [9], SearchSettings())[0][0]
    with torch.no_grad():
        model.decoder.fc_out.weight.mul_(-1)
    changed = shared_engine(model)
    assert changed is not engine and changed.search([[5, 6, 2]], [9], SearchSettings())[0][0] != tokens


def test_a_subclass_of_a_known_model_is_not_taken_for_it(workspace: Workspace) -> None:
    model = workspace.base_model("fconv")
    assert find_session(model) is not None
    model.__class__ = type("Changed", (type(model),), {})
    assert find_session(model) is None
