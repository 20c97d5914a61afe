"""Linear layers over packed weights: small numbers of rows, bound by reading weights, and large ones. Knows no models.

Weights stand on the left of every product, outs by `in`, and tokens on the right: a tensor core takes 64 outs with as
few as 16 tokens, and quantized weights go there from registers. They are multiplied as whole numbers, which bfloat16
holds exactly up to 256, and scales meet the sums: once a row of int8 and fp8, once a group of int4, once a block of
fp8_block. Plain weights are cuBLAS's, unless rows must not depend on their batch.

Few tokens leave too few programs to fill a GPU, so the reduced axis is split as well; how often depends on the weight
alone, partial sums are added in their order by a second kernel, and no atomic operation is used. So a row's bits depend
on nothing but the row, as long as the tile is the same: `invariant` keeps it the same for all numbers of rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from .quantize import BLOCK, Packed, Quantized
from .tiles import Tile, tile

FEW = 16  # tokens of the smallest tile
SOME = 64  # up to so many, the reduced axis is split
_LEAST_STEPS = 4  # of a split's loop, so that loads overlap


@triton.jit
def tile_product(
    x, x_scales, x_at, x_ok, w, scale, shift, outs, outs_ok, OUTS, width, padded, first, last, KIND: tl.constexpr,
    GROUP: tl.constexpr, X8: tl.constexpr, EVEN: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """Weights [BN outs, in] times tokens [in, BM], over steps first … last - 1 of the reduced axis: [BN, BM] float32.

    `x_at` [BM] int64 is where each token's row begins, `outs` [BN] the rows of the weight. Scales of rows and of
    tokens are left to the caller; those of groups and blocks are in the sum.
    """
    acc = tl.zeros((BN, BM), tl.float32)
    rows = outs.to(tl.int64)
    if KIND == "int4":
        at = tl.arange(0, GROUP)
        for pair in range(first, last):
            where = (pair * OUTS + rows)[:, None] * GROUP + at[None, :]
            both = tl.load(w + where, mask=outs_ok[:, None], other=0)
            low, high = (both << 4) >> 4, both >> 4  # of int8, so signs are kept
            acc = _add_group(acc, low, x, x_at, x_ok, scale, shift, rows, outs_ok, OUTS, width, 2 * pair, GROUP, EVEN)
            acc = _add_group(
                acc, high, x, x_at, x_ok, scale, shift, rows, outs_ok, OUTS, width, 2 * pair + 1, GROUP, EVEN,
            )  # fmt: skip
    else:
        at = tl.arange(0, BK)
        for step in range(first, last):
            k = step * BK + at
            w_ok, part_ok = outs_ok[:, None], x_ok[None, :]
            if not EVEN:
                w_ok, part_ok = w_ok & (k < padded)[None, :], part_ok & (k < width)[:, None]
            weights = tl.load(w + rows[:, None] * padded + k[None, :], mask=w_ok, other=0.0)
            part = tl.load(x + x_at[None, :] + k[:, None], mask=part_ok, other=0.0)
            if KIND == "fp8_block":
                blocks = padded // BK
                each = tl.load(scale + rows // BK * blocks + step, mask=outs_ok, other=0.0)
                found = _product(weights, part, X8) * each[:, None]
                if X8:
                    found *= tl.load(x_scales + x_at // width * blocks + step, mask=x_ok, other=0.0)[None, :]
                acc += found
            else:
                acc += _product(weights, part, X8)
    return acc


@triton.jit
def _add_group(
    acc, values, x, x_at, x_ok, scale, shift, rows, outs_ok, OUTS, width, group, GROUP: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """acc + (values · scale + shift) times the tokens' part of one group."""
    k = group * GROUP + tl.arange(0, GROUP)
    part_ok = x_ok[None, :]
    if not EVEN:
        part_ok = part_ok & (k < width)[:, None]
    part = tl.load(x + x_at[None, :] + k[:, None], mask=part_ok, other=0.0)
    where = group * OUTS + rows
    each = tl.load(scale + where, mask=outs_ok, other=0.0).to(tl.float32)
    acc += _product(values, part, False) * each[:, None]
    if shift is not None:
        least = tl.load(shift + where, mask=outs_ok, other=0.0).to(tl.float32)
        acc += least[:, None] * tl.sum(part.to(tl.float32), 0)[None, :]
    return acc


@triton.jit
def _product(weights, part, X8: tl.constexpr):
    """[BN, k] times [k, BM] in float32; both of eight bits, or weights turned into the tokens' type."""
    if not X8:
        found = tl.dot(weights.to(part.dtype), part, input_precision="ieee")
    elif part.dtype == tl.int8:
        found = tl.dot(weights, part, out_dtype=tl.int32).to(tl.float32)
    else:  # Hopper adds products of float8 in 22 bits: what 128 of them gave is added up outside
        found = tl.dot(weights, part, max_num_imprecise_acc=128)
    return found


@triton.jit(do_not_specialize=["tokens"])
def _linear(
    x, x_scales, w, scale, shift, bias, out, tokens, OUTS, width, padded, steps, stride, KIND: tl.constexpr,
    GROUP: tl.constexpr, X8: tl.constexpr, EVEN: tl.constexpr, SPLITS: tl.constexpr, BN: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """One tile of `out` [tokens, OUTS], or of one split's partial sums, [SPLITS, tokens, OUTS]."""
    # Programs that run together share tokens and outs: TOGETHER blocks of tokens take the blocks of outs in turn.
    program, split = tl.program_id(0), tl.program_id(1)
    wide = TOGETHER * tl.cdiv(OUTS, BN)
    group = program // wide
    beside = tl.minimum(tl.cdiv(tokens, BM) - group * TOGETHER, TOGETHER)
    block = group * TOGETHER + program % wide % beside
    rows = block * BM + tl.arange(0, BM)
    outs = program % wide // beside * BN + tl.arange(0, BN)
    rows_ok, outs_ok = rows < tokens, outs < OUTS
    each = tl.cdiv(steps, SPLITS)
    first = split * each
    last = tl.minimum(first + each, steps)
    x_at = rows.to(tl.int64) * stride
    acc = tile_product(
        x, x_scales, x_at, rows_ok, w, scale, shift, outs, outs_ok, OUTS, width, padded, first, last, KIND, GROUP,
        X8, EVEN, BN, BM, BK,
    )  # fmt: skip
    if KIND == "int8" or KIND == "fp8":
        acc *= tl.load(scale + outs, mask=outs_ok, other=0.0)[:, None]
        if X8:
            acc *= tl.load(x_scales + rows, mask=rows_ok, other=0.0)[None, :]
    if SPLITS == 1 and bias is not None:
        acc += tl.load(bias + outs, mask=outs_ok, other=0.0).to(tl.float32)[:, None]
    place = (split.to(tl.int64) * tokens + rows)[None, :] * OUTS + outs[:, None]
    tl.store(out + place, acc.to(out.dtype.element_ty), mask=outs_ok[:, None] & rows_ok[None, :])


@triton.jit(do_not_specialize=["size"])
def _add_splits(partial, bias, out, size, OUTS, SPLITS: tl.constexpr, SIZE: tl.constexpr):
    """out [size] = the sum of `SPLITS` times [size], in their order, and the bias."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    ok = at < size
    total = tl.zeros((SIZE,), tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(partial + split * size.to(tl.int64) + at, mask=ok, other=0.0)
    if bias is not None:
        total += tl.load(bias + at % OUTS, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=ok)


def linear(x: Tensor | Quantized, packed: Packed, dtype: torch.dtype | None = None, invariant: bool = False) -> Tensor:
    """x [T, in], rows strided → [T, out] in `dtype`, or else in x's type, which for quantized x is bfloat16.

    Quantized x meets weights of its own eight bits: fp8 or int8 by rows, and fp8_block by blocks. Against float64 on
    the same quantized weights, errors are those of a float32 sum of `in` products, and one rounding to `dtype`. Own;
    scales on the sums as in Marlin (Frantar et al., 2024), blocks of fp8 as in DeepSeek-V3 (2024).
    """
    values = x.values if isinstance(x, Quantized) else x
    dtype = dtype or (torch.bfloat16 if isinstance(x, Quantized) else values.dtype)
    tokens = len(values)
    assert values.shape[1] == packed.width, (values.shape, packed.width)
    if packed.kind == "plain" and not invariant:
        return _plain(values, packed, dtype)
    out = torch.empty(tokens, packed.outs, dtype=dtype, device=values.device)
    if tokens:
        _launch(x, packed, out, invariant)
    return out


def _plain(x: Tensor, packed: Packed, dtype: torch.dtype) -> Tensor:
    if dtype == x.dtype:
        return functional.linear(x, packed.weight, packed.bias)
    if x.is_cuda and dtype == torch.float32:
        out = torch.mm(x, packed.weight.T, out_dtype=dtype)  # as summed, without a rounding to x's type
        return out if packed.bias is None else out + packed.bias
    return functional.linear(x, packed.weight, packed.bias).to(dtype)


def _launch(x: Tensor | Quantized, packed: Packed, out: Tensor, invariant: bool) -> None:
    values, scales = x if isinstance(x, Quantized) else (x, None)
    assert values.stride(1) == 1, values.stride()
    assert scales is None or values.dtype == packed.weight.dtype, (values.dtype, packed.kind)
    assert scales is None or packed.kind != "fp8_block" or values.is_contiguous()
    assert scales is None or scales.ndim == (2 if packed.kind == "fp8_block" else 1), (scales.shape, packed.kind)
    tokens = len(values)
    size = FEW if invariant or values.dtype == torch.float32 else tokens
    shape = tile(_tile_name(size), values.device)
    padded = packed.weight.shape[-1] if packed.kind != "int4" else packed.weight.shape[0] * 2 * packed.group
    step = step_of(packed, shape)
    steps = triton.cdiv(packed.width, step)
    splits = _splits(packed.outs, steps, shape, values.device) if size <= SOME else 1
    sums = out if splits == 1 else torch.empty(splits, *out.shape, dtype=torch.float32, device=out.device)
    _linear[triton.cdiv(tokens, shape.m) * triton.cdiv(packed.outs, shape.n), splits](
        values, scales, packed.weight, packed.scale, packed.shift, packed.bias, sums,
        tokens, packed.outs, packed.width, padded, steps, values.stride(0),
        packed.kind, packed.group, scales is not None, packed.width % step == 0, splits,
        shape.n, shape.m, step, 8, num_warps=shape.warps, num_stages=stages_of(values, shape),
    )  # fmt: skip
    if splits > 1:
        count = 512
        _add_splits[(triton.cdiv(out.numel(), count),)](sums, packed.bias, out, out.numel(), packed.outs, splits, count)


def _tile_name(tokens: int) -> str:
    return "linear_few" if tokens <= FEW else "linear_some" if tokens <= SOME else "linear_many"


def step_of(packed: Packed, shape: Tile) -> int:
    """How much of the reduced axis one turn of the loop takes."""
    if packed.kind == "int4":
        return 2 * packed.group
    return shape.k if packed.kind == "plain" else BLOCK


def stages_of(x: Tensor, shape: Tile) -> int:
    """How many turns of the loop are loaded at once: fewer where x is float32, which takes twice the memory."""
    return min(shape.stages, 2) if x.dtype == torch.float32 else shape.stages


def _splits(outs: int, steps: int, shape: Tile, device: torch.device) -> int:
    """Into how many parts the reduced axis is cut, so that there are programs for the whole GPU: a power of two."""
    splits = 1
    while triton.cdiv(outs, shape.n) * splits < _programs(device) and steps // (2 * splits) >= _LEAST_STEPS:
        splits *= 2
    return splits


@cache
def _programs(device: torch.device) -> int:
    """How many programs keep the device busy."""
    if device.type != "cuda":
        return 8
    properties: Any = torch.cuda.get_device_properties(device)
    return 2 * int(properties.multi_processor_count)
