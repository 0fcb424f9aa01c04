"""torch.export and AOTInductor: the encoder and the whole greedy loop (torch.while_loop), each a compiled package.

The loop's cache is carried from step to step, and each step copies it: so the loop runs with a small cache, comes back
when that is full, and is called again with one twice as large.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Tuple, Union

import torch
from torch import Tensor, nn

CAPACITY = 32  # of the first cache
LARGEST = 1024

State = Tuple[Tensor, Tensor, Tensor, Tensor]


def build(model: Any, directory: Union[str, Path]) -> None:
    from static_step import Step, convert  # not needed to translate, and neither is fairseq
    from torch._higher_order_ops.while_loop import while_loop

    class Loop(nn.Module):
        """Steps until eos or the limit: t (1), the last id (1), the ids so far (T) and the cache, all as they end."""

        def __init__(self, step: Step) -> None:
            super().__init__()
            self.step = step

        def forward(self, t: Tensor, token: Tensor, ids: Tensor, cache: Tensor, memory: Tensor, limit: Tensor) -> State:
            # The memory does not change, but views of what is not carried are taken for aliases of it and refused.
            def unfinished(t: Tensor, token: Tensor, ids: Tensor, cache: Tensor, memory: Tensor) -> Tensor:
                return (((t == 0) | (token != self.step.eos)) & (t < limit)).all()

            def body(t: Tensor, token: Tensor, ids: Tensor, cache: Tensor, memory: Tensor) -> Tuple[Tensor, ...]:
                ids, cache = ids.clone(), cache.clone()
                token = self.step(token, t, cache, memory)
                return t + 1, token, ids.index_copy_(0, t, token), cache, memory.clone()

            return while_loop(unfinished, body, (t, token, ids, cache, memory))[:4]

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    encoder, step = convert(model)
    tokens = torch.tensor([step.eos] * 7)
    source = torch.export.Dim("source", min=2, max=LARGEST)
    target = torch.export.Dim("target", min=2, max=LARGEST)
    t, ids, limit = torch.tensor([0]), torch.zeros(CAPACITY, dtype=torch.long), torch.tensor([CAPACITY])
    inputs = (t, tokens[:1], ids, step.new_cache(CAPACITY), encoder(tokens), limit)
    shapes = (None, None, {0: target}, {3: target}, {3: source}, None)
    with torch.no_grad():
        encoder_program = torch.export.export(encoder, (tokens,), dynamic_shapes=({0: source},))
        loop_program = torch.export.export(Loop(step), inputs, dynamic_shapes=shapes)
    for name, program in (("encoder", encoder_program), ("loop", loop_program)):
        torch._inductor.aoti_compile_and_package(program, package_path=str(directory / f"{name}.pt2"))
    shape = torch.tensor(step.new_cache(1).shape)
    torch.save({"shape": shape, "eos": step.eos}, directory / "sizes.pt")


class Engine:
    def __init__(self, directory: Union[str, Path], threads: int) -> None:
        torch.set_num_threads(threads)
        self.encoder = torch._inductor.aoti_load_package(str(Path(directory) / "encoder.pt2"))
        self.loop = torch._inductor.aoti_load_package(str(Path(directory) / "loop.pt2"))
        sizes = torch.load(Path(directory) / "sizes.pt", weights_only=True)
        self.shape, self.eos = sizes["shape"].tolist(), sizes["eos"]

    @torch.inference_mode()
    def translate(self, tokens: List[int], max_len: int) -> List[int]:
        memory = self.encoder(torch.tensor(tokens))
        t, token = torch.tensor([0]), torch.tensor([self.eos])
        ids, cache = torch.zeros(0, dtype=torch.long), torch.zeros(*self.shape[:3], 0, self.shape[4])
        capacity, steps = CAPACITY, 0
        while steps < max_len and (steps == 0 or int(token) != self.eos):
            ids = torch.cat([ids, ids.new_zeros(capacity - ids.size(0))])
            cache = torch.cat([cache, cache.new_zeros(*self.shape[:3], capacity - cache.size(3), self.shape[4])], 3)
            t, token, ids, cache = self.loop(t, token, ids, cache, memory, torch.tensor([min(capacity, max_len)]))
            steps, capacity = int(t), 2 * capacity
        result = ids[:steps].tolist()
        return result if result and result[-1] == self.eos else [*result, self.eos]
