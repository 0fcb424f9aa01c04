"""Actor files: small, stable, and for one base only."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fairseq_tg.errors import UserError
from fairseq_tg.loading.checkpoints import fingerprint, load_checkpoint
from fairseq_tg.models.actor_files import (
    METADATA_KEY,
    average_actors,
    export_actor,
    import_actor,
    read_actor_file,
    write_actor_file,
)
from tests.conftest import run_tg

ACTORS = ["--actor", "ff", "--actor-sites", "all", "--actor-site-rank", "3", "--max-update", "2"]


@pytest.fixture(scope="module")
def tg(workspace, tmp_path_factory):
    return workspace.train("transformer", tmp_path_factory.mktemp("tg"), *ACTORS)


@pytest.fixture()
def actor_file(tg, tmp_path):
    export_actor(tg, str(tmp_path / "a.safetensors"))
    return str(tmp_path / "a.safetensors")


def test_export_import_export_is_stable(workspace, tg, actor_file, tmp_path):
    import_actor(workspace.bases["transformer"], actor_file, str(tmp_path / "again.pt"))
    export_actor(str(tmp_path / "again.pt"), str(tmp_path / "b.safetensors"))
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    before, after = load_checkpoint(tg), load_checkpoint(str(tmp_path / "again.pt"))
    assert fingerprint(before["model"]) == fingerprint(after["model"])


def test_metadata_says_what_is_inside(workspace, tg, actor_file):
    metadata, tensors = read_actor_file(actor_file)
    assert (metadata.arch, metadata.actor, metadata.actor_rank) == ("tg_transformer", "ff", 0)
    assert (metadata.actor_sites, metadata.actor_site_rank) == ("all", 3)
    base = load_checkpoint(workspace.bases["transformer"])["model"]
    assert set(tensors) == set(load_checkpoint(tg)["model"]) - set(base)
    assert {name.split(".")[3] for name in tensors} == {"actor", "self_actor", "ffn_actor"}


def test_a_file_holds_the_actors_alone(actor_file, tmp_path):
    _, tensors = read_actor_file(actor_file)
    size = sum(tensor.numel() * 4 for tensor in tensors.values())
    assert size < (tmp_path / "a.safetensors").stat().st_size < size + 5000


def test_another_base_is_refused(workspace, actor_file, tmp_path):
    state = load_checkpoint(workspace.bases["transformer"])
    state["model"]["decoder.embed_tokens.weight"][5, 5] += 1
    other = str(tmp_path / "other.pt")
    torch.save({**state, "cfg": torch.load(workspace.bases["transformer"])["cfg"]}, other)
    with pytest.raises(UserError, match="these actors belong to another base"):
        import_actor(other, actor_file, str(tmp_path / "x.pt"))
    with pytest.raises(UserError, match="are for tg_transformer, and the base is a lstm model"):
        import_actor(workspace.bases["lstm"], actor_file, str(tmp_path / "x.pt"))
    assert not (tmp_path / "x.pt").exists()


@pytest.fixture(scope="module")
def several(workspace, tmp_path_factory):
    """Two more trainings."""
    made = [(tmp_path_factory.mktemp("tg"), "--seed", seed) for seed in (2, 3)]
    return [workspace.train("transformer", directory, *ACTORS, *flags) for directory, *flags in made]


def test_the_mean_of_actors(tg, several, actor_file, tmp_path):
    """Of checkpoints and actor files alike; the base stays as it is."""
    paths = [actor_file, *several]
    average_actors(paths, str(tmp_path / "mean.safetensors"))
    run_tg("actor", "average", *paths, tmp_path / "mean.pt")
    average_actors([tg, tg], str(tmp_path / "same.safetensors"))
    assert (tmp_path / "same.safetensors").read_bytes() == Path(actor_file).read_bytes()
    mean, whole = read_actor_file(str(tmp_path / "mean.safetensors"))[1], load_checkpoint(str(tmp_path / "mean.pt"))
    of_all = [load_checkpoint(path)["model"] for path in (tg, *several)]
    for name, tensor in whole["model"].items():
        each = torch.stack([tensors[name] for tensors in of_all])
        if name in mean:
            assert torch.equal(tensor, mean[name]) and torch.allclose(tensor, each.mean(dim=0), atol=1e-6)
            assert tensor.abs().max() == 0 or not torch.equal(tensor, each[0])
        else:
            assert torch.equal(tensor, each[0])
    export_actor(str(tmp_path / "mean.pt"), str(tmp_path / "again.safetensors"))
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "mean.safetensors").read_bytes()


def test_what_has_no_mean(workspace, tg, actor_file, tmp_path):
    gate = workspace.train("transformer", tmp_path / "gate", "--max-update", "1")
    with pytest.raises(UserError, match="are of another shape or base than those of"):
        average_actors([tg, gate], str(tmp_path / "x.pt"))
    with pytest.raises(UserError, match=r"all you gave are actor files: give it the end \.safetensors"):
        average_actors([actor_file, actor_file], str(tmp_path / "x.pt"))
    assert not (tmp_path / "x.pt").exists()


def test_an_average_by_fairseqs_script_is_refused_with_the_remedy(workspace, tg, several, tmp_path):
    states = [torch.load(path) for path in (tg, *several)]
    for name, tensor in states[0]["model"].items():  # as its average_checkpoints.py does
        if tensor.is_floating_point():
            tensor.add_(states[1]["model"][name]).add_(states[2]["model"][name]).div_(3)
    torch.save(states[0], tmp_path / "average.pt")
    for use in (lambda path: export_actor(path, f"{path}.safetensors"), workspace.generate):
        with pytest.raises(UserError, match="make it with fairseq-tg actor average"):
            use(str(tmp_path / "average.pt"))


def test_a_base_has_no_actors_to_export(workspace, tmp_path):
    with pytest.raises(UserError, match="has no actors: give a checkpoint trained with --arch tg_"):
        export_actor(workspace.bases["transformer"], str(tmp_path / "x.safetensors"))
    assert not list(tmp_path.iterdir())


def test_a_flipped_byte_is_found(actor_file, tmp_path):
    content = bytearray((tmp_path / "a.safetensors").read_bytes())
    content[-5] ^= 1
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(UserError, match="is damaged: its weights have not the fingerprint"):
        read_actor_file(actor_file)


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\xff" * 8 + b"{}", None])
def test_foreign_and_cut_files_are_named(actor_file, tmp_path, content):
    path = tmp_path / "a.safetensors"
    path.write_bytes(path.read_bytes()[:-40] if content is None else content)
    with pytest.raises(UserError, match=r"a.safetensors' is no actor file"):
        read_actor_file(str(path))


def test_other_safetensors_and_other_formats_are_refused(actor_file, tmp_path):
    save_file({"x": torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="is no actor file"):
        read_actor_file(str(tmp_path / "x.safetensors"))
    metadata, tensors = read_actor_file(actor_file)
    write_actor_file(str(tmp_path / "new.safetensors"), replace(metadata, format=99), tensors)
    with pytest.raises(UserError, match="has actor file format 99"):
        read_actor_file(str(tmp_path / "new.safetensors"))
    save_file(tensors, tmp_path / "y.safetensors", {METADATA_KEY: json.dumps([1])})
    with pytest.raises(UserError, match="is no actor file"):
        read_actor_file(str(tmp_path / "y.safetensors"))


def test_a_file_with_other_tensors_is_refused(workspace, actor_file, tmp_path):
    metadata, tensors = read_actor_file(actor_file)
    renamed = {name.replace("layers.0", "layers.7"): tensor for name, tensor in tensors.items()}
    smuggled = {**tensors, "decoder.embed_tokens.weight": torch.zeros(3)}
    for content in (renamed, smuggled):
        path = str(tmp_path / "other.safetensors")
        write_actor_file(path, replace(metadata, fingerprint=fingerprint(content)), content)
        with pytest.raises(UserError, match=r"are not those that it says it has|it has other tensors than actors'"):
            workspace.generate(workspace.bases["transformer"], "--actor-weights", path)
    with pytest.raises(UserError, match="it has other tensors than actors'"):
        import_actor(workspace.bases["transformer"], path, str(tmp_path / "x.pt"))


def test_an_unwritable_place_is_named(tg, tmp_path):
    with pytest.raises(UserError, match="cannot write"):
        export_actor(tg, str(tmp_path / "nowhere" / "a.safetensors"))
