"""What the Triton kernels' packed weights stand for, worked out from the layout that `Packed` describes."""

from __future__ import annotations

import numpy as np
import torch
from op_cases import Array

from bosquet.kernels.triton.quantize import Packed


def unpacked(packed: Packed) -> Array:
    """[out, in] in float64, number by number as `Packed` describes the layout."""
    values = packed.weight.to(torch.float32).double().cpu().numpy()
    scale = None if packed.scale is None else packed.scale.double().cpu().numpy()
    found = np.zeros((packed.outs, packed.width))
    for k in range(packed.width):
        if packed.kind == "int4":
            pair, place = divmod(k, 2 * packed.group)
            byte = values[pair, :, place % packed.group].astype(np.int64) & 255
            nibble = byte & 15 if place < packed.group else byte >> 4
            assert scale is not None
            found[:, k] = np.where(nibble < 8, nibble, nibble - 16) * scale[k // packed.group]
            if packed.shift is not None:
                found[:, k] += packed.shift[k // packed.group].double().cpu().numpy()
        elif scale is None:
            found[:, k] = values[:, k]
        elif packed.kind == "fp8_block":
            found[:, k] = values[:, k] * np.repeat(scale[:, k // 128], 128)[: packed.outs]
        else:
            found[:, k] = values[:, k] * scale
    return found
