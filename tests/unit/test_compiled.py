"""Compiled models: the file, the engine beside fairseq, text in and out."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
import torch
from fairseq.models.nat import NATransformerDecoder
from fairseq.models.transformer import TransformerModel
from fairseq.modules import SinusoidalPositionalEmbedding
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from subword_nmt import apply_bpe

from fairseq_tg.actors import ACTORS
from fairseq_tg.compiled import InputError, Translator, model_file, text
from fairseq_tg.compiled.compile import compile_model, read_subword_model
from fairseq_tg.compiled.engine import Engine, SearchSettings, sinusoidal_positions
from fairseq_tg.compiled.extract import extract, unsupported
from fairseq_tg.compiled.layout import ACTIVATIONS, Layout
from fairseq_tg.compiled.layout import ACTORS as COMPILED_ACTORS
from fairseq_tg.compiled.library import GENERIC, EngineError, library_path, usable_libraries
from fairseq_tg.compiled.model_file import CompiledFileError, TextOptions
from fairseq_tg.compiled.options import Compilation
from fairseq_tg.compiled.quantize import quantize
from fairseq_tg.compiled.text import TextError, text_functions
from fairseq_tg.errors import UserError
from fairseq_tg.tasks.loading import load_model
from tests.conftest import Workspace, stir
from tests.engine.cases import greedy

WORDS = [f"w{i}" for i in range(9)]


@pytest.fixture(scope="module")
def compiled(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled base."""
    path = tmp_path_factory.mktemp("compiled") / "model.tg"
    compile_model(*load_model(workspace.bases["transformer"], workspace.data), Compilation("", str(path)))
    return path


def random_sources(layout: Layout, count: int, longest: int = 9) -> List[List[int]]:
    generator = random.Random(5)
    return [
        [generator.randrange(4, layout.source_vocabulary) for _ in range(generator.randint(0, longest))] + [layout.eos]
        for _ in range(count)
    ]


# The engine


def test_every_actor_can_be_compiled() -> None:
    assert sorted(COMPILED_ACTORS[1:]) == sorted(ACTORS.names())


@pytest.mark.parametrize("dim", [8, 9, 128])
def test_positions_are_those_of_fairseq(dim: int) -> None:
    theirs = SinusoidalPositionalEmbedding.get_embedding(102, dim, 1)[2:]
    np.testing.assert_allclose(sinusoidal_positions(100, dim, 1), theirs.numpy(), atol=2e-5)


@pytest.mark.parametrize("base", ["transformer", "transformer_prenorm"])
@pytest.mark.parametrize("int8", [False, True])
def test_batches_threads_and_instruction_sets_change_nothing(workspace: Workspace, base: str, int8: bool) -> None:
    layout, tensors = extract(stir(workspace.actor_model(base), 0.5))
    tensors = quantize(tensors, layout) if int8 else tensors
    engine, sources = Engine(layout, tensors, library_path(GENERIC)), random_sources(layout, 40)
    limits = [8] * len(sources)
    together, scores = greedy(engine, sources, limits, scores=True)
    assert scores is not None
    assert [greedy(engine, [source], [8])[0][0] for source in sources] == together
    alone = [greedy(engine, [source], [8], scores=True)[1] for source in sources]
    assert [positional for (positional,) in alone if positional is not None] == scores  # to the last bit
    assert greedy(engine, sources, limits, threads=2)[0] == together
    for name in usable_libraries()[:-1]:
        other, other_scores = greedy(Engine(layout, tensors, library_path(name)), sources, limits, scores=True)
        assert other == together
        # a weight on the edge between two of 256 steps may fall to either side
        tolerance = 1e-3 if int8 else 1e-4
        np.testing.assert_allclose(np.concatenate(other_scores or []), np.concatenate(scores), atol=tolerance)


def in_a_fork(find: Callable[[], Any], expected: Any) -> bool:
    """Whether the same is found, within some seconds, in a process that is forked from this one."""
    child = os.fork()
    if not child:
        signal.alarm(30)
        os._exit(find() != expected)
    return os.waitpid(child, 0)[1] == 0


def test_large_products_are_shared_among_threads(workspace: Workspace) -> None:
    """With matrices large enough to be shared, and not multiples of anything."""
    config = {"dim": 139, "encoder_dim": 139, "encoder_ffn": 517, "decoder_ffn": 517, "vocabulary": 1003}
    config.update(source_vocabulary=1003, encoder_heads=1, decoder_heads=1)
    layout = dataclasses.replace(extract(workspace.base_model("transformer"))[0], **config)
    generator = np.random.default_rng(1)
    tensors = {
        name: np.ones(shape, np.float32)
        if name.endswith("norm.weight")
        else generator.normal(scale=0.1, size=shape).astype(np.float32)
        for name, (_, shape) in layout.tensors(int8=False).items()
    }
    sources = random_sources(layout, 20)
    for weights in (tensors, quantize(tensors, layout)):
        engine = Engine(layout, weights)
        one, two = (greedy(engine, sources, [10] * 20, threads=n, scores=True) for n in (1, 2))
        assert one == two
        assert len({tuple(tokens) for tokens in one[0]}) > 10
        # A sentence by itself: all threads take part in its products
        alone = partial(greedy, engine, sources[:1], [10], threads=2)
        assert alone()[0] == one[0][:1]
        assert in_a_fork(alone, alone())


@pytest.mark.parametrize("base", ["transformer", "lstm", "fconv"])
def test_threads_share_the_sentences_of_a_batch(workspace: Workspace, base: str) -> None:
    """However many there are of both, and whatever is asked for: prefixes, scores, several hypotheses."""
    layout, tensors = extract(stir(workspace.actor_model(base), 0.5))
    engine, generator = Engine(layout, tensors), random.Random(3)
    for count in (2, 3, 7, 16):
        sources = random_sources(layout, count, generator.choice([2, 30]))
        limits = [generator.randrange(12) for _ in sources]
        prefixes = np.array([[generator.choice([layout.pad, 5, 6]), layout.pad] for _ in sources], dtype=np.int32)
        for beam, nbest, forced in ((1, 1, None), (3, 2, None), (3, 3, prefixes), (1, 1, prefixes)):
            wanted = SearchSettings(beam=beam, nbest=nbest, min_length=2)
            alone = engine.search(sources, limits, wanted, 1, forced)
            for threads in (2, 3, 8):
                assert engine.search(sources, limits, wanted, threads, forced) == alone


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(workspace: Workspace, activation: str) -> None:
    model = workspace.base_model("transformer")
    from fairseq import utils

    for layer in [*model.encoder.layers, *model.decoder.layers]:
        layer.activation_fn = utils.get_activation_fn(activation)
    layout, tensors = extract(model)
    assert layout.activation == activation
    source = [5, 7, 6, layout.eos]
    tokens, scores = greedy(Engine(layout, tensors), [source], [6], scores=True)
    sample = {"src_tokens": torch.tensor([source]), "src_lengths": torch.tensor([4])}
    with torch.no_grad():
        logits = model.eval()(**sample, prev_output_tokens=torch.tensor([[layout.eos, *tokens[0][:-1]]]))[0]
    expected = logits.log_softmax(-1)[0].gather(1, torch.tensor(tokens[0])[:, None])[:, 0]
    assert scores is not None
    np.testing.assert_allclose(scores[0], expected.numpy(), atol=1e-4)


def test_int8_scores_are_near_those_of_float32(workspace: Workspace) -> None:
    layout, tensors = extract(stir(workspace.actor_model("transformer"), 0.3))
    sources = random_sources(layout, 30)
    exact = greedy(Engine(layout, tensors), sources, [8] * 30, scores=True)
    rounded = greedy(Engine(layout, quantize(tensors, layout)), sources, [8] * 30, scores=True)
    same = [(a, b) for x, y, a, b in zip(exact[0], rounded[0], exact[1] or [], rounded[1] or []) if x == y]
    assert len(same) > 20
    assert 0 < max(np.abs(np.subtract(a, b)).max() for a, b in same) < 0.3


def test_what_cannot_be_translated_is_refused(workspace: Workspace) -> None:
    layout, tensors = extract(workspace.base_model("transformer"))
    engine = Engine(layout, tensors)
    for sources, limits in (
        ([[layout.source_vocabulary, 2]], [5]),
        ([[-1, 2]], [5]),
        ([[]], [5]),
        ([[4] * (layout.source_positions + 1)], [5]),
        ([[4, 2]], [layout.target_positions]),
        ([[4, 2]], [-1]),
        ([[4, 2], [4, 2]], [5]),
    ):
        with pytest.raises(EngineError):
            greedy(engine, sources, limits)
    for prefixes in (np.array([[layout.vocabulary]]), np.array([4]), np.array([[4], [4]])):
        with pytest.raises(EngineError):
            greedy(engine, [[4, 2]], [5], prefixes=prefixes)
    assert greedy(engine, [], []) == ([], None)


UNSUPPORTED: Dict[str, Any] = {
    "--adaptive-softmax-cutoff": lambda m: setattr(m.decoder, "adaptive_softmax", object()),
    "--cross-self-attention": lambda m: setattr(m.decoder, "cross_self_attention", True),
    "--no-cross-attention": lambda m: setattr(m.decoder.layers[1], "encoder_attn", None),
    "--scale-attn": lambda m: setattr(m.decoder.layers[0], "attn_ln", object()),
    "--activation-fn gelu_accurate": lambda m: _set_activation(m, "gelu_accurate"),
    "--decoder-input-dim": lambda m: setattr(m.decoder, "project_in_dim", object()),
    # of models that are not autoregressive, which have all that the plain one has
    "an encoder and decoder of its own": lambda m: setattr(m.decoder, "__class__", NATransformerDecoder),
}


def _set_activation(model: Any, name: str) -> None:
    from fairseq import utils

    model.decoder.layers[0].activation_fn = utils.get_activation_fn(name)


@pytest.mark.parametrize("option", UNSUPPORTED)
def test_an_unsupported_option_is_named(workspace: Workspace, option: str) -> None:
    model = workspace.base_model("transformer")
    assert unsupported(model) is None
    UNSUPPORTED[option](model)
    with pytest.raises(UserError, match=f"because of {option}"):
        extract(model)


# The file


def test_a_file_holds_what_it_was_made_of(compiled: Path, workspace: Workspace) -> None:
    model = model_file.read(str(compiled))
    layout, tensors = extract(workspace.base_model("transformer"))
    assert model.layout == layout
    assert model.tensors.keys() == tensors.keys()
    assert all(np.array_equal(model.tensors[name], tensors[name]) for name in tensors)
    assert model.text == TextOptions("xx", "yy")
    assert model.target_symbols == workspace.task().target_dictionary.symbols


def test_compiling_twice_gives_the_same_bytes(compiled: Path, workspace: Workspace, tmp_path: Path) -> None:
    again = Compilation("", str(tmp_path / "again.tg"))
    compile_model(*load_model(workspace.bases["transformer"], workspace.data), again)
    assert (tmp_path / "again.tg").read_bytes() == compiled.read_bytes()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_anywhere_is_found(compiled: Path, tmp_path: Path, share: float, bit: int) -> None:
    data = bytearray(compiled.read_bytes())
    data[int(share * len(data))] ^= 1 << bit
    (tmp_path / "flipped.tg").write_bytes(data)
    with pytest.raises(CompiledFileError, match=r"flipped\.tg"):
        model_file.read(str(tmp_path / "flipped.tg"))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused(compiled: Path, tmp_path: Path, share: float) -> None:
    data = compiled.read_bytes()
    (tmp_path / "short.tg").write_bytes(data[: int(share * len(data))])
    with pytest.raises(CompiledFileError, match=r"short\.tg"):
        model_file.read(str(tmp_path / "short.tg"))


def rewrite(path: Path, out: Path, change: Any) -> None:
    """Change a file's metadata and put the right hash on it again, as an attacker would."""
    with safe_open(path, framework="numpy") as file:
        raw = json.loads(json.loads(file.metadata()[model_file.METADATA_KEY])["model"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(raw, tensors)
    model_file._save(str(out), json.dumps(raw), tensors)


FORGERIES: Dict[str, Any] = {
    "another version": lambda raw, tensors: raw.update(format=99),
    "a larger vocabulary": lambda raw, tensors: raw["layout"].update(vocabulary=10**6),
    "more layers": lambda raw, tensors: raw["layout"].update(decoder_layers=7),
    "no heads": lambda raw, tensors: raw["layout"].update(decoder_heads=0),
    "negative heads": lambda raw, tensors: raw["layout"].update(encoder_heads=-1),
    "heads that do not fit": lambda raw, tensors: raw["layout"].update(encoder_heads=5),
    "more positions": lambda raw, tensors: raw["layout"].update(target_positions=2**40),
    "an eos outside": lambda raw, tensors: raw["layout"].update(eos=10**6),
    "an unknown actor": lambda raw, tensors: raw["layout"].update(actor="evil"),
    "an actor that is not there": lambda raw, tensors: raw["layout"].update(actor="gate", actor_layers=[0]),
    "an unknown field": lambda raw, tensors: raw["layout"].update(code="import os"),
    "a number that is none": lambda raw, tensors: raw["layout"].update(encoder_scale="x"),
    "an infinite scale": lambda raw, tensors: raw["layout"].update(decoder_scale=float("nan")),
    "a yes that is a number": lambda raw, tensors: raw["layout"].update(encoder_pre_norm=2**40),
    "millions of layers": lambda raw, tensors: raw["layout"].update(encoder_layers=2**24 - 1),
    "millions of positions": lambda raw, tensors: raw["layout"].update(target_positions=2**24 - 1),
    "layers that are no numbers": lambda raw, tensors: raw["layout"].update(actor_layers=[0.5]),
    "unknown subwords": lambda raw, tensors: raw["text"].update(subword="foo"),
    "an unknown tokenizer": lambda raw, tensors: raw["text"].update(tokenizer=5),
    "a subword model that is a number": lambda raw, tensors: tensors.update({"subword.model": np.array(7)}),
    "int8 that is not": lambda raw, tensors: raw.update(int8=True),
    "a matrix too few": lambda raw, tensors: tensors.pop("output.weight"),
    "a matrix too small": lambda raw, tensors: tensors.update({"output.weight": tensors["output.weight"][:-1]}),
    "another type": lambda raw, tensors: tensors.update({"output.weight": tensors["output.weight"].astype("float16")}),
    "a word too few": lambda raw, tensors: tensors.update({"target.dictionary": tensors["target.dictionary"][:-20]}),
    "sharing that does not fit": lambda raw, tensors: raw["layout"].update(shared_embeddings=["encoder"]),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_file_is_refused_before_the_engine_sees_it(compiled: Path, tmp_path: Path, forgery: str) -> None:
    rewrite(compiled, tmp_path / "same.tg", lambda raw, tensors: None)
    model_file.read(str(tmp_path / "same.tg"))
    rewrite(compiled, tmp_path / "forged.tg", FORGERIES[forgery])
    with pytest.raises(CompiledFileError, match=r"forged\.tg"):
        model_file.read(str(tmp_path / "forged.tg"))


def test_another_version_is_named(compiled: Path, tmp_path: Path) -> None:
    rewrite(compiled, tmp_path / "new.tg", FORGERIES["another version"])
    with pytest.raises(CompiledFileError, match="has format 99, this version reads up to 5"):
        model_file.read(str(tmp_path / "new.tg"))


def test_other_files_are_refused(tmp_path: Path, workspace: Workspace) -> None:
    (tmp_path / "header.tg").write_bytes(struct.pack("<Q", 2**60))
    for path in (tmp_path / "none.tg", tmp_path / "header.tg", Path(workspace.bases["transformer"])):
        with pytest.raises(CompiledFileError, match=path.name):
            model_file.read(str(path))


# Text


def test_lines_are_translated_in_order_whatever_the_batches(compiled: Path) -> None:
    generator = random.Random(1)
    lines = [" ".join(generator.choices(WORDS, k=generator.randint(0, 6))) for _ in range(50)]
    translator = Translator.load(str(compiled), threads=2)
    expected = [translator.translate([line])[0] for line in lines]
    assert translator.translate(lines, batch_size=7) == expected
    assert [not line for line in lines] == [not line for line in expected]
    assert len(set(expected)) > 5


def test_a_translator_is_safe_to_share(compiled: Path) -> None:
    generator = random.Random(2)
    lines = [" ".join(generator.choices(WORDS, k=5)) for _ in range(40)]
    translator = Translator.load(str(compiled))
    expected = translator.translate(lines)
    with ThreadPoolExecutor(8) as pool:
        assert all(result == expected for result in pool.map(lambda _: translator.translate(lines), range(16)))


def test_a_fork_of_a_process_that_has_translated(compiled: Path) -> None:
    """As a server makes that loads its models first: threads do not come along."""
    translator = Translator.load(str(compiled), threads=2)
    translate = partial(translator.translate, WORDS, batch_size=2)
    assert in_a_fork(translate, translate())


@pytest.mark.parametrize("error", [KeyboardInterrupt, EngineError])
def test_batches_after_an_error_are_not_searched(compiled: Path, monkeypatch: pytest.MonkeyPatch, error: Any) -> None:
    searched: List[int] = []

    def search(self: Engine, *args: Any) -> None:
        searched.append(len(searched))
        time.sleep(0.05)
        raise error

    translator = Translator.load(str(compiled))
    monkeypatch.setattr(Engine, "search", search)
    with pytest.raises(error):
        translator.translate(["w1"] * 60, batch_size=1)
    translator._pool().shutdown()  # waits for what is not left out
    assert len(searched) < 20


@pytest.mark.parametrize(
    "options", [{"max_len_b": -1}, {"max_len_a": float("nan")}, {"min_len": -1}, {"threads": 0}, {"threads": 10**5}]
)
def test_options_that_make_no_sense(compiled: Path, options: Dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"give one to|cannot be negative"):
        Translator.load(str(compiled), **options)
    with pytest.raises(ValueError, match="batches of 0"):
        Translator.load(str(compiled)).translate(["w1"], batch_size=0)


def test_padding_in_the_text_is_left_out(compiled: Path) -> None:
    translator = Translator.load(str(compiled))
    assert translator.encode("w1 <pad> w2") == translator.encode("w1 w2")


def test_limits(compiled: Path) -> None:
    assert Translator.load(str(compiled), max_len_b=3).translate_tokens([[4, 5, 6, 2]])[0][-1] == 2
    assert len(Translator.load(str(compiled), max_len_b=3, min_len=3).translate_tokens([[4, 2]])[0]) == 4
    with pytest.raises(InputError, match="a line of 3000 tokens: this model takes up to 1023; split it"):
        Translator.load(str(compiled)).translate(["w1 " * 3000])


def test_sentencepiece_text(tmp_path: Path) -> None:
    import sentencepiece

    (tmp_path / "text").write_text("\n".join(f"a dog {i} runs, fast!" for i in range(200)))
    sentencepiece.SentencePieceTrainer.Train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "sp"), vocab_size=40, minloglevel=2
    )
    model = (tmp_path / "sp.model").read_bytes()
    encode, decode = text_functions(TextOptions("de", "en", "sentencepiece"), model)
    assert len(encode("a dog runs").split()) > 2
    assert decode(encode("a dog runs, fast!")) == "a dog runs, fast!"
    with pytest.raises(TextError, match="not one of sentencepiece's"):
        text_functions(TextOptions("de", "en", "sentencepiece"), b"nonsense")


def test_a_subword_model_that_memory_is_short_for_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """SentencePiece makes one error of some allocations that fail, and of others the one of a file that is no model."""
    import sentencepiece

    def load(self: Any, model: bytes) -> None:
        raise RuntimeError("darts.h:737: exception: failed to resize pool: std::bad_alloc")

    monkeypatch.setattr(sentencepiece.SentencePieceProcessor, "LoadFromSerializedProto", load)
    with pytest.raises(MemoryError):
        text_functions(TextOptions("de", "en", "sentencepiece"), b"")


def test_bpe_and_moses_text() -> None:
    codes = b"#version: 0.2\nd o\ndo g</w>\n"
    encode, decode = text_functions(TextOptions("en", "en", "subword_nmt", "moses"), codes)
    assert encode("A dog's doing.") == "A dog &@@ a@@ p@@ o@@ s@@ ;@@ s do@@ i@@ n@@ g ."
    assert decode(encode("A dog's doing.")) == "A dog's doing."


def test_words_that_were_seen_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Recorded(apply_bpe.BPE):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(apply_bpe, "BPE", Recorded)
    monkeypatch.setattr(text, "MOST_CACHED", 50)
    encode, _ = text_functions(TextOptions("en", "en", "subword_nmt"), b"#version: 0.2\nd o\n")
    for _ in range(2):
        assert [encode(f"doa w{i}") for i in range(200)][-1] == "do@@ a w@@ 1@@ 9@@ 9"
    assert len(made[0].cache) <= 52


SPM, BPE = ["\u2581a", "b"], ["a@@", "b"]


@pytest.mark.parametrize(
    ("symbols", "flags", "message"),
    [
        (SPM, {}, "no subword model.* give --sentencepiece-model FILE"),
        (BPE, {}, "no subword model.* give --bpe-codes FILE"),
        (BPE, {"sentencepiece_model": "x"}, "'x' is not the dictionary's subword model: that has the marks of subword"),
        (["a"], {"bpe_codes": "x"}, "that has the marks of none"),
        (SPM, {"sentencepiece_model": "missing"}, "cannot read the subword model 'missing'"),
        (
            SPM,
            {"sentencepiece_model": "x", "no_subword": True},
            "--sentencepiece-model and --no-subword exclude",
        ),
    ],
)
def test_the_subword_model_is_the_dictionarys(symbols: List[str], flags: Dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_subword_model(symbols, Compilation("", "", **flags))


def test_extracting_leaves_the_model_alone(workspace: Workspace) -> None:
    model = workspace.actor_model("transformer")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    quantize(extract(model)[1], extract(model)[0])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert isinstance(model, TransformerModel)
