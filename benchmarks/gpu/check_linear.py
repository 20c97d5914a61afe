"""Linear layers in every storage, and layers of experts, against float64 on the same packed weights.

Errors are those of a token's outputs, by length. A rounding to bfloat16 makes about 0.0012 of it, sums in float32 next
to nothing; logits, which stay float32, have a bound of their own.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bosquet.kernels.triton.experts import experts, pack_experts
from bosquet.kernels.triton.linear import linear
from bosquet.kernels.triton.quantize import Packed, pack
from bosquet.kernels.triton.quantize_rows import quantize

from .bed import Bed
from .check_attention import far
from .report import Finding, compared, exact


class Form(NamedTuple):
    """How a weight is packed."""

    storage: Any
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return " ".join([self.storage, *(f"{key} {value}" for key, value in self.options.items())])


FORMS = (
    *(Form(storage, {}) for storage in ("bfloat16", "fp8", "int4", "int8", "fp8_block")),
    Form("fp8", {"per_tensor": True}), Form("int4", {"group": 32, "zeros": True}),
)  # fmt: skip
EIGHT_BITS: tuple[tuple[Any, bool, str], ...] = (
    ("fp8", False, "fp8"),
    ("fp8", True, "fp8_block"),
    ("int8", False, "int8"),
)
ROUNDED, SUMMED = 4e-3, 1e-4
PLAIN = 8e-3  # cuBLAS may add the parts of a sum in bfloat16
QUANTIZED_SUMS = 1e-2  # Hopper adds products of fp8 in fewer bits than float32 has


def run(bed: Bed) -> None:
    shapes = bed.pick(("qkv", "gate_up", "down"), ("qkv",))
    counts = bed.pick((1, 5, 16, 17, 64, 300, 2048), (3,))
    for form in FORMS:
        for shape in shapes:
            outs, width = bed.sizes.matrices[shape]
            bed.case(f"{form.name}, {shape} {outs}x{width}", partial(_right, bed, form, (outs, width), counts))
    for dtype, blocks, storage in EIGHT_BITS:
        bed.case(f"{storage} times activations in {dtype}", partial(_eight, bed, dtype, blocks, storage, counts))
    for storage in bed.pick(("bfloat16", "int8", "fp8"), ("fp8",)):
        bed.case(f"head in {storage}, float32 logits", partial(_head, bed, storage))
    for form in FORMS[: bed.pick(4, 2)]:
        bed.case(f"same bits for any number of rows, {form.name}", partial(_invariant, bed, form))
    for storage in bed.pick(("bfloat16", "int4", "fp8", "int8"), ("bfloat16",)):
        bed.case(f"experts in {storage}", partial(_experts, bed, storage))


def unpacked(packed: Packed) -> Tensor:
    """[out, in] float64, from what the docstring of `Packed` says."""
    if packed.kind == "int4":
        assert packed.scale is not None
        both = packed.weight.to(torch.int32)
        low, high = ((both & 15) ^ 8) - 8, (((both >> 4) & 15) ^ 8) - 8
        values = torch.stack([low, high], 1).flatten(0, 1).transpose(0, 1).double()  # [out, groups, g]
        values = values * packed.scale.double().T[:, :, None]
        if packed.shift is not None:
            values = values + packed.shift.double().T[:, :, None]
        return values.flatten(1)[:, : packed.width]
    wide = packed.weight.float().double() if packed.kind != "int8" else packed.weight.double()
    if packed.kind == "fp8_block":
        assert packed.scale is not None
        each = packed.scale.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
        wide = wide * each[: len(wide), : wide.shape[1]]
    elif packed.scale is not None:
        wide = wide * packed.scale.double()[:, None]
    return wide[:, : packed.width]


def made(bed: Bed, outs: int, width: int, seed: int = 0) -> Tensor:
    """Rows and columns of unlike size, as weights have them."""
    sizes = (0.2 + bed.noise(outs, 1, seed=seed + 50).abs()) * (0.2 + bed.noise(1, width, seed=seed + 60).abs())
    return bed.noise(outs, width, seed=seed + 70) * sizes * width**-0.5


def _right(bed: Bed, form: Form, shape: tuple[int, int], counts: tuple[int, ...]) -> Finding:
    """The first number of rows with a bias, others without: what models run, and so need not be compiled again."""
    bias = bed.noise(shape[0], seed=9)
    packed = pack(made(bed, *shape), bias, form.storage, **form.options)
    weight, errors = unpacked(packed), {}
    for rows in counts:
        x = bed.noise(rows, shape[1], seed=rows)
        biased = rows == counts[0]
        want = x.double() @ weight.T + (bias.double() if biased else 0.0)
        errors[str(rows)] = far(linear(x, packed if biased else packed._replace(bias=None)), want)
    return compared(max(errors.values()), PLAIN if form.storage == "bfloat16" else ROUNDED, rows=errors)


def _eight(bed: Bed, dtype: Any, blocks: bool, storage: Any, counts: tuple[int, ...]) -> Finding:
    outs, width = bed.sizes.matrices["gate_up"]
    width = -(-width // 128) * 128
    packed = pack(made(bed, outs, width), None, storage)
    weight, errors = unpacked(packed), {}
    for rows in counts:
        x = quantize(bed.noise(rows, width, seed=rows), dtype, blocks)
        values = x.values.float().double() if dtype == "fp8" else x.values.double()
        values = values * (x.scales.double().repeat_interleave(128, 1) if blocks else x.scales.double()[:, None])
        errors[str(rows)] = far(linear(x, packed), values @ weight.T)
    return compared(max(errors.values()), QUANTIZED_SUMS, rows=errors)


def _head(bed: Bed, storage: Any) -> Finding:
    packed = pack(made(bed, bed.sizes.vocabulary, bed.sizes.width), None, storage)
    weight, errors = unpacked(packed), {}
    for rows in (1, 20):
        x = bed.noise(rows, bed.sizes.width, seed=rows)
        got = linear(x, packed, torch.float32)
        assert got.dtype == torch.float32
        errors[str(rows)] = far(got, x.double() @ weight.T)
    # A processor's product has no float32 result of bfloat16 numbers.
    return compared(max(errors.values()), bed.pick(SUMMED, ROUNDED), rows=errors)


def _invariant(bed: Bed, form: Form) -> Finding:
    """The mode in which a row's bits do not depend on others."""
    outs, width = bed.sizes.matrices["qkv"]
    packed = pack(made(bed, outs, width), None, form.storage, **form.options)
    many = bed.pick(300, 18)
    x = bed.noise(many, width)
    whole = linear(x, packed, invariant=True)
    some = {rows: linear(x[:rows], packed, invariant=True) for rows in (1, 16, many - 1)}
    wrong = [rows for rows, part in some.items() if not torch.equal(part, whole[:rows])]
    error = far(whole, x.double() @ unpacked(packed).T)
    return exact(not wrong and error <= ROUNDED, f"differ: {wrong}" if wrong else "same bits", error=error)


def _experts(bed: Bed, storage: Any) -> Finding:
    """The shape of Qwen3-30B-A3B."""
    width, inner, count, top = bed.pick((2048, 768, 128, 8), (64, 32, 4, 2))
    gate_up = [made(bed, 2 * inner, width, seed=i) for i in range(count)]
    down = [made(bed, width, inner, seed=i + 500) for i in range(count)]
    weights = pack_experts(gate_up, down, storage)
    errors = {}
    for tokens in bed.pick((1, 17, 512, 3000), (3,)):
        x = bed.noise(tokens, width, seed=tokens)
        logits = bed.noise(tokens, count, seed=tokens + 1, dtype=torch.float32) * 2
        got = experts(x, logits, weights, top, True)
        errors[str(tokens)] = far(got, _mixed(x, logits, weights, top))
    return compared(max(errors.values()), 1e-2, tokens=errors)


def _mixed(x: Tensor, logits: Tensor, weights: Any, top: int) -> Tensor:
    """Expert by expert, in float64."""
    shares, chosen = logits.double().softmax(-1).topk(top, -1)
    shares = shares / shares.sum(-1, keepdim=True)
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for number in range(logits.shape[1]):
        token, place = (chosen == number).nonzero(as_tuple=True)
        if len(token):
            gate_up, down = (unpacked(_one(packed, number)) for packed in weights)
            gate, up = (x[token].double() @ gate_up.T).chunk(2, -1)
            hidden = gate * torch.sigmoid(gate) * up
            out.index_add_(0, token, shares[token, place, None] * (hidden @ down.T))
    return out


def _one(packed: Packed, number: int) -> Packed:
    def part(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[number]

    return packed._replace(weight=packed.weight[number], scale=part(packed.scale), shift=part(packed.shift))
