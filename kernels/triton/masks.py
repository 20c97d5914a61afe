"""Which tokens a row may draw, one bit each: bit v % 32 of word v // 32 for token v."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .tiles import tile


def apply_mask(logits: Tensor, bits: Tensor, rows: Tensor) -> None:
    """Set logits[rows[i]] to -inf, in place, where bit v of bits[i] is 0.

    logits [R, V] float32, bits [n, ceil(V/32)] int32, rows [n] integers, each named once; a negative one is skipped
    (padding). Nothing is read of the logits, and only what is forbidden is written.
    """
    count, width = len(rows), logits.shape[1]
    assert logits.stride(1) == 1
    assert bits.stride(1) == 1
    if not count:
        return
    size = tile("mask", logits.device)
    blocks = triton.cdiv(width, size.n)
    _mask[(count * blocks,)](
        logits, bits, rows, width, logits.stride(0), bits.stride(0), blocks, N=size.n, num_warps=size.warps
    )


@triton.jit
def allowed(bits, start, column, there):
    """Whether the bits of tokens `column` are set, in words that start at `start`; false where not `there`."""
    word = tl.load(bits + start + column // 32, mask=there, other=0)
    return (word >> (column % 32)) & 1 != 0


@triton.jit
def _mask(logits, bits, rows, width, stride, words, blocks, N: tl.constexpr):
    program = tl.program_id(0)
    at = (program // blocks).to(tl.int64)
    column = (program % blocks) * N + tl.arange(0, N)
    row = tl.load(rows + at).to(tl.int64)
    there = column < tl.where(row >= 0, width, 0)
    forbidden = there & (allowed(bits, at * words, column, there) == 0)
    tl.store(logits + row * stride + column, tl.full([N], float("-inf"), tl.float32), mask=forbidden)
