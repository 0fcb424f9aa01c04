"""From a fairseq model, with or without actors, to the layout and tensors of a compiled one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Callable, Dict, Optional, Set, Tuple

import numpy as np
import torch
from fairseq.models.fconv import FConvModel
from fairseq.models.lstm import LSTMModel
from fairseq.models.transformer import TransformerModelBase
from torch import nn

from fairseq_tg.actors import MapActor
from fairseq_tg.compiled import fconv_extract, lstm_extract, transformer_extract
from fairseq_tg.compiled.beside import acted_names, matrices_with_actors
from fairseq_tg.compiled.engine import Engine
from fairseq_tg.compiled.layout import Layout, Part
from fairseq_tg.compiled.made import Made
from fairseq_tg.compiled.piece_extract import Piece
from fairseq_tg.errors import UserError
from fairseq_tg.memory import MappedFiles
from fairseq_tg.models.site import ActorSite

#: For each class of models a module with `unsupported` and `extract`
EXTRACTORS = {TransformerModelBase: transformer_extract, LSTMModel: lstm_extract, FConvModel: fconv_extract}


def _extractor(model: nn.Module) -> Any:
    return next((module for known, module in EXTRACTORS.items() if isinstance(model, known)), None)


def unsupported(model: nn.Module) -> Optional[str]:
    """The first thing about a model that the engine does not know, or None."""
    extractor = _extractor(model)
    # A subclass of somebody's own may compute something else
    if extractor is None or not type(model).__module__.startswith(("fairseq.", "fairseq_tg.")):
        return f"its class: a {type(model).__name__} is not compiled"
    return extractor.unsupported(model)


def extract(model: Any) -> Tuple[Layout, Dict[str, np.ndarray]]:
    """The layout and the float32 tensors of a model, all of them."""
    layout, tensors = extract_lazily(model)
    return layout, dict(tensors)


def extract_lazily(model: Any) -> Tuple[Layout, Made]:
    """The same, with tensors that are made from the model's when they are asked for."""
    problem = unsupported(model)
    if problem:
        raise UserError(f"this model cannot be compiled because of {problem}; fairseq-interactive translates with it")
    layout, tensors = _own(model)
    actors, change = _beside(model)
    joined = matrices_with_actors(layout, tensors, actors, change)
    return replace(layout, acted=acted_names(joined)), Made({**tensors.makers, **joined.makers})


def make_engine(model: Any) -> Engine:
    """An engine for a model that is supported, which searches with its actors; it takes as little memory as it can."""
    return Engine(*extract_lazily(model), consume=True)


def _own(model: Any) -> Tuple[Layout, Made]:
    """The layout and tensors of a model that is supported, but for actors beside its maps."""
    layout, extracted = _extractor(model).extract(model)
    files = MappedFiles()
    return layout, Made({name: partial(_array, piece, files) for name, piece in extracted.items()})


def _beside(model: Any) -> Tuple[Set[str], Callable[[Part], np.ndarray]]:
    """The names of the actors beside maps, and what one adds to its map."""
    nets = {name: site.net for name, site in model.named_modules() if isinstance(site, ActorSite)}
    beside = {name: net for name, net in nets.items() if isinstance(net, MapActor)}
    files = MappedFiles()
    return set(beside), lambda part: _array(beside[part.actor].change(), files)


@torch.no_grad()
def _array(piece: Piece, files: MappedFiles) -> np.ndarray:
    tensor = piece() if callable(piece) else piece
    array = np.ascontiguousarray(tensor.detach().cpu().float().numpy())
    if tensor.dtype != torch.float32:  # else it may be what is returned
        files.page_out(tensor.data_ptr(), tensor.nbytes)
    return array
