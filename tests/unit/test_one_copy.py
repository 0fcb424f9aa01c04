"""A large model is in memory once: mapped from its checkpoint, with nothing drawn and nothing copied."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from weakref import ref

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from torch import nn

from fairseq_tg.actors import MapActor
from fairseq_tg.compiled.extract import extract, extract_lazily, make_engine
from fairseq_tg.compiled.made import Made
from fairseq_tg.compiled.model_file import CompiledModel, TextOptions, read, write
from fairseq_tg.compiled.quantize import quantize
from fairseq_tg.decoding import fast_search
from fairseq_tg.loading import one_copy
from fairseq_tg.loading.checkpoints import load_checkpoint
from fairseq_tg.loading.one_copy import LARGE, OneCopy, WithoutWeights, is_float_on_cpu
from fairseq_tg.memory import MappedFiles
from fairseq_tg.models.maps import ActedMaps, attach_beside
from fairseq_tg.models.site import ActorSite
from tests.conftest import FAMILIES, sample, stir


def mapped(tensor):
    """Whether a tensor's memory is a file's."""
    address = tensor.data_ptr()
    return address in MappedFiles()


@pytest.mark.parametrize("base", FAMILIES)
def test_the_checkpoints_tensors_are_the_models(workspace, base):
    (model,), _ = checkpoint_utils.load_model_ensemble([workspace.bases[base]], task=workspace.task())
    expected = load_checkpoint(workspace.bases[base])["model"]
    for name, parameter in model.named_parameters():
        assert mapped(parameter) and torch.equal(parameter, expected[name]), name


@pytest.mark.parametrize("base", FAMILIES)
def test_actors_are_not_mapped_and_the_base_is(workspace, base):
    model = workspace.actor_model(base)
    actors = {id(parameter) for site in model.sites() for parameter in site.parameters()}
    for name, parameter in model.named_parameters():
        assert mapped(parameter) is (id(parameter) not in actors), name
        assert parameter.requires_grad is (id(parameter) in actors), name


@pytest.mark.parametrize("base", FAMILIES)
@pytest.mark.parametrize("sites", ["attention", "all", "maps"])
def test_actors_that_are_loaded_stay_the_same_parameters(workspace, base, sites):
    """Whoever has them in hand (an optimizer, what shares gradients among ranks) has them still."""
    model = workspace.actor_model(base, actor_sites=sites)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    model.load_state_dict(state)
    after = dict(model.named_parameters())
    assert before and all(after[name] is parameter for name, parameter in before.items())
    joined = [module.joined for module in model.modules() if isinstance(module, ActedMaps)]
    assert not any(joined) and bool(joined) is (sites == "maps")  # nothing is joined before it is needed


def test_half_precision_is_copied(workspace):
    tensors = {"x": torch.zeros(3, dtype=torch.float16)}
    assert not isinstance(one_copy.one_copy(tensors), OneCopy)
    assert isinstance(one_copy.one_copy(tensors, torch.float16), OneCopy)


@pytest.fixture(scope="module", params=FAMILIES)
def half_and_float(request, workspace, tmp_path_factory):
    """Checkpoints of a base in half precision, and of the same weights in float32."""
    state = torch.load(workspace.bases[request.param])
    paths = [str(tmp_path_factory.mktemp(request.param) / name) for name in ("half.pt", "float.pt")]
    for path, dtype in zip(paths, (torch.float16, torch.float32)):
        torch.save({**state, "model": {name: tensor.half().to(dtype) for name, tensor in state["model"].items()}}, path)
    return paths


def logits(model, batch):
    return model(**batch["net_input"])[0]


def loaded(workspace, path):
    (model,), _ = checkpoint_utils.load_model_ensemble([path], task=workspace.task())
    return model.eval()


def test_half_precision_is_extracted_as_what_it_is_in_float32(workspace, half_and_float):
    half, expected = (extract(loaded(workspace, path)) for path in half_and_float)
    assert half[0] == expected[0] and half[1].keys() == expected[1].keys()
    for name, tensor in expected[1].items():
        assert half[1][name].dtype == np.float32 and np.array_equal(half[1][name], tensor), name


@torch.no_grad()
def test_half_precision_is_computed_with_in_float32(workspace, half_and_float):
    half, expected = (loaded(workspace, path) for path in half_and_float)
    batch = sample(workspace.task())
    assert torch.equal(logits(half, batch), logits(expected, batch))
    assert {parameter.dtype for parameter in half.parameters()} == {torch.float32}
    assert torch.equal(logits(half, batch), logits(expected, batch))


def test_the_engine_takes_half_precision_from_the_file(workspace, half_and_float, monkeypatch):
    """What torch would compute with is not made for it."""
    path, family = half_and_float[0], Path(half_and_float[0]).parent.name
    models = []
    monkeypatch.setattr(fast_search, "make_engine", lambda model: models.append(model) or make_engine(model))
    workspace.generate(path, "--beam", "2")
    dtype = torch.float16 if family.startswith("transformer") else torch.float32
    assert {parameter.dtype for parameter in models[0].parameters()} == {dtype}
    assert all(mapped(parameter) is (dtype == torch.float16) for parameter in models[0].parameters())


def test_what_is_asked_for_in_half_precision_stays_so(workspace, half_and_float):
    model = loaded(workspace, half_and_float[0]).half()
    assert not is_float_on_cpu(model)
    model.encoder(*(sample(workspace.task())["net_input"][name] for name in ("src_tokens", "src_lengths")))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}


def test_only_large_weights_are_not_drawn():
    with WithoutWeights():
        small, large = nn.Linear(4, 4), nn.Linear(1024, LARGE // 1024)
        nn.init.constant_(large.weight, 7.0)
        nn.init.constant_(small.weight, 7.0)
    assert small.weight.eq(7).all() and not large.weight.eq(7).any()


def test_what_is_given_back_is_still_there(tmp_path):
    content = np.arange(1 << 20, dtype=np.int32)
    content.tofile(tmp_path / "file")
    array = np.memmap(tmp_path / "file", dtype=np.int32, mode="c")
    array[5] = -1  # a page of our own
    files = MappedFiles()
    files.page_out(array.ctypes.data, array.nbytes)
    content[5] = -1
    assert (array == content).all()
    anonymous = np.ones(1 << 20, dtype=np.int32)
    MappedFiles().page_out(anonymous.ctypes.data, anonymous.nbytes)
    assert anonymous.all()


def resident_of_files():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile")), None)


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="only Linux says which pages are whose")
def test_pages_that_were_only_read_are_let_go_of(tmp_path):
    """Whoever else has them in memory, and they come back from the system's cache."""
    np.ones(1 << 24, dtype=np.int8).tofile(tmp_path / "file")
    array, others = (np.memmap(tmp_path / "file", dtype=np.int8, mode="c") for _ in range(2))
    assert array.sum() + others.sum() == 2 << 24
    before = resident_of_files()
    MappedFiles().page_out(array.ctypes.data, array.nbytes)
    assert before - resident_of_files() > 0.9 * array.nbytes
    assert array.sum() == 1 << 24


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="only Linux says which pages are whose")
@torch.no_grad()
def test_a_weight_that_was_joined_with_its_actor_is_let_go_of(tmp_path):
    """Torch computes with both together; the base's own is in its file."""
    np.ones((2048, 2048), dtype=np.float32).tofile(tmp_path / "file")
    module = nn.Linear(2048, 2048)
    module.weight = nn.Parameter(torch.from_file(str(tmp_path / "file"), False, 2048 * 2048).view(2048, 2048))
    attach_beside(module, "actor", ActorSite(MapActor(2048, 2048, 4)))
    assert mapped(module._parameters["weight"]) and module._parameters["weight"].sum() == 2048 * 2048
    before = resident_of_files()
    joined = module.weight
    assert before - resident_of_files() > 0.9 * joined.nbytes
    assert module._parameters["weight"].eq(1).all() and joined.eq(1).all()


@pytest.mark.parametrize("base", FAMILIES)
@pytest.mark.parametrize("int8", [False, True])
def test_a_compiled_file_is_written_tensor_by_tensor(workspace, tmp_path, base, int8):
    """Each is made once, and gone when the next is made."""
    layout, tensors = extract_lazily(stir(workspace.actor_model(base, actor_sites="maps"), 0.5))
    made = []

    def make(name):
        assert not any(array() is not None for _, array in made)
        array = np.array(tensors[name])
        made.append((name, ref(array)))
        return array

    once = Made({name: partial(make, name) for name in tensors})
    symbols = [str(number) for number in range(layout.vocabulary)]
    model = CompiledModel(layout, TextOptions("xx", "yy"), symbols, symbols, b"", once, int8)
    if int8:
        model = replace(model, tensors=quantize(once, layout))
    write(str(tmp_path / "model.tg"), model)
    assert sorted(name for name, _ in made) == sorted(tensors)
    found = read(str(tmp_path / "model.tg")).tensors
    expected = quantize(tensors, layout) if int8 else tensors
    assert found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in found)


def test_extraction_copies_what_it_changes_only(workspace):
    model = workspace.base_model("transformer")
    _, tensors = extract(model)
    assert np.shares_memory(tensors["decoder.0.fc1.weight"], model.decoder.layers[0].fc1.weight.detach().numpy())
    before = model.decoder.layers[0].self_attn.q_proj.weight.clone()
    tensors["decoder.0.self.qkv.weight"][:] = 0
    assert torch.equal(model.decoder.layers[0].self_attn.q_proj.weight, before)
