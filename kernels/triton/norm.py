"""RMS norm, alone or after the residual's addition, in the activation type or in eight bits for the layer that follows.

A program takes whole rows: each number is read once and written once, and a row's bits do not depend on other rows.
"""

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
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor: ...


@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float, quantize: Quantize | None) -> Tensor | Quantized: ...


def rms_norm(x: Tensor, weight: Tensor, eps: float, quantize: Quantize | None = None) -> Tensor | Quantized:
    """x [..., D] / √(mean square + eps) · weight [D] → [..., D], contiguous. Zhang and Sennrich, 2019.

    The last axis is contiguous, the others have any stride (of more than three axes a copy may be made). Statistics and
    product in float32: within 16 · 2⁻²⁴ of float64, relative, then one rounding to the type of x. With `quantize`: int8
    within half a scale, fp8 within 2⁻⁴ of the number or 2⁻¹⁰ of the scale.
    """
    return _run(x, None, weight, eps, quantize)


@overload
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]: ...


@overload
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, quantize: Quantize | None
) -> tuple[Tensor | Quantized, Tensor]: ...


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, quantize: Quantize | None = None
) -> tuple[Tensor | Quantized, Tensor]:
    """x and residual [T, D]: s = x + residual, rounded to the residual's type; (rms_norm(s), s). `residual` becomes s.

    Bounds as in `rms_norm`, from the rounded s.
    """
    return _run(x, residual, weight, eps, quantize), residual


def _run(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, quantize: Quantize | None
) -> Tensor | Quantized:
    assert x.stride(-1) == 1 or not x.numel(), "a row is contiguous"
    assert residual is None or (residual.dim() == 2 and residual.shape == x.shape and residual.stride(1) == 1)
    shape, width = x.shape, x.shape[-1]
    if x.dim() > 3:
        x = x.reshape(-1, *shape[-2:])
    inner = x.shape[1] if x.dim() == 3 else 1
    strides = (x.stride(0), x.stride(1)) if x.dim() == 3 else (x.stride(0) if x.dim() == 2 else 0, 0)
    rows = x.numel() // width
    out = torch.empty(shape, dtype=x.dtype, device=x.device) if quantize is None else None
    scaled = None if quantize is None else empty_quantized(shape, quantize, x.device)
    if rows:
        size = tile("norm", x.device)
        columns = triton.next_power_of_2(width)
        together = max(1, size.n // columns)
        _norm[(triton.cdiv(rows, together),)](
            x,
            x if residual is None else residual,
            weight,
            scaled.values if scaled else out,
            scaled.scales if scaled else weight,
            rows,
            inner,
            *strides,
            0 if residual is None else residual.stride(0),
            width,
            eps,
            M=together,
            N=columns,
            ADD=residual is not None,
            LARGEST=0.0 if quantize is None else LARGEST[quantize],
            num_warps=size.warps,
        )
    result = scaled or out
    assert result is not None
    return result


@triton.jit(do_not_specialize=["rows"])
def _norm(
    x,
    residual,
    weight,
    out,
    scales,
    rows,
    inner,
    outer_stride,
    inner_stride,
    residual_stride,
    width,
    eps,
    M: tl.constexpr,
    N: tl.constexpr,
    ADD: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """M rows of N ≥ width columns; row r of x lies at (r // inner) · outer_stride + (r % inner) · inner_stride."""
    row = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    column = tl.arange(0, N)[None, :]
    there = (row < rows)[:, None] & (column < width)
    start = (row // inner) * outer_stride + (row % inner) * inner_stride
    value = tl.load(x + start[:, None] + column, mask=there, other=0.0).to(tl.float32)
    if ADD:
        at = residual + (row * residual_stride)[:, None] + column
        total = (value + tl.load(at, mask=there, other=0.0).to(tl.float32)).to(residual.dtype.element_ty)
        tl.store(at, total, mask=there)
        value = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 1) / width + eps)
    normed = value * scale[:, None] * tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    kind: tl.constexpr = out.dtype.element_ty
    if LARGEST > 0:
        unit = row_scale(tl.max(tl.abs(normed), 1), LARGEST)
        tl.store(scales + row, unit, mask=row < rows)
        result = to_small(normed, unit[:, None], LARGEST, kind)
    else:
        result = normed.to(kind)
    tl.store(out + (row * width)[:, None] + column, result, mask=there)
