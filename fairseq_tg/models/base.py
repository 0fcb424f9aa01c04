"""What the actor-wrapped models have in common: a base built as fairseq builds it, frozen, with actors attached."""

from __future__ import annotations

import hashlib
import json
from argparse import Namespace
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, Type

import torch
from fairseq import hub_utils
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    MODEL_REGISTRY,
    BaseFairseqModel,
    register_model,
)
from fairseq.modules import LayerDropModuleList
from torch import Tensor, nn

from fairseq_tg.actor_format import FURTHER_ACTOR
from fairseq_tg.actors import ACTORS, MapActor, build_actor
from fairseq_tg.errors import UserError
from fairseq_tg.loading.checkpoints import fingerprint, split_tensors
from fairseq_tg.loading.one_copy import WithoutWeights, one_copy
from fairseq_tg.memory import MappedFiles
from fairseq_tg.models.config import ActorConfig
from fairseq_tg.models.maps import attach_beside, joined_once
from fairseq_tg.models.record import FAMILY_PREFIX, Base, check_family, check_not_saved_over, other_base, read_base
from fairseq_tg.models.site import ActorSite, Norms, Seam
from fairseq_tg.names import SITES, one_of

#: Whatever --base-dropout says. Weights alone have no dropout: fairseq's --quant-noise-pq would write over them, again
#: and again. A pass without any layer that has an actor would have nothing to train.
_ALWAYS_STILL = (nn.Linear, nn.Embedding, LayerDropModuleList)
#: Those of fairseq's models that have been registered
FAMILIES: List[str] = []


def register_family(family: str) -> Callable[[Type[ActorModel]], Type[ActorModel]]:
    """Register a tg model for fairseq's model `family`, as --arch tg_FAMILY."""
    arch = FAMILY_PREFIX + family

    def check_flags(args: Namespace) -> None:
        ACTORS[getattr(args, "actor", ActorConfig.actor)]
        check_family(read_base(getattr(args, "base_checkpoint", ""))[0], arch, args.base_checkpoint)

    def register(cls: Type[ActorModel]) -> Type[ActorModel]:
        cls = register_model(arch, dataclass=ActorConfig)(cls)
        # fairseq-train calls this with the parsed flags: what is wrong is said before anything is written.
        ARCH_CONFIG_REGISTRY[arch] = check_flags
        FAMILIES.append(family)
        return cls

    return register


def no_place(family: str) -> UserError:
    return UserError(f"the {family} base has no encoder-decoder attention: there is no place for an actor")


def has_places(family: str, model: Any) -> bool:
    """Whether there is a place for an actor in a model of a family, which has none yet."""
    return any(True for _ in MODEL_REGISTRY[FAMILY_PREFIX + family].seams(model))


class Hub(hub_utils.GeneratorHubInterface):
    """fairseq's hub interface, whose translations are of words alone: without the symbols of languages."""

    def decode(self, tokens: Tensor) -> str:
        marks = tokens.new_tensor(sorted(getattr(self.task, "marks", ())))  # which fairseq's own tasks have not
        return super().decode(tokens[~torch.isin(tokens, marks)])


class ActorModel(BaseFairseqModel):
    """Mixin of the tg models; comes before the fairseq model class that it is mixed with.

    Parameters keep the names they have in the base. A saved model holds the base's tensors as the base's checkpoint
    has them, bit by bit, whatever type or device they are computed in.
    """

    base_class: Type[BaseFairseqModel]

    base: Base
    base_dropout: bool
    actor_sites: str
    base_tensors: Dict[str, Tensor]  # the base's checkpoint
    awaiting_base: bool  # the actors are there, loaded from an actor file; the base is not yet

    # What a family defines

    def seams(self) -> Iterator[Seam]:
        """The paper's places for actors, at encoder-decoder attentions, first decoder layer first."""
        raise TypeError(f"{type(self).__name__} does not say where its actors go")

    def further_seams(self) -> Iterator[Seam]:
        """The places that --actor-sites all adds; actors there have no memory."""
        raise TypeError(f"{type(self).__name__} does not say where else actors could go")

    def map_seams(self) -> Iterator[Seam]:
        """The places that --actor-sites maps adds: linear maps, which give the state and take the context. All but the
        output projection, which may be the embeddings, too."""
        raise TypeError(f"{type(self).__name__} does not say which maps actors could be beside")

    def attach(self, seam: Seam, site: ActorSite) -> None:
        """Make `site` the seam's child of its module and let it act there."""
        raise TypeError(f"{type(self).__name__} does not say how its actors are attached")

    # Building

    @classmethod
    def add_args(cls, parser: Any) -> None:
        gen_parser_from_dataclass(parser, ActorConfig(), delete_default=True)

    @classmethod
    def build_model(cls, cfg: ActorConfig, task: Any) -> ActorModel:
        """Build from a base checkpoint, with its weights, or (without them) from what a saved tg model recorded."""
        ACTORS[cfg.actor]  # refuse an unknown name before reading a large file
        weights: Optional[Dict[str, Tensor]] = None
        if cfg.base_record:
            base = Base.from_json(cfg.base_record)
        else:
            if not getattr(task, "keeps_base_record", False):
                raise UserError(
                    f"--arch {cfg._name} is trained with --task tg_translation, or the tg_ task of a model of many "
                    "languages: add that"
                )
            check_not_saved_over(cfg)
            base, weights = read_base(cfg.base_checkpoint, task)
        check_family(base, cfg._name, cfg.base_checkpoint)
        with WithoutWeights():
            model = cls.base_class.build_model(base.build_options(), task)
        model.__class__ = cls  # see `adopt`: built by fairseq's own code, extended by ours
        assert isinstance(model, ActorModel)
        model.base = base if base.symbols else replace(base, symbols=model.digest_symbols())
        model.base_dropout = cfg.base_dropout
        model.actor_sites = cfg.actor_sites
        model.base_tensors = {}
        model.awaiting_base = False
        model.requires_grad_(False)
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(_contiguous)
        seams, further = model._chosen_seams(cfg.actor_layers)
        for seam in seams:
            actor = build_actor(cfg.actor, seam.state_dim, seam.context_dim, cfg.actor_hidden, cfg.actor_rank)
            model.attach(seam, ActorSite(actor))
        rank = cfg.actor_site_rank
        if rank < 0:
            raise UserError(f"--actor-site-rank {rank}: give a rank, or 0 for full maps")
        for seam in further:
            if cfg.actor_sites == "maps":
                beside = ActorSite(MapActor(seam.context_dim, seam.state_dim, rank))
                attach_beside(model.get_submodule(seam.name), seam.child, beside)
            else:
                actor = build_actor(FURTHER_ACTOR, seam.state_dim, seam.context_dim, rank=rank)
                model.attach(seam, ActorSite(actor))
        if weights is not None:
            model.load_state_dict({**weights, **model.actor_tensors()})
        return model

    def _chosen_seams(self, layers: Optional[str]) -> Tuple[List[Seam], List[Seam]]:
        """Those of the paper's places and those of the further ones that get an actor."""
        if self.actor_sites not in SITES:
            raise UserError(f"--actor-sites {self.actor_sites}: give {one_of(SITES)}")
        seams = list(self.seams())
        further = list({"attention": lambda: (), "all": self.further_seams, "maps": self.map_seams}[self.actor_sites]())
        if not seams:
            raise no_place(self.base.family)
        layers = layers or "all"
        if layers not in ("all", "last"):
            raise UserError(f"--actor-layers {layers}: give all or last")
        if layers == "last":
            of_decoder = [seam for seam in further if seam.name.startswith("decoder.")]
            return seams[-1:], [seam for seam in of_decoder if seam.layer == seams[-1].layer]
        return seams, further

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        checkpoint_file: str = "model.pt",
        data_name_or_path: str = ".",
        actor_weights: Optional[str] = None,
        **kwargs: Any,
    ) -> Any:
        """fairseq's hub interface to a tg checkpoint; with `actor_weights`, an actor file, to the base it is for."""
        kwargs.setdefault("no_beamable_mm", True)  # else a fconv model is made for one beam, whatever it is asked for
        if actor_weights is not None:
            kwargs["actor_weights"] = actor_weights  # see `_take_up_task` of `checkpoints`
        found = hub_utils.from_pretrained(
            model_name_or_path, checkpoint_file, data_name_or_path, archive_map=cls.hub_models(), **kwargs
        )
        # Not a family's own: BART's is for models of English, with GPT-2's subwords
        return Hub(found["args"], found["task"], found["models"])

    # Training

    def sites(self) -> List[ActorSite]:
        return [module for module in self.modules() if isinstance(module, ActorSite)]

    def train(self, mode: bool = True) -> ActorModel:
        """Switch to training; the base stays in evaluation mode unless its dropout is asked for."""
        super().train(mode)
        if mode:
            actors = {module for site in self.sites() for module in site.modules()}
            for module in self.modules():
                still = not self.base_dropout or isinstance(module, _ALWAYS_STILL)
                # Modules with `need_attn` ask their mode only whether to work out attention weights for the user.
                if still and module is not self and module not in actors and not hasattr(module, "need_attn"):
                    module.training = False
        return self

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        rows: Optional[Tensor] = None,
        **kwargs: Any,
    ) -> Any:
        """fairseq's; with `rows`, R of the B source sentences, one for each of the R rows of the target side."""
        in_encoder = self.actor_sites == "maps"  # else nothing of it is trained
        with joined_once(self):
            with torch.set_grad_enabled(torch.is_grad_enabled() and in_encoder):
                encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
                if rows is not None:
                    encoder_out = self.encoder.reorder_encoder_out(encoder_out, rows)
                    src_lengths = src_lengths.index_select(0, rows)
            return self.decoder(prev_output_tokens, encoder_out=encoder_out, src_lengths=src_lengths, **kwargs)

    @contextmanager
    def recorded_norms(self) -> Iterator[List[List[Norms]]]:
        """Record, for each site at an attention (as in the paper's figure), the norms of every call made within."""
        holders = [self.get_submodule(seam.name) for seam in self.seams()]
        sites = [holder.actor for holder in holders if isinstance(getattr(holder, "actor", None), ActorSite)]
        for site in sites:
            site.recorded = []
        try:
            yield [site.recorded for site in sites if site.recorded is not None]
        finally:
            for site in sites:
                site.recorded = None

    # Saving and loading

    def actor_tensors(self) -> Dict[str, Tensor]:
        return split_tensors(super().state_dict())[1]

    def state_dict(self, *args: Any, prefix: str = "", **kwargs: Any) -> Dict[str, Tensor]:
        state = super().state_dict(*args, prefix=prefix, **kwargs)
        if self.base_tensors:
            for name in split_tensors(super().state_dict())[0]:
                del state[prefix + name]
            state.update((prefix + name, tensor) for name, tensor in self.base_tensors.items())
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Tensor], strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        base, actors = split_tensors(state_dict)
        self._check_dictionaries(base)
        if self.digest_symbols() != self.base.symbols:
            raise UserError(
                "the model was trained with other dictionaries: these are as large, but of other symbols or in another "
                "order; give the data directory, languages and files of dictionaries that it was trained with"
            )
        found = fingerprint(base)
        if found != self.base.fingerprint:
            raise UserError(other_base(self.base.fingerprint, found))
        own = self.actor_tensors()
        if self.awaiting_base and not actors:
            actors, self.awaiting_base = own, False
        if not actors:
            raise UserError(
                "the checkpoint is of the base alone, without actors to go on from: leave --restore-file and "
                "--finetune-from-model out, for fresh actors on --base-checkpoint"
            )
        if {n: t.shape for n, t in own.items()} != {n: t.shape for n, t in actors.items()}:
            raise UserError(
                "the checkpoint's actors have other shapes than this model's: go on with the same --actor, "
                "--actor-hidden, --actor-rank, --actor-layers, --actor-sites and --actor-site-rank, "
                "or give another --save-dir"
            )
        live = super().state_dict()
        # One copy in memory where the model computes in the checkpoint's own type
        device, dtype = next((t.device, t.dtype) for t in live.values() if t.is_floating_point())
        state = one_copy({**base, **actors}, dtype) if device.type == "cpu" else {**base, **actors}
        result = super().load_state_dict(state, strict, None, args)
        files = MappedFiles()
        for tensor in actors.values():  # which have been copied, or are not needed yet
            files.page_out(tensor.data_ptr(), tensor.nbytes)
        live = super().state_dict()
        self.base_tensors = {
            name: live[name] if name in live and _identical(live[name], tensor) else tensor
            for name, tensor in base.items()
        }
        return result

    def digest_symbols(self) -> str:
        """A hash of what the numbers of tokens stand for, on both sides."""
        sides = [list(module.dictionary.symbols) for module in (self.encoder, self.decoder)]
        return hashlib.sha256(json.dumps(sides).encode()).hexdigest()

    def _check_dictionaries(self, base: Mapping[str, Tensor]) -> None:
        for side, module in (("source", self.encoder), ("target", self.decoder)):
            name = f"{'encoder' if side == 'source' else 'decoder'}.embed_tokens.weight"
            if name in base and len(base[name]) != len(module.dictionary):
                raise UserError(
                    f"the base has a {side} dictionary of {len(base[name])} entries, the data one of "
                    f"{len(module.dictionary)}: give the data directory that the base was trained with"
                )


def _contiguous(module: nn.Module, args: Tuple[Tensor, ...]) -> Tuple[Tensor, ...]:
    """Undo a transposition before a product with frozen weights.

    torch takes x W of a transposed x as one product if W is to be trained, and if not as many small ones: much slower.
    """
    return tuple(x.contiguous() for x in args)


def _identical(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and (a.data_ptr() == b.data_ptr() or torch.equal(a, b))
