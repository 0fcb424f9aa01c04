"""What the machine allows: how fast it reads memory and multiplies, and so how fast a model can be at most."""

from __future__ import annotations

import timeit
from dataclasses import dataclass
from typing import Callable

import torch


@dataclass(frozen=True)
class Machine:
    threads: int
    bytes_per_second: float  # read from memory, by a product of a large matrix with a vector
    flops_per_second: float  # of a product with a matrix that stays in the cache


@dataclass(frozen=True)
class Bound:
    """What a step of greedy decoding costs at least, for one sentence."""

    weights: int  # read in a step
    bytes_per_token: int
    flops_per_token: int
    memory_tokens_per_second: float  # if every weight comes from memory
    compute_tokens_per_second: float


def measure_machine(threads: int, megabytes: int = 256) -> Machine:
    """Multiply a matrix far larger than any cache, and one of a megabyte, with a vector; the best of several times."""
    torch.set_num_threads(threads)
    rows = megabytes * 2**20 // 4 // 4096
    large, small = torch.ones(rows, 4096), torch.ones(256, 1024)
    vector, short = torch.ones(4096), torch.ones(1024)
    per_large = _best(lambda: torch.mv(large, vector), 5, 1)
    per_small = _best(lambda: torch.mv(small, short), 5, 200)
    return Machine(threads, large.numel() * 4 / per_large, 2 * small.numel() / per_small)


def _best(function: Callable[[], object], turns: int, calls: int) -> float:
    """The least seconds of a call."""
    return min(timeit.repeat(function, repeat=turns + 1, number=calls)) / calls


def bound(weights: int, bytes_per_weight: int, machine: Machine) -> Bound:
    size, flops = weights * bytes_per_weight, 2 * weights
    return Bound(weights, size, flops, machine.bytes_per_second / size, machine.flops_per_second / flops)
