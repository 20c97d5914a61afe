"""Norms, gates and masks on the device, number by number against float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bosquet.kernels.triton.activation import gelu_mul, silu_mul
from bosquet.kernels.triton.masks import apply_mask
from bosquet.kernels.triton.norm import add_rms_norm, rms_norm
from bosquet.kernels.triton.quantize import Quantized

from .bed import Bed
from .report import Finding, compared, exact

ROUNDED = 1.01 * 2.0**-8  # of the number itself: a bfloat16, rounded once
EPS = 1e-5


def run(bed: Bed) -> None:
    width, inner = bed.sizes.width, bed.sizes.inner
    rows = bed.pick((1, 64, 3000), (3,))
    for kind in (None, "fp8", "int8"):
        named = f"to {kind}" if kind else "to bf16"
        bed.case(f"norm of {width} {named}", partial(_norms, bed, rows, width, kind))
        bed.case(f"silu and gelu gates of {inner} {named}", partial(_gates, bed, rows, inner, kind))
    bed.case("norm of heads, strided", partial(_heads, bed))
    bed.case("masks of packed bits", partial(_masks, bed))


def off(got: Tensor, want: Tensor, least: float = 0.0) -> float:
    """The largest relative difference; numbers below `least` count as it. Infinite for NaN."""
    error = (got.double() - want).abs() / want.abs().clamp(min=max(least, 1e-30))
    return float(torch.nan_to_num(error, nan=torch.inf).max())


def steps(got: Quantized, want: Tensor) -> float:
    """How far from what is right, in roundings to the eight bits of `got`: at most 1, and a little for float32."""
    scale = got.scales.double()[..., None]
    value = got.values.float().double() * scale if got.values.dtype != torch.int8 else got.values.double() * scale
    allowed = scale * 0.5 if got.values.dtype == torch.int8 else torch.maximum(want.abs() / 16, scale * 2.0**-10)
    return float(torch.nan_to_num((value - want).abs() / allowed, nan=torch.inf).max())


def _judged(worst: float, kind: Any) -> Finding:
    return compared(worst, ROUNDED) if kind is None else compared(worst, 1.01)


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


def _norms(bed: Bed, counts: tuple[int, ...], width: int, kind: Any) -> Finding:
    weight, worst = 1 + bed.noise(width, seed=7) * 0.2, 0.0
    for rows in counts:
        x, residual = bed.noise(rows, width, seed=rows) * 3, bed.noise(rows, width, seed=rows + 1)
        total = (x.float() + residual.float()).bfloat16()
        alone = rms_norm(x, weight, EPS, *([kind] if kind else []))
        both, summed = add_rms_norm(x, residual.clone(), weight, EPS, *([kind] if kind else []))
        if not torch.equal(summed, total):
            return exact(False, "the sum differs")
        found: Callable[[Any, Tensor], float] = steps if kind else off
        worst = max(worst, found(alone, _normed(x, weight)), found(both, _normed(total, weight)))
    return _judged(worst, kind)


def _heads(bed: Bed) -> Finding:
    heads, dim = bed.sizes.heads, bed.sizes.head_dim
    joined, weight = bed.noise(bed.pick(300, 3), heads + 4, dim), 1 + bed.noise(dim, seed=7) * 0.2
    q = joined[:, :heads]
    return _judged(off(rms_norm(q, weight, EPS), _normed(q, weight)), None)


def _gates(bed: Bed, counts: tuple[int, ...], inner: int, kind: Any) -> Finding:
    def gelu(x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x, approximate="tanh")

    pairs: list[tuple[Callable[..., Any], Callable[[Tensor], Tensor]]] = [
        (silu_mul, torch.nn.functional.silu), (gelu_mul, gelu),
    ]  # fmt: skip
    worst = 0.0
    for rows in counts:
        both = bed.noise(rows, 2 * inner, seed=rows) * 2
        gate, up = both.double().chunk(2, -1)
        for ours, right in pairs:
            got, want = ours(both, *([kind] if kind else [])), right(gate) * up
            # A gelu far below zero is a small difference of large numbers.
            worst = max(worst, steps(got, want) if kind else off(got, want, least=1e-4))
    return _judged(worst, kind)


def _masks(bed: Bed) -> Finding:
    width, rows = bed.sizes.vocabulary, bed.pick(64, 3)
    logits = bed.noise(rows, width, dtype=torch.float32)
    chosen = bed.numbers(range(0, rows, 2), torch.int64)
    words = torch.randint(-(2**31), 2**31, (len(chosen), -(-width // 32)), device=bed.device).to(torch.int32)
    tokens = torch.arange(width, device=bed.device)
    free = (words[:, tokens // 32] >> (tokens % 32).to(torch.int32)) & 1 == 1
    want = logits.clone()
    want[chosen] = want[chosen].masked_fill(~free, -torch.inf)
    apply_mask(logits, words, chosen)
    return exact(torch.equal(logits, want), f"{rows} rows of {width}")
