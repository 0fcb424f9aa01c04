"""The whole greedy loop in C++ over ATen (aten_loop.cpp): compiled when built, only loaded when used."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any, List, Union

import torch

NAME = "aten_greedy"
FLAGS = ["-O3", "-march=x86-64-v3", "-fopenmp"]


def build(model: Any, directory: Union[str, Path]) -> None:
    from static_step import convert  # not needed to translate, and neither is fairseq
    from torch.utils import cpp_extension

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    encoder, step = convert(model)
    heads = {encoder.heads, *(layer.heads for layer in [*encoder.layers, *step.layers])}
    dims = {encoder.embed.weight.size(1), step.embed.weight.size(1)}
    if len(heads) > 1 or len(dims) > 1:
        raise ValueError("encoder and decoder of different heads or dimensions are not supported")
    source = Path(__file__).with_suffix(".cpp")
    with tempfile.TemporaryDirectory() as scratch:
        cpp_extension.load(NAME, [str(source)], build_directory=scratch, extra_cflags=FLAGS, is_python_module=False)
        shutil.copy(Path(scratch) / f"{NAME}.so", directory)
    weights = {"encoder." + name: tensor for name, tensor in encoder.state_dict().items()}
    weights.update(("step." + name, tensor) for name, tensor in step.state_dict().items())
    numbers = [len(encoder.layers), len(step.layers), heads.pop(), encoder.scale, step.scale]
    numbers += [step.layers[0].norm.eps, step.pad, step.eos]
    torch.save({"weights": weights, "numbers": numbers}, directory / "model.pt")


class Engine:
    def __init__(self, directory: Union[str, Path], threads: int) -> None:
        torch.set_num_threads(threads)
        spec = importlib.util.spec_from_file_location(NAME, Path(directory) / f"{NAME}.so")
        assert spec is not None and spec.loader is not None
        extension = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(extension)
        saved = torch.load(Path(directory) / "model.pt", weights_only=True)
        self.loop = extension.Greedy(saved["weights"], *saved["numbers"])

    def translate(self, tokens: List[int], max_len: int) -> List[int]:
        return self.loop.translate(tokens, max_len)
