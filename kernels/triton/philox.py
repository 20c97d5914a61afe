"""Random numbers on the device, with the bits of `runtime/random_numbers.py`: a pure function of who asks.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw (SC 2011). A CUDA graph that draws needs the words of its rows only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import tile


class Counters(NamedTuple):
    """Who asks, n times: `seed` [n] int64 (any 64 bits), `choice` [n] int32 (any 32 bits), `position` [n] int64, and
    what for, a value of `Purpose`."""

    seed: Tensor
    choice: Tensor
    position: Tensor
    purpose: int


def uniforms(asked: Counters) -> Tensor:
    """[n] float64 in [0, 1), of 53 random bits each."""
    n = len(asked.seed)
    out = torch.empty(n, dtype=torch.float64, device=asked.seed.device)
    if n:
        size = tile("uniforms", out.device)
        _uniforms[(triton.cdiv(n, size.m),)](
            asked.seed, asked.choice, asked.position, out, n, asked.purpose, M=size.m, num_warps=size.warps
        )
    return out


@triton.jit(do_not_specialize=["n", "purpose"], do_not_specialize_on_alignment=["seeds", "choices", "positions", "out"])
def _uniforms(seeds, choices, positions, out, n, purpose, M: tl.constexpr):
    at = tl.program_id(0) * M + tl.arange(0, M)
    there = at < n
    position = tl.load(positions + at, mask=there, other=0).to(tl.uint64)
    choice = tl.load(choices + at, mask=there, other=0).to(tl.uint32, bitcast=True)
    low, high = position.to(tl.uint32), (position >> 32).to(tl.uint32)
    use = tl.full([M], 0, tl.uint32) + purpose.to(tl.uint32)
    first, second, _, _ = tl.philox(tl.load(seeds + at, mask=there, other=0), low, high, choice, use, 10)
    # 53 bits: 32 and 21.
    number = (first.to(tl.float64) * 2097152.0 + (second >> 11).to(tl.float64)) * 1.1102230246251565e-16
    tl.store(out + at, number, mask=there)
