"""Gates of a feed-forward layer: an activation of one half times the other, in one kernel, in the activation type or in
eight bits for the layer that follows."""

from __future__ import annotations

from typing import overload

import torch
import triton
import triton.language as tl
from torch import Tensor

from .quantize import Quantized
from .scaled import LARGEST, Quantize, empty_quantized, row_scale, to_small
from .tiles import tile


@overload
def silu_mul(gate_up: Tensor) -> Tensor: ...


@overload
def silu_mul(gate_up: Tensor, quantize: Quantize | None) -> Tensor | Quantized: ...


def silu_mul(gate_up: Tensor, quantize: Quantize | None = None) -> Tensor | Quantized:
    """[T, 2·F] → [T, F]: silu(first half) · second half, rows of any stride. Shazeer, 2020 (SwiGLU).

    Computed in float32: within 8 · 2⁻²⁴ of float64, relative to the result and to the second half, then one rounding.
    With `quantize` as in `norm.rms_norm`.
    """
    return _run(gate_up, False, quantize)


@overload
def gelu_mul(gate_up: Tensor) -> Tensor: ...


@overload
def gelu_mul(gate_up: Tensor, quantize: Quantize | None) -> Tensor | Quantized: ...


def gelu_mul(gate_up: Tensor, quantize: Quantize | None = None) -> Tensor | Quantized:
    """`silu_mul` with the tanh form of gelu: [T, 2·F] → [T, F]."""
    return _run(gate_up, True, quantize)


def _run(gate_up: Tensor, gelu: bool, quantize: Quantize | None) -> Tensor | Quantized:
    assert gate_up.dim() == 2
    assert gate_up.stride(1) == 1 or not gate_up.numel()
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    shape = torch.Size((rows, width))
    size = tile("gate", gate_up.device)
    if quantize is not None:
        scaled = empty_quantized(shape, quantize, gate_up.device)
        if rows:
            _gate_scaled[(rows,)](
                gate_up, *scaled, width, gate_up.stride(0), N=size.n, GELU=gelu, LARGEST=LARGEST[quantize],
                num_warps=size.warps,
            )  # fmt: skip
        return scaled
    out = torch.empty(shape, dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        blocks = triton.cdiv(width, size.n)
        _gate[(rows * blocks,)](
            gate_up, out, width, gate_up.stride(0), blocks, N=size.n, GELU=gelu, num_warps=size.warps
        )
    return out


@triton.jit
def _gated(x, start, column, width, GELU: tl.constexpr):
    """float32 results at `column` of the row that starts at `start`."""
    there = column < width
    gate = tl.load(x + start + column, mask=there, other=0.0).to(tl.float32)
    up = tl.load(x + start + width + column, mask=there, other=0.0).to(tl.float32)
    if GELU:  # (1 + tanh z) / 2 is the sigmoid of 2z
        return gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * up
    else:
        return gate * tl.sigmoid(gate) * up


@triton.jit
def _gate(x, out, width, stride, blocks, N: tl.constexpr, GELU: tl.constexpr):
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64)
    column = (program % blocks) * N + tl.arange(0, N)
    result = _gated(x, row * stride, column, width, GELU)
    tl.store(out + row * width + column, result.to(out.dtype.element_ty), mask=column < width)


@triton.jit
def _gate_scaled(x, out, scales, width, stride, N: tl.constexpr, GELU: tl.constexpr, LARGEST: tl.constexpr):
    """One row, twice: its scale, then its numbers; the second reading is from a near cache."""
    row = tl.program_id(0).to(tl.int64)
    peak = tl.zeros([N], tl.float32)
    for first in range(0, width, N):
        peak = tl.maximum(peak, tl.abs(_gated(x, row * stride, first + tl.arange(0, N), width, GELU)))
    unit = row_scale(tl.max(peak, 0), LARGEST)
    tl.store(scales + row, unit)
    for first in range(0, width, N):
        column = first + tl.arange(0, N)
        small = to_small(_gated(x, row * stride, column, width, GELU), unit, LARGEST, out.dtype.element_ty)
        tl.store(out + row * width + column, small, mask=column < width)
