"""Matrices packed once, at load. Knows nothing of how they are multiplied.

What a file stores in blocks of its own (GGUF) comes here dequantized, and is quantized again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

Storage = Literal["float32", "bfloat16", "int8", "int4", "fp8", "fp8_block"]
"""What matrices are kept in."""

Kind = Literal["plain", "int8", "int4", "fp8", "fp8_block"]

BLOCK = 128
"""Rows and columns that share a scale in `fp8_block`; every quantized weight is padded with zeros to a multiple of it
along `in`, so that kernels read whole blocks."""

_FP8_MAX = 448.0  # of e4m3
_TINY = 1e-12  # the least absolute maximum, so that rows of zeros have a scale


class Packed(NamedTuple):
    """A weight [out, in]; of several experts, with an axis in front of each tensor. `in` is padded to W = 128·n.

    - plain: `weight` [out, in], as it is
    - int8: `weight` [out, W] int8, times `scale` [out] float32
    - fp8: `weight` [out, W] e4m3, times `scale` [out] float32, all the same where there is one a tensor
    - fp8_block: `weight` [out, W] e4m3, times `scale` [⌈out/128⌉, W/128] float32
    - int4: `weight` [W/2g, out, g] int8 for groups of g along `in`: byte j of pair p holds value j of group 2p in its
      low half and of group 2p + 1 in its high half, each -8 … 7, so that a program reads the bytes of neighbouring rows
      in one piece, and shifts once to have either group whole. Times `scale` [W/g, out] bfloat16, plus `shift`, alike,
      where groups have a zero of their own.
    """

    kind: Kind
    weight: Tensor
    scale: Tensor | None
    shift: Tensor | None
    bias: Tensor | None
    outs: int
    width: int
    group: int

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.weight, self.scale, self.shift, self.bias) if part is not None)


class Quantized(NamedTuple):
    """Activations: `values` [T, in] e4m3 or int8, times `scales` [T], or [T, in/128] by blocks; float32."""

    values: Tensor
    scales: Tensor


def pack(
    weight: Tensor,
    bias: Tensor | None = None,
    storage: Storage = "bfloat16",
    *,
    group: Literal[32, 64] = 64,
    zeros: bool = False,
    per_tensor: bool = False,
) -> Packed:
    """weight [out, in] in any float type, bias [out]; on the weight's device.

    `group` and `zeros` (a zero for each group) are for int4, `per_tensor` (one scale) for fp8. Largest errors of a
    value: int8 1/254 of its row's largest; int4 1/8 of its group's largest, with zeros 1/28 of its group's range; fp8
    1/16 of the value itself, or 2^-10/448 of its row's (tensor's, block's) largest, whichever is more.
    """
    weight = weight.detach()
    outs, width = weight.shape
    if storage in ("float32", "bfloat16"):
        dtype = torch.float32 if storage == "float32" else torch.bfloat16
        own = None if bias is None else bias.detach().to(dtype).contiguous()
        return Packed("plain", weight.to(dtype).contiguous(), None, None, own, outs, width, 0)
    bias = None if bias is None else bias.detach().float().contiguous()
    padded = functional.pad(weight.float(), (0, -width % BLOCK))
    shift: Tensor | None = None
    if storage == "int4":
        values, scale, shift = _four_bits(padded, group, zeros)
    elif storage == "int8":
        scale = padded.abs().amax(1).clamp_min(_TINY) / 127
        values = (padded / scale[:, None]).round_().to(torch.int8)
    else:
        values, scale = _eight_bit_floats(padded, storage == "fp8_block", per_tensor)
    kind = cast(Kind, storage)
    return Packed(kind, values, scale, shift, bias, outs, width, group if storage == "int4" else 0)


def pack_experts(weights: Sequence[Tensor], storage: Storage) -> Packed:
    """Matrices of one shape, [out, in] each, as one."""
    packed = [pack(weight, None, storage) for weight in weights]
    first = packed[0]

    def joined(parts: Sequence[Tensor | None]) -> Tensor | None:
        kept = [part for part in parts if part is not None]
        return torch.stack(kept) if kept else None

    return first._replace(
        weight=torch.stack([part.weight for part in packed]),
        scale=joined([part.scale for part in packed]),
        shift=joined([part.shift for part in packed]),
    )


def _four_bits(weight: Tensor, group: int, zeros: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Values as in `Packed`, scale, shift. Scales are rounded first and values chosen to go with them."""
    outs, width = weight.shape
    groups = weight.view(outs, width // group, group)
    if zeros:
        least, most = groups.amin(2), groups.amax(2)
        scale = ((most - least) / 15).clamp_min(_TINY).bfloat16()
        shift = (least + 8 * scale.float()).bfloat16()
        centred = groups - shift.float()[..., None]
    else:
        # The value of the largest magnitude becomes -8, the one number that has no opposite.
        largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))[..., 0]
        scale = (largest / -8).bfloat16()
        scale = torch.where(scale == 0, torch.full_like(scale, _TINY), scale)
        shift, centred = None, groups
    values = (centred / scale.float()[..., None]).round_().clamp_(-8, 7).to(torch.int32)
    low, high = values.view(outs, -1, 2, group).unbind(2)
    both = ((low & 15) | (high << 4)).to(torch.int8).transpose(0, 1).contiguous()
    return both, scale.T.contiguous(), None if shift is None else shift.T.contiguous()


def _eight_bit_floats(weight: Tensor, blocks: bool, per_tensor: bool) -> tuple[Tensor, Tensor]:
    outs, width = weight.shape
    if blocks:
        tall = functional.pad(weight, (0, 0, 0, -outs % BLOCK))
        tiles = tall.view(-1, BLOCK, width // BLOCK, BLOCK)
        scale = tiles.abs().amax((1, 3)).clamp_min(_TINY) / _FP8_MAX
        each = scale.repeat_interleave(BLOCK, 0)[:outs].repeat_interleave(BLOCK, 1)
    else:
        largest = weight.abs().amax().expand(outs) if per_tensor else weight.abs().amax(1)
        scale = largest.clamp_min(_TINY) / _FP8_MAX
        each = scale[:, None]
    return (weight / each).clamp_(-_FP8_MAX, _FP8_MAX).to(torch.float8_e4m3fn), scale.contiguous()
