"""torch.compile of the encoder and of the decoder step with a static cache; the loop is Python's.

The cache grows by doubling, so that little of what is attended to is masked. What is compiled is kept in `directory`
(inductor's cache), but a process that uses it has to trace it again, and without that cache needs a compiler.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, List, Union

import torch

CAPACITY = 32  # of the first cache
WARM_UP = 3  # source length and steps that make every trace


def build(model: Any, directory: Union[str, Path]) -> None:
    from static_step import convert

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    torch.save(convert(model), directory / "modules.pt")
    Engine(directory, torch.get_num_threads())


class Engine:
    def __init__(self, directory: Union[str, Path], threads: int) -> None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(directory).resolve() / "inductor")
        torch.set_num_threads(threads)
        # Modules of our own making: the file holds classes of static_step and fairseq.
        encoder, self.step = torch.load(Path(directory) / "modules.pt", weights_only=False)
        self.eos = self.step.eos
        self.run_encoder = torch.compile(encoder, fullgraph=True, dynamic=True)
        self.run_step = torch.compile(self.step, fullgraph=True, dynamic=True)
        self.translate([self.eos] * WARM_UP, WARM_UP)

    @torch.inference_mode()
    def translate(self, tokens: List[int], max_len: int) -> List[int]:
        memory = self.run_encoder(torch.tensor(tokens))
        cache = self.step.new_cache(CAPACITY)
        token, t, result = torch.tensor([self.eos]), torch.tensor([0]), []
        for step in range(max_len):
            if step == cache.size(3):
                cache = torch.cat([cache, torch.zeros_like(cache)], 3)
            token = self.run_step(token, t, cache, memory)
            t += 1
            result.append(int(token))
            if result[-1] == self.eos:
                return result
        return [*result, self.eos]
