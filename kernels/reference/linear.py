"""Linear layers: weights packed once, at load. Knows nothing of models.

oneDNN's blocked layout wins over `torch.nn.functional.linear` (MKL) wherever reading the weights bounds the time: from
1.2× to 2.5× at 2 to 32 rows, equal at 1 and at 64 to 128, 8 % behind at 512 (float32, AVX2, weights out of cache). One
layout serves every number of rows: a second copy for long prefills would double the memory for little.
"""

from __future__ import annotations

import platform
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

ROWS_HINT = 8  # oneDNN picks the block size for this many rows; measured: hints 8 and 32 are alike, 1 is much slower


class PackedLinear(NamedTuple):
    """A weight ready for use: `weight` is oneDNN's own layout when `blocked`, else plain [out, in]."""

    weight: Tensor
    bias: Tensor | None
    width: int
    blocked: bool


def pack_linear(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    """weight [out, in], bias [out]. The packed weight does not share memory with `weight`, unless it stays plain."""
    weight = weight.detach()
    bias = None if bias is None else bias.detach().to(weight.dtype).contiguous()
    if not _blocked_pays(weight):
        return PackedLinear(weight.contiguous(), bias, weight.shape[0], False)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS_HINT)
    return PackedLinear(packed, bias, weight.shape[0], True)


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    """[T, in] → [T, out]."""
    if not packed.blocked:
        return functional.linear(x, packed.weight, packed.bias)
    rows = x.shape[0]
    if rows == 0:  # oneDNN takes no empty matrix
        return x.new_empty(0, packed.width)
    if more := padded_rows(rows) - rows:
        x = functional.pad(x, (0, 0, 0, more))
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed.weight, packed.bias, "none", [], "")
    return out[:rows] if more else out


def padded_rows(rows: int) -> int:
    """The number of rows to compute for `rows` of them, so that only some fifty numbers up to 512 ever occur.

    oneDNN compiles code for each number of rows and each weight: about 1 ms and 0.65 MB, which it does not give back
    whatever the capacity of its cache. Chunks of every length would make that a gigabyte within minutes.
    """
    step = 1 if rows <= 16 else 4 if rows <= 64 else 16 if rows <= 128 else 32
    return -(-rows // step) * step


def _blocked_pays(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
