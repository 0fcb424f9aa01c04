"""The promises on attached actors, over every actor and every shape of base."""

from __future__ import annotations

import copy

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_tg.actors import ACTORS
from fairseq_tg.errors import UserError
from fairseq_tg.loading.checkpoints import fingerprint, split_tensors
from fairseq_tg.models.site import ActorSite
from tests.conftest import BASES, sample, stir

SHAPES = {
    **{name: {"actor": name} for name in ACTORS.names()},
    "all sites": {"actor": "rnn", "actor_sites": "all", "actor_site_rank": 3},
    "maps": {"actor": "gate", "actor_sites": "maps", "actor_site_rank": 3},
    "full maps": {"actor": "linear", "actor_sites": "maps", "actor_site_rank": 0},
}
CELLS = [pytest.param(base, shape, id=f"{base}-{name}") for base in BASES for name, shape in SHAPES.items()]
MATRIX = pytest.mark.parametrize("base, shape", CELLS)
ALL_BASES = pytest.mark.parametrize("base", list(BASES))


def logits(model, batch):
    return model(**batch["net_input"])[0]


def incremental_logits(model, batch, reorder=None):
    """Step by step, as fairseq's generator calls a decoder; `reorder` maps a step to a new order of the rows."""
    tokens, state, steps = batch["net_input"]["prev_output_tokens"], {}, []
    inputs = {k: v for k, v in batch["net_input"].items() if k != "prev_output_tokens"}
    encoder_out = model.encoder.forward_torchscript(inputs)
    for step in range(tokens.size(1)):
        if reorder and step in reorder:
            order = reorder[step]
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
            model.decoder.reorder_incremental_state_scripting(state, order)
            tokens = tokens.index_select(0, order)
        out = model.decoder.forward(tokens[:, : step + 1], encoder_out=encoder_out, incremental_state=state)
        steps.append(out[0])
    return torch.cat(steps, dim=1)


def acting(workspace, base, shape):
    """A model whose actors do something; less at many places, where an LSTM would make much of the last digit."""
    strength = {"all": 0.5, "maps": 0.05}.get(shape.get("actor_sites"), 1.0)
    return stir(workspace.actor_model(base, **shape), strength).eval()


def real(batch, model):
    return batch["target"].ne(model.decoder.dictionary.pad())


@MATRIX
@torch.no_grad()
def test_fresh_actor_changes_nothing(workspace, base, shape):
    plain, model = workspace.base_model(base).eval(), workspace.actor_model(base, **shape).eval()
    batch = sample(workspace.task(), sentences=30)
    # Not to the bit: torch multiplies by frozen weights in another order than by weights that could be trained.
    for run in (logits, incremental_logits):
        torch.testing.assert_close(run(model, batch), run(plain, batch), rtol=1e-5, atol=1e-5)
    seen = []
    for site in model.sites():
        site.register_forward_hook(lambda m, a, action: seen.append(action))
    logits(model, batch)
    assert seen and all(torch.count_nonzero(action) == 0 for action in seen)


@MATRIX
@torch.no_grad()
def test_actors_change_something_at_every_seam(workspace, base, shape):
    model, batch = workspace.actor_model(base, **shape).eval(), sample(workspace.task())
    before = logits(model, batch)
    further = {"all": model.further_seams, "maps": model.map_seams}.get(shape.get("actor_sites"), lambda: ())()
    further = list(further)
    assert len(model.sites()) == len([*model.seams(), *further]) > len(further)
    for site in model.sites():
        saved = copy.deepcopy(site.state_dict())
        for parameter in site.parameters():
            parameter.normal_()
        assert not torch.allclose(logits(model, batch), before, atol=1e-4)
        site.load_state_dict(saved)


@MATRIX
@torch.no_grad()
def test_teacher_forced_is_incremental(workspace, base, shape):
    model, batch = acting(workspace, base, shape), sample(workspace.task())
    mask = real(batch, model)
    torch.testing.assert_close(incremental_logits(model, batch)[mask], logits(model, batch)[mask], rtol=1e-4, atol=1e-5)


@MATRIX
@torch.no_grad()
def test_batched_is_single(workspace, base, shape):
    task = workspace.task()
    model, batch = acting(workspace, base, shape), sample(task)
    together = logits(model, batch)
    for row, index in enumerate(batch["id"].tolist()):
        alone = task.dataset("valid").collater([task.dataset("valid")[index]])
        expected = logits(model, alone)[0]
        torch.testing.assert_close(together[row, : len(expected)], expected, rtol=1e-4, atol=1e-5)


@MATRIX
@torch.no_grad()
def test_reordered_is_recomputed(workspace, base, shape):
    """Beams that change places in mid-sentence go on as if they had always been there."""
    model, batch = acting(workspace, base, shape), sample(workspace.task(), sentences=2)
    # two sentences with two beams each, of different tokens: fairseq reorders within a sentence
    inputs = {key: value.repeat_interleave(2, dim=0) for key, value in batch["net_input"].items()}
    inputs["prev_output_tokens"] = torch.randint(4, len(model.decoder.dictionary), (4, 7))
    batch = {"net_input": inputs}
    first, second = torch.tensor([1, 0, 2, 2]), torch.tensor([0, 0, 3, 2])
    got = incremental_logits(model, batch, {2: first, 4: second})
    expected = logits(model, batch)[first[second]]
    torch.testing.assert_close(got[:, 4:], expected[:, 4:], rtol=1e-4, atol=1e-5)


@MATRIX
def test_only_actors_train_and_the_base_stays_bit_by_bit(workspace, base, shape):
    model, batch = workspace.actor_model(base, **shape), sample(workspace.task())
    of_sites = {id(p) for m in model.modules() if isinstance(m, ActorSite) for p in m.parameters()}
    assert {id(p) for p in model.parameters() if p.requires_grad} == of_sites
    before = copy.deepcopy(split_tensors(model.state_dict())[0])
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model.train()
    for _ in range(2):
        optimizer.zero_grad()
        logits(model, batch).float().log_softmax(-1)[..., 5].sum().backward()
        optimizer.step()
    after, actors = split_tensors(model.state_dict())
    assert fingerprint(after) == fingerprint(before) == model.base.fingerprint
    assert fingerprint(torch.load(workspace.bases[base])["model"]) == model.base.fingerprint
    assert any(tensor.abs().sum() > 0 for tensor in actors.values())


@ALL_BASES
def test_with_the_base_s_dropout_every_pass_trains_every_actor(workspace, base):
    """Also where fairseq's LayerDrop would leave out layers, or all that have actors."""
    model, batch = workspace.actor_model(base, base_dropout=True).train(), sample(workspace.task())
    for _ in range(8):
        model.zero_grad()
        logits(model, batch).float().log_softmax(-1)[..., 5].sum().backward()
        assert all(any(p.grad is not None for p in site.parameters()) for site in model.sites())


@ALL_BASES
def test_base_dropout_is_off_in_training_unless_asked_for(workspace, base):
    batch = sample(workspace.task())
    model = stir(workspace.actor_model(base)).train()
    assert model.training
    torch.testing.assert_close(logits(model, batch), logits(model, batch))
    torch.testing.assert_close(logits(model, batch), logits(model.eval(), batch), rtol=1e-4, atol=1e-5)
    noisy = stir(workspace.actor_model(base, base_dropout=True)).train()
    assert not torch.allclose(logits(noisy, batch), logits(noisy, batch))


@ALL_BASES
@torch.no_grad()
def test_a_saved_model_rebuilds_from_its_own_file(workspace, base, tmp_path):
    task = workspace.task()
    config = {"_name": f"tg_{base.split('_')[0]}", "base_checkpoint": workspace.bases[base], **SHAPES["all sites"]}
    config = OmegaConf.create(config)
    model = stir(task.build_model(config)).eval()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    config.base_checkpoint = "/nowhere/base.pt"
    again = task.build_model(config, from_checkpoint=True).eval()
    again.load_state_dict(torch.load(tmp_path / "model.pt"))
    batch = sample(task)
    assert torch.equal(logits(again, batch), logits(model, batch))
    assert fingerprint(again.state_dict()) == fingerprint(model.state_dict())


@ALL_BASES
@torch.no_grad()
def test_a_cast_does_not_round_what_is_saved(workspace, base):
    model = stir(workspace.actor_model(base))
    saved = fingerprint(split_tensors(model.state_dict())[0])
    model.half()
    assert next(model.encoder.parameters()).dtype == torch.half
    assert fingerprint(split_tensors(model.state_dict())[0]) == saved
    reloaded = model.state_dict()
    model.load_state_dict(reloaded)
    assert fingerprint(split_tensors(model.state_dict())[0]) == saved


@ALL_BASES
@torch.no_grad()
def test_a_copy_acts_on_its_own(workspace, base):
    model, batch = stir(workspace.actor_model(base)).eval(), sample(workspace.task())
    twin = copy.deepcopy(model)
    expected = logits(model, batch)
    assert torch.equal(logits(twin, batch), expected)
    stir(twin, scale=3.0)
    assert not torch.allclose(logits(twin, batch), expected)
    assert torch.equal(logits(model, batch), expected)


@pytest.mark.parametrize(
    "base, layers, sites, further",
    [
        *(("transformer", "all", 2, 4), ("transformer", "last", 1, 2), ("transformer", None, 2, 4)),
        *(("fconv", None, 2, 3), ("fconv", "last", 1, 1)),
        *(("lstm", None, 1, 2), ("lstm", "all", 1, 2), ("lstm", "last", 1, 1)),
    ],
)
def test_actor_layers(workspace, base, layers, sites, further):
    model = workspace.actor_model(base, actor_layers=layers)
    assert len(model.sites()) == sites
    assert model.sites()[-1] is model.get_submodule(list(model.seams())[-1].name).actor
    model = workspace.actor_model(base, actor_layers=layers, actor_sites="all")
    assert len(model.sites()) == sites + further
    last = list(model.further_seams())[-1]
    assert getattr(model.get_submodule(last.name), last.child) in model.sites()


@ALL_BASES
def test_further_sites_have_small_gates(workspace, base):
    model = workspace.actor_model(base, actor="ff", actor_sites="all", actor_site_rank=2)
    at_attention = {f"{seam.name}.actor" for seam in model.seams()}
    for name, site in model.named_modules():
        if isinstance(site, ActorSite):
            rank = 0 if name in at_attention else 2
            assert (type(site.net), site.net.rank) == (ACTORS["gate" if rank else "ff"], rank)


def test_state_and_context_may_differ_in_size(workspace):
    (seam,) = workspace.actor_model("lstm").seams()
    assert (seam.state_dim, seam.context_dim) == (16, 20)
    seam = next(workspace.actor_model("fconv").seams())
    assert (seam.state_dim, seam.context_dim) == (8, 10)


@torch.no_grad()
def test_the_action_comes_after_the_sublayer(workspace):
    """h~ = f(h, e) + a, with f the whole sublayer: in a post-norm base behind the layer norm."""
    model, batch = stir(workspace.actor_model("transformer")).eval(), sample(workspace.task())
    layer, seen = model.decoder.layers[0], {}
    layer.actor.register_forward_hook(lambda m, a, out: seen.update(action=out, h=a[0], e=a[1]))
    layer.fc1.register_forward_pre_hook(lambda m, a: seen.update(result=a[0]))
    logits(model, batch)
    sublayer = torch.nn.functional.layer_norm(
        seen["h"] + seen["e"],
        [8],
        layer.encoder_attn_layer_norm.weight,
        layer.encoder_attn_layer_norm.bias,
    )
    torch.testing.assert_close(seen["result"], sublayer + seen["action"])


@torch.no_grad()
def test_the_action_comes_after_the_residual_in_a_prenorm_base(workspace):
    model, batch = stir(workspace.actor_model("transformer_prenorm")).eval(), sample(workspace.task())
    layer, seen = model.decoder.layers[0], {}
    layer.actor.register_forward_hook(lambda m, a, out: seen.update(action=out, e=a[1]))
    layer.encoder_attn_layer_norm.register_forward_pre_hook(lambda m, a: seen.update(residual=a[0]))
    layer.final_layer_norm.register_forward_pre_hook(lambda m, a: seen.update(result=a[0]))
    logits(model, batch)
    torch.testing.assert_close(seen["result"], seen["residual"] + seen["e"] + seen["action"])


@torch.no_grad()
@pytest.mark.parametrize("base", ["transformer", "transformer_prenorm"])
def test_further_actions_come_after_their_sublayers(workspace, base):
    """In a post-norm base behind the layer norm, in a pre-norm base behind the residual sum."""
    model, batch = stir(workspace.actor_model(base, **SHAPES["all sites"])).eval(), sample(workspace.task())
    layer, seen = model.decoder.layers[0], {}
    keep = {
        layer: "entered",
        layer.encoder_attn_layer_norm if layer.normalize_before else layer.encoder_attn: "after self",
        layer.final_layer_norm if layer.normalize_before else layer.fc1: "after attention",
        model.decoder.layers[1]: "after ffn",
    }
    for module, name in keep.items():
        module.register_forward_pre_hook(
            lambda m, a, k, name=name: seen.update({name: k.get("query", *a[:1])}), with_kwargs=True
        )
    for name in ("self_actor", "actor", "ffn_actor"):
        getattr(layer, name).register_forward_hook(lambda m, a, out, name=name: seen.update({name: (*a[:2], out)}))
    logits(model, batch)
    for before, name, after, norm in (
        ("entered", "self_actor", "after self", layer.self_attn_layer_norm),
        ("after self", "actor", "after attention", layer.encoder_attn_layer_norm),
        ("after attention", "ffn_actor", "after ffn", layer.final_layer_norm),
    ):
        h, e, action = seen[name]
        assert action.abs().max() > 0
        if layer.normalize_before:
            torch.testing.assert_close(seen[after], seen[before] + e + action)
            torch.testing.assert_close(h, norm(seen[before]))
        else:
            # the norm without its hook, which acts
            normed = torch.nn.functional.layer_norm(seen[before] + e, [8], norm.weight, norm.bias)
            torch.testing.assert_close(seen[after], normed + action)
            torch.testing.assert_close(h, seen[before])


@torch.no_grad()
def test_an_action_behind_a_convolution_comes_before_its_unit(workspace):
    model, batch = stir(workspace.actor_model("fconv", **SHAPES["all sites"])).eval(), sample(workspace.task())
    seen = {}
    model.decoder.convolutions[0].actor.register_forward_hook(lambda m, a, out: seen.update(given=a[0], action=out))
    model.decoder.attention[0].register_forward_pre_hook(lambda m, a: seen.update(state=a[0]))
    logits(model, batch)
    expected = torch.nn.functional.glu(seen["given"] + seen["action"], dim=2)
    torch.testing.assert_close(seen["state"].transpose(0, 1), expected)
    assert seen["action"].abs().max() > 0


@torch.no_grad()
def test_an_action_behind_an_lstm_layer_goes_up_and_on(workspace):
    """To what is above the layer, and to its own next step."""
    model, batch = stir(workspace.actor_model("lstm", **SHAPES["all sites"])).eval(), sample(workspace.task())
    first, second = model.decoder.layers
    moved, states, inputs = [], [], []
    first.actor.register_forward_hook(lambda m, a, action: moved.append(a[0][0] + action[0]))
    first.register_forward_pre_hook(lambda m, a: states.append(a[1][0]))
    second.register_forward_pre_hook(lambda m, a: inputs.append(a[0]))
    logits(model, batch)
    for step in range(len(moved) - 1):
        assert torch.equal(inputs[step], moved[step]) and torch.equal(states[step + 1], moved[step])


@torch.no_grad()
@pytest.mark.parametrize("base", ["transformer", "transformer_prenorm"])
@pytest.mark.parametrize("sublayer", range(3))
def test_a_pass_that_was_broken_off_leaves_no_action_waiting(workspace, base, sublayer):
    model, batch = stir(workspace.actor_model(base, **SHAPES["all sites"])).eval(), sample(workspace.task())
    expected, layer, calls = logits(model, batch), model.decoder.layers[0], []

    def fail(*_):
        """Between what a sublayer gives and its end, where the action is added."""
        calls.append(layer.waiting)
        if len(calls) > sublayer:
            raise KeyboardInterrupt

    broken = layer.dropout_module.register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        logits(model, batch)
    broken.remove()
    assert calls[-1] is not None
    assert torch.equal(logits(model, batch), expected)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"base_checkpoint": ""}, "no base: give --base-checkpoint"),
        ({"base_checkpoint": "/nowhere/base.pt"}, "no checkpoint at '/nowhere/base.pt'"),
        ({"actor": "gaet"}, "unknown actor 'gaet': --actor takes one of gate"),
        ({"actor_layers": "first"}, "--actor-layers first: give all or last"),
        ({"actor_rank": -1}, "--actor-rank -1"),
        ({"actor_sites": "both"}, "--actor-sites both: give attention, all or maps"),
        ({"actor_sites": "all", "actor_site_rank": -1}, "--actor-site-rank -1: give a rank, or 0 for full maps"),
        ({"_name": "tg_lstm"}, "is a transformer model, which --arch tg_lstm cannot wrap: use --arch tg_transformer"),
    ],
)
def test_bad_options_are_refused(workspace, options, message):
    with pytest.raises(UserError, match=message):
        workspace.actor_model("transformer", **options)


def test_weights_of_another_base_are_refused(workspace):
    model = workspace.actor_model("transformer")
    other = model.state_dict()
    other["decoder.embed_tokens.weight"] = other["decoder.embed_tokens.weight"] + 1e-7
    with pytest.raises(UserError, match="these actors belong to another base"):
        model.load_state_dict(other)


def test_actors_of_another_shape_are_refused(workspace):
    model = workspace.actor_model("transformer", actor="ff")
    with pytest.raises(UserError, match="other shapes than this model's"):
        model.load_state_dict(workspace.actor_model("transformer", actor="gate").state_dict())
    with pytest.raises(UserError, match="of the base alone, without actors to go on from"):
        model.load_state_dict(workspace.base_model("transformer").state_dict())


def test_an_lstm_without_attention_has_no_place_for_an_actor(workspace, tmp_path):
    state = torch.load(workspace.bases["lstm"])
    state["cfg"]["model"].decoder_attention = "0"
    state["model"] = {k: v for k, v in state["model"].items() if not k.startswith("decoder.attention")}
    torch.save(state, tmp_path / "base.pt")
    with pytest.raises(UserError, match="no encoder-decoder attention"):
        workspace.actor_model("lstm", base_checkpoint=str(tmp_path / "base.pt"))
