"""Models of random shapes and actors, random batches and searches, and what fairseq's own generator finds.

    python -m tests.fairseq_cases FILE

writes some of every family down, for where there is no fairseq: see `tests/engine/cases.py`.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import torch
from fairseq.models import fconv, lstm
from fairseq.models.transformer import transformer_legacy as transformer
from fairseq.sequence_generator import SequenceGenerator
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fairseq_tg.actors import ACTORS, build_actor
from fairseq_tg.compiled.engine import Found, SearchSettings
from fairseq_tg.compiled.extract import extract
from fairseq_tg.models import fconv as acted_fconv
from fairseq_tg.models import lstm as acted_lstm
from fairseq_tg.models import transformer as acted_transformer
from fairseq_tg.models.site import ActorSite, adopt
from tests.conftest import make_workspace
from tests.engine.cases import Case, write

#: Of every family, in a file
COUNT = 60
LIMIT = 8
SIDES = ("encoder", "decoder")
SIZES = st.integers(1, 19)
LSTMS: Any = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 3), "encoder_embed_dim": SIZES, "encoder_hidden_size": SIZES,
        "encoder_bidirectional": st.booleans(), "decoder_embed_dim": SIZES, "decoder_hidden_size": SIZES,
        "decoder_out_embed_dim": SIZES, "decoder_attention": st.sampled_from(["1", "1", "1", "0"]),
        "share_decoder_input_output_embed": st.booleans(), "residuals": st.booleans(),
    }
)  # fmt: skip
CONVOLUTIONS: Any = st.lists(st.tuples(SIZES, st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=4)
FCONVS: Any = st.fixed_dictionaries(
    {
        "embed_dim": SIZES, "encoder": CONVOLUTIONS, "decoder": CONVOLUTIONS, "attention": st.integers(1, 15),
        "decoder_out_embed_dim": SIZES, "share_input_output_embed": st.booleans(),
    }
)  # fmt: skip
TRANSFORMERS: Any = st.fixed_dictionaries(
    {
        "heads": st.tuples(st.integers(1, 3), st.integers(1, 3)), "head_dim": st.integers(2, 20), "ffn": SIZES,
        "layers": st.tuples(st.integers(1, 3), st.integers(1, 3)), "pre_norm": st.booleans(),
        "learned": st.booleans(), "shared": st.booleans(), "layernorm_embedding": st.booleans(),
        "activation_fn": st.sampled_from(["relu", "gelu", "tanh"]),
    }
)  # fmt: skip
#: The actor with its rank and hidden size, and the rank of those at all other sites, None for none there; or no actor
ACTOR_SHAPES: Any = st.none() | st.tuples(
    st.sampled_from(ACTORS.names()), st.sampled_from([0, 0, 2]), st.sampled_from([0, 5]), st.sampled_from([None, 0, 3])
)
SEARCHES: Any = st.fixed_dictionaries(
    {
        "sentences": st.lists(st.integers(0, 9), min_size=1, max_size=6), "beam": st.sampled_from([1, 2, 4, 7]),
        "seed": st.integers(0, 1000), "min_len": st.sampled_from([0, 1, 3]), "limit": st.sampled_from([3, LIMIT]),
        "unk_penalty": st.sampled_from([0.0, 5.0, -3.0]), "len_penalty": st.sampled_from([1.0, 0.0, 0.6, 2.0]),
        "normalize_scores": st.booleans(), "prefix": st.integers(0, 3),
    }
)  # fmt: skip


def build_lstm(task: Any, shape: Dict[str, Any]) -> Any:
    flags = {name: value for name, value in shape.items() if name not in ("layers", "residuals")}
    flags.update(encoder_layers=shape["layers"], decoder_layers=shape["layers"], criterion="cross_entropy", dropout=0.0)
    if flags["share_decoder_input_output_embed"]:
        flags["decoder_out_embed_dim"] = flags["decoder_embed_dim"]
    args = Namespace(**flags)
    lstm.base_architecture(args)
    model = lstm.LSTMModel.build_model(args, task)
    model.decoder.residuals = shape["residuals"]  # which fairseq's decoder knows and none of its flags sets
    return model


def build_fconv(task: Any, shape: Dict[str, Any]) -> Any:
    def spec(layers: List[Any]) -> str:  # a residual comes from a layer that there is
        return str([(size, width, min(back, index + 1)) for index, (size, width, back) in enumerate(layers)])

    attention = [bool(shape["attention"] >> index & 1) for index in range(len(shape["decoder"]))]
    args = Namespace(
        encoder_embed_dim=shape["embed_dim"],
        decoder_embed_dim=shape["embed_dim"],
        encoder_layers=spec(shape["encoder"]),
        decoder_layers=spec(shape["decoder"]),
        decoder_attention=str(attention if any(attention) else True),
        decoder_out_embed_dim=shape["embed_dim" if shape["share_input_output_embed"] else "decoder_out_embed_dim"],
        share_input_output_embed=shape["share_input_output_embed"],
        dropout=0.0,
        max_source_positions=20,
        max_target_positions=20,
    )
    fconv.base_architecture(args)
    return fconv.FConvModel.build_model(args, task)


def build_transformer(task: Any, shape: Dict[str, Any]) -> Any:
    heads, layers = shape["heads"], shape["layers"]
    dims = [count * shape["head_dim"] * 2 for count in heads]  # sines and cosines
    args = Namespace(
        **{f"{side}_embed_dim": dim for side, dim in zip(SIDES, dims)},
        **{f"{side}_attention_heads": count for side, count in zip(SIDES, heads)},
        **{f"{side}_layers": count for side, count in zip(SIDES, layers)},
        **{f"{side}_ffn_embed_dim": shape["ffn"] for side in SIDES},
        **{f"{side}_normalize_before": shape["pre_norm"] for side in SIDES},
        **{f"{side}_learned_pos": shape["learned"] for side in SIDES},
        share_decoder_input_output_embed=shape["shared"],
        layernorm_embedding=shape["layernorm_embedding"],
        activation_fn=shape["activation_fn"],
        dropout=0.0,
        max_source_positions=20,
        max_target_positions=20,
    )
    transformer.base_architecture(args)
    return transformer.TransformerModel.build_model(args, task)


def add_transformer_actors(model: Any, actor: Any) -> None:
    name, rank, hidden, site_rank = actor
    for layer in model.decoder.layers:
        adopt(layer, acted_transformer.ActedDecoderLayer)
        layer.attach("actor", ActorSite(build_actor(name, layer.embed_dim, layer.embed_dim, hidden, rank)))
        for child in ("self_actor", "ffn_actor") if site_rank is not None else ():
            layer.attach(child, ActorSite(build_actor("gate", layer.embed_dim, layer.embed_dim, rank=site_rank)))


def add_actors(model: Any, actor: Any) -> None:
    if actor is None:
        return
    name, rank, hidden, site_rank = actor
    if isinstance(model, transformer.TransformerModel):
        return add_transformer_actors(model, actor)
    decoder = model.decoder
    acted: Any
    if isinstance(model, lstm.LSTMModel):
        acted, attentions = acted_lstm.ActedAttention, [decoder.attention]
        sizes = (decoder.hidden_size, decoder.encoder_output_units)
        further = [(cell, acted_lstm.ActedCell, cell.hidden_size, cell.input_size) for cell in decoder.layers]
        if decoder.attention is not None:
            adopt(decoder, acted_lstm.ActedLSTMDecoder)
    else:
        acted, attentions, sizes = acted_fconv.ActedAttention, list(decoder.attention), None
        further = [(c, acted_fconv.ActedConvolution, c.out_channels, c.in_channels) for c in decoder.convolutions]
        adopt(decoder, acted_fconv.ActedFConvDecoder)
    for attention in filter(None, attentions):
        state, context = sizes or (attention.out_projection.out_features, attention.out_projection.in_features)
        adopt(attention, acted).attach(ActorSite(build_actor(name, state, context, hidden, rank)))
    for module, cls, state, context in further if site_rank is not None else []:
        adopt(module, cls).actor = ActorSite(build_actor("gate", state, context, rank=site_rank))


@torch.no_grad()
def prepare(model: Any, seed: int) -> Any:
    """Random weights: words far enough apart in probability, and states that do not make differences of rounding grow
    (with larger ones fairseq's own float32 and float64 are soon as far apart as two models)."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if name.endswith("weight_g"):  # a weight norm, which is positive
            values = values.abs() * 0.4 + 0.5
        elif parameter.dim() == 1 or "embed_" in name:
            values *= 0.5
        elif "fc_out" not in name:
            values /= math.sqrt(parameter.size(1))
        parameter.copy_(values)
    return model.eval()


def search(task: Any, model: Any, asked: Dict[str, Any]) -> Case:
    """What fairseq finds in a random batch."""
    words, dictionary = random.Random(asked["seed"]), task.target_dictionary
    tokens = [
        [*(words.randrange(dictionary.nspecial, len(dictionary)) for _ in range(n)), dictionary.eos()]
        for n in asked["sentences"]
    ]
    dataset = task.build_dataset_for_inference([torch.tensor(t) for t in tokens], [len(t) for t in tokens])
    batch = dataset.collater([dataset[i] for i in range(len(tokens))])
    sources = [
        [token for token in row if token != dictionary.pad()] for row in batch["net_input"]["src_tokens"].tolist()
    ]
    rules = {name: asked[name] for name in ("min_len", "unk_penalty", "len_penalty", "normalize_scores")}
    generator = SequenceGenerator([model], dictionary, beam_size=asked["beam"], max_len_b=asked["limit"], **rules)
    prefix = torch.full((len(tokens), asked["prefix"]), dictionary.pad())
    for row in prefix:  # some have none
        for column in range(words.randint(0, asked["prefix"])):
            row[column] = words.randrange(dictionary.nspecial, len(dictionary))
    expected = [
        [Found(h["tokens"].tolist(), float(h["score"]), h["positional_scores"].tolist()) for h in hypotheses]
        for hypotheses in generator.generate([model], batch, prefix_tokens=prefix)
    ]
    layout, tensors = extract(model)
    settings = SearchSettings(asked["beam"], 0, *rules.values())
    arrays = {name: np.array(tensors[name]) for name in tensors}
    return Case(layout, arrays, sources, [asked["limit"]] * len(sources), settings, prefix.numpy(), expected)


Build = Callable[[Any, Dict[str, Any]], Any]
#: How a model is built, and what of
FAMILIES: Dict[str, Tuple[Build, Any]] = {
    "lstm": (build_lstm, LSTMS),
    "fconv": (build_fconv, FCONVS),
    "transformer": (build_transformer, TRANSFORMERS),
}


def each_case(family: str, task: Any, count: int, check: Callable[[Case], None]) -> None:
    """Have so many cases checked, the same ones at every call."""
    build, shapes = FAMILIES[family]

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],  # a smaller example would take minutes to find
        suppress_health_check=list(HealthCheck),
    )
    @given(shape=shapes, actor=ACTOR_SHAPES, asked=SEARCHES)
    def checked(shape: Any, actor: Any, asked: Any) -> None:
        model = build(task, shape)
        add_actors(model, actor)
        check(search(task, prepare(model, asked["seed"]), asked))

    checked()


def main() -> None:
    torch.set_num_threads(1)
    cases: List[Case] = []
    with tempfile.TemporaryDirectory() as directory:
        task = make_workspace(Path(directory), []).task()
        for family in FAMILIES:
            each_case(family, task, COUNT, cases.append)
    write(Path(sys.argv[1]), cases)
    print(f"{len(cases)} searches by fairseq in {sys.argv[1]}")


if __name__ == "__main__":
    main()
