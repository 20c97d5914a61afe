"""Activations quantized by themselves, where neither a norm nor a gate comes before. Knows nothing of products."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .quantize import BLOCK, Quantized
from .scaled import LARGEST, Quantize, row_scale, to_small

_AT_ONCE = 1024  # numbers of a row that a program has in registers


@triton.jit
def _quantize_rows(x, values, scales, stride, width, LARGEST: tl.constexpr, SIZE: tl.constexpr):
    """A row a program, read twice: the second time it comes from the cache."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE)
    peak = tl.zeros((SIZE,), tl.float32)
    for first in range(0, width, SIZE):
        part = tl.load(x + row * stride + first + at, mask=first + at < width, other=0.0).to(tl.float32)
        peak = tl.maximum(peak, tl.abs(part))
    scale = row_scale(tl.max(peak, 0), LARGEST)
    for first in range(0, width, SIZE):
        part = tl.load(x + row * stride + first + at, mask=first + at < width, other=0.0).to(tl.float32)
        small = to_small(part, scale, LARGEST, values.dtype.element_ty)
        tl.store(values + row * width + first + at, small, mask=first + at < width)
    tl.store(scales + row, scale)


@triton.jit
def _quantize_blocks(
    x, values, scales, stride, width, LARGEST: tl.constexpr, GROUP: tl.constexpr, COUNT: tl.constexpr
):  # fmt: skip
    """`COUNT` blocks of one row a program."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * COUNT + tl.arange(0, COUNT)
    at = block[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    part = tl.load(x + row * stride + at, mask=at < width, other=0.0).to(tl.float32)
    scale = row_scale(tl.max(tl.abs(part), 1), LARGEST)
    small = to_small(part, scale[:, None], LARGEST, values.dtype.element_ty)
    tl.store(values + row * width + at, small, mask=at < width)
    blocks = width // GROUP
    tl.store(scales + row * blocks + block, scale, mask=block < blocks)


def quantize(x: Tensor, to: Quantize = "fp8", blocks: bool = False) -> Quantized:
    """x [T, in], rows strided → values and a scale for each row, or for each 128 of a row; `in` is then a multiple of
    128. Errors: fp8 1/16 of a value or 2^-10/448 of the largest that shares its scale, int8 1/254 of that. Own."""
    tokens, width = x.shape
    assert not blocks or width % BLOCK == 0, f"{width} is no multiple of {BLOCK}"
    eight = torch.float8_e4m3fn if to == "fp8" else torch.int8
    values = torch.empty(tokens, width, dtype=eight, device=x.device)
    scales = torch.empty((tokens, width // BLOCK) if blocks else tokens, dtype=torch.float32, device=x.device)
    if not tokens:
        return Quantized(values, scales)
    assert x.stride(1) == 1, x.stride()
    if blocks:
        together = _AT_ONCE // BLOCK
        grid = tokens, triton.cdiv(width // BLOCK, together)
        _quantize_blocks[grid](x, values, scales, x.stride(0), width, LARGEST[to], BLOCK, together)
    else:
        _quantize_rows[(tokens,)](x, values, scales, x.stride(0), width, LARGEST[to], _AT_ONCE)
    return Quantized(values, scales)
