"""Rows of activations in eight bits, each with one scale: what a norm or a gate hands to a quantized linear layer."""

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl

from .quantize import Quantized

Quantize = Literal["fp8", "int8"]

LARGEST: dict[Quantize, float] = {"fp8": 448.0, "int8": 127.0}  # what the largest number of a row becomes
_TYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}


def empty_quantized(shape: torch.Size, quantize: Quantize, device: torch.device) -> Quantized:
    """Storage for rows of a shape."""
    values = torch.empty(shape, dtype=_TYPES[quantize], device=device)
    return Quantized(values, torch.empty(shape[:-1], dtype=torch.float32, device=device))


@triton.jit
def row_scale(peak, largest: tl.constexpr):
    """The scale of rows whose largest absolute number is `peak`; never 0, so that a row of zeros stays one."""
    return tl.maximum(peak, 1e-30) / largest


@triton.jit
def to_small(values, scale, largest: tl.constexpr, kind: tl.constexpr):
    """float32 values over their scale, rounded to `kind`; int8 to the nearest, halves up."""
    small = tl.minimum(tl.maximum(values / scale, -largest), largest)
    if kind == tl.int8:
        small = tl.floor(small + 0.5)
    return small.to(kind)
