"""Each kernel's time beside its floor: the bytes that it must move over copying's, or its operations over a GEMM's.

Work is recorded and replayed after the second-level cache was emptied. What would fit in that cache (weights of a small
layer) is there several times, and used in turn, as the layers of a model are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import triton

from bosquet.kernels.table import PAGE, AttentionRow
from bosquet.kernels.triton.activation import silu_mul
from bosquet.kernels.triton.attention import attend
from bosquet.kernels.triton.experts import experts, pack_experts
from bosquet.kernels.triton.kv import KvStore
from bosquet.kernels.triton.linear import linear
from bosquet.kernels.triton.masks import apply_mask
from bosquet.kernels.triton.norm import add_rms_norm
from bosquet.kernels.triton.plan import plan_attention
from bosquet.kernels.triton.quantize import pack
from bosquet.kernels.triton.quantize_rows import quantize
from bosquet.kernels.triton.rotary import rotary_write
from bosquet.kernels.triton.sampling import draw
from bosquet.kernels.triton.verify import settle

from .bed import Bed, Work
from .check_attention import tree
from .check_sampling import Filters, rows_of
from .floors import attention_flops, floor_seconds, matrix_bytes
from .report import Finding, seconds, share

OVER = 1 << 28  # bytes of weights that no second-level cache holds
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
DRAWN: dict[str, Filters] = {
    "greedy": (0.0, 0, 1.0, 0.0), "plain": (1.0, 0, 1.0, 0.0), "filtered": (0.8, 50, 0.9, 0.02),
}  # fmt: skip


class Timed(NamedTuple):
    """Works that are alike, on different data; what one must move and compute. `figure`: the name of its share of the
    copy's speed, where a target is made of it."""

    works: Sequence[Work]
    bytes: float
    flops: float = 0.0
    fp8: bool = False
    figure: str = ""


def run(bed: Bed) -> None:
    for name, make in [*_attention(bed), *_linear(bed), *_pointwise(bed), *_sampling(bed)]:
        bed.case(name, partial(_time, bed, make))


def ceilings(bed: Bed) -> None:
    """As cases of their own, after what was measured on."""
    device = "the interpreter" if bed.tiny else torch.cuda.get_device_name()
    bed.case("device", partial(Finding, device, f"torch {torch.__version__} triton {triton.__version__}"))

    def ceiling(name: str, unit: str) -> Finding:
        value = getattr(bed.ceilings(), name)
        return Finding(f"{value / 1e12:.4g} {unit}", facts={"value": value})

    bed.case("copy on the device, bytes read and written", partial(ceiling, "copy", "TB/s"))
    bed.case("GEMM 8192, bfloat16", partial(ceiling, "gemm", "TFLOP/s"))
    bed.case("GEMM 8192, fp8", partial(ceiling, "gemm_fp8", "TFLOP/s"))


def _time(bed: Bed, make: Callable[[], Timed]) -> Finding:
    ceilings, timed = bed.ceilings(), make()
    taken = bed.seconds(timed.works)
    rate = ceilings.gemm_fp8 if timed.fp8 and ceilings.gemm_fp8 else ceilings.gemm
    floor = floor_seconds(timed.bytes, timed.flops, ceilings.copy, rate)
    bound = "bytes" if timed.bytes / ceilings.copy >= timed.flops / rate else "operations"
    facts: dict[str, Any] = {"seconds": taken, "floor": floor, "bytes": timed.bytes, "flops": timed.flops}
    if timed.figure:
        facts["figures"] = {timed.figure: floor / taken}
    return Finding(seconds(taken), f"{seconds(floor)} of {bound}", share(floor / taken), "", facts)


Named = Iterator[tuple[str, Callable[[], Timed]]]


# ---- attention -------------------------------------------------------------------------------------------------------


def _attention(bed: Bed) -> Named:
    if bed.tiny:
        yield "attention, decode 2 x 40", partial(_decode, bed, 2, 40, BF16)
        return
    yield "attention, decode 64 x 8192", partial(_decode, bed, 64, 8192, BF16, figure="attention decode 64x8192")
    for rows, context in ((1, 8192), (8, 8192), (1, 32_768), (8, 32_768)):
        yield f"attention, decode {rows} x {context}", partial(_decode, bed, rows, context, BF16)
    yield "attention, decode 64 x 8192, fp8 cache", partial(_decode, bed, 64, 8192, FP8)
    yield "attention, decode 64 x 8192, window of 1024", partial(_decode, bed, 64, 8192, BF16, window=1024)
    yield "attention, 64 forks of 8192 tokens", partial(_decode, bed, 64, 8192 + 64, BF16, shared=8192)
    yield "attention, trees of 16, 8 x 8192", partial(_decode, bed, 8, 8192, BF16, length=16)
    for start, length in ((0, 8192), (8192, 2048), (30_000, 2048)):
        yield f"attention, prefill {length} after {start}", partial(_prompt, bed, start, length)


def _decode(
    bed: Bed, rows: int, context: int, dtype: torch.dtype, *,
    length: int = 1, window: int | None = None, shared: int = 0, figure: str = "",
) -> Timed:  # fmt: skip
    """`context` keys a row, the first `shared` of them the same ones."""
    size = bed.sizes
    own = -(-(context - shared) // PAGE)
    order = np.random.default_rng(0).permutation(shared // PAGE + rows * own).tolist()
    common = [order.pop() for _ in range(shared // PAGE)]
    parents = tree(length, 1) if length > 1 else None
    listed = [
        AttentionRow(context - length, length, [*common, *(order.pop() for _ in range(own))], parents)
        for _ in range(rows)
    ]
    store = _noisy(bed, shared // PAGE + rows * own, dtype)
    plan = plan_attention(listed, bed.device)
    q = bed.noise(rows * length, size.heads, size.head_dim)
    keys = shared + rows * (min(context, window or context) - shared)
    read = 2 * keys * size.kv_heads * size.head_dim * dtype.itemsize
    flops = 4 * size.heads * size.head_dim * rows * length * min(context, window or context)
    return Timed([lambda: attend(q, store, 0, plan, size.head_dim**-0.5, window)], read, flops, figure=figure)


def _prompt(bed: Bed, start: int, length: int) -> Timed:
    size = bed.sizes
    pages = -(-(start + length) // PAGE)
    plan = plan_attention(
        [AttentionRow(start, length, np.random.default_rng(0).permutation(pages).tolist())], bed.device
    )
    store, q = _noisy(bed, pages, BF16), bed.noise(length, size.heads, size.head_dim)
    read = 2 * (start + length) * size.kv_heads * size.head_dim * 2
    flops = attention_flops(size, start, length)
    return Timed([lambda: attend(q, store, 0, plan, size.head_dim**-0.5, None)], read, flops)


def _noisy(bed: Bed, pages: int, dtype: torch.dtype) -> KvStore:
    store = KvStore(1, bed.sizes.kv_heads, pages, bed.sizes.head_dim, dtype, bed.device)
    for part in store.layers[0].flatten(0, 1).split(4096):
        part.copy_(torch.randn(part.shape, dtype=BF16, device=bed.device))
    return store


# ---- matrices --------------------------------------------------------------------------------------------------------


def _linear(bed: Bed) -> Named:
    counts = bed.pick((1, 8, 64, 512), (2,))
    for storage in bed.pick(("bfloat16", "fp8", "int4", "int8"), ("int4",)):
        for shape in bed.pick(("gate_up", "qkv", "down"), ("qkv",)):
            for rows in counts if shape == "gate_up" else counts[:1]:
                yield f"linear {storage}, {shape}, {rows} rows", partial(_product, bed, storage, shape, rows)
    for rows in bed.pick((1, 64, 2048), (2,)):
        yield (
            f"linear fp8 times fp8, gate_up, {rows} rows",
            partial(_product, bed, "fp8", "gate_up", rows, True),
        )
    for rows in bed.pick((1, 64), (1,)):
        yield f"head bfloat16, {rows} rows", partial(_head, bed, rows)
        yield f"experts bfloat16, {bed.pick(128, 4)}, {rows} rows", partial(_experts, bed, rows)


def _product(bed: Bed, storage: Any, shape: str, rows: int, eight: bool = False) -> Timed:
    outs, width = bed.sizes.matrices[shape]
    read = matrix_bytes(outs, width, storage)
    copies = bed.pick(min(16, -(-OVER // read)), 1)
    packed = [pack(bed.noise(outs, width, seed=i) * width**-0.5, None, storage) for i in range(copies)]
    plain = bed.noise(rows, width)
    x = quantize(plain) if eight else plain
    moved = read + rows * (width + outs) * 2
    return Timed([partial(linear, x, one) for one in packed], moved, 2 * rows * outs * width, fp8=eight)


def _head(bed: Bed, rows: int) -> Timed:
    outs, width = bed.sizes.vocabulary, bed.sizes.width
    packed, x = pack(bed.noise(outs, width)), bed.noise(rows, width)
    moved = 2 * outs * width + 4 * rows * outs
    return Timed([lambda: linear(x, packed, torch.float32)], moved, 2 * rows * outs * width)


def _experts(bed: Bed, rows: int) -> Timed:
    """Of Qwen3-30B-A3B's; what must be read are the experts that some token chose."""
    width, inner, count, top = bed.pick((2048, 768, 128, 8), (64, 32, 4, 2))
    gate_up = [bed.noise(2 * inner, width, seed=i) * width**-0.5 for i in range(count)]
    down = [bed.noise(width, inner, seed=i + 500) * inner**-0.5 for i in range(count)]
    weights = pack_experts(gate_up, down, "bfloat16")
    x, logits = bed.noise(rows, width), bed.noise(rows, count, dtype=torch.float32)
    chosen = len(logits.topk(top).indices.unique())
    flops = 2 * rows * top * 3 * inner * width
    return Timed([lambda: experts(x, logits, weights, top, True)], chosen * 3 * inner * width * 2, flops)


# ---- the rest --------------------------------------------------------------------------------------------------------


def _pointwise(bed: Bed) -> Named:
    for rows in bed.pick((64, 8192), (2,)):
        yield f"residual and norm, {rows} rows", partial(_norm, bed, rows)
        yield f"silu gate, {rows} rows", partial(_gate, bed, rows)
        yield f"rotary and write, {rows} rows", partial(_rotary, bed, rows)


def _norm(bed: Bed, rows: int) -> Timed:
    x, residual = bed.noise(rows, bed.sizes.width), bed.noise(rows, bed.sizes.width)
    weight = bed.noise(bed.sizes.width)
    return Timed([lambda: add_rms_norm(x, residual, weight, 1e-5)], 4 * x.nbytes)


def _gate(bed: Bed, rows: int) -> Timed:
    both = bed.noise(rows, 2 * bed.sizes.inner)
    return Timed([lambda: silu_mul(both)], 1.5 * both.nbytes)


def _rotary(bed: Bed, rows: int) -> Timed:
    size, pages = bed.sizes, -(-rows // PAGE)
    heads = (size.heads, size.kv_heads, size.kv_heads)
    joined = bed.noise(rows, sum(heads), size.head_dim)
    q, k, v = joined.split_with_sizes(heads, 1)
    cos, sin = (bed.noise(8192, size.head_dim // 2, seed=s, dtype=torch.float32) for s in (1, 2))
    at = torch.arange(rows, device=bed.device)
    store = KvStore(1, size.kv_heads, pages, size.head_dim, BF16, bed.device)
    return Timed(
        [lambda: rotary_write(q, k, v, cos, sin, at, at, store, 0)], 2 * joined.nbytes + 4 * rows * size.head_dim
    )


def _sampling(bed: Bed) -> Named:
    for rows in bed.pick((1, 64), (2,)):
        for name, filters in DRAWN.items():
            yield f"draw, {name}, {rows} rows", partial(_draw, bed, rows, filters)
        yield f"mask, {rows} rows", partial(_mask, bed, rows)
    yield "settle drafts, 8 rows", partial(_settle, bed, bed.pick(8, 2))


def _draw(bed: Bed, rows: int, filters: Filters) -> Timed:
    logits = bed.noise(rows, bed.sizes.vocabulary, dtype=torch.float32) * 3
    asked = rows_of(bed, list(range(rows)), filters, np.random.default_rng(0).random(rows))
    return Timed([lambda: draw(logits, asked)], logits.nbytes)


def _mask(bed: Bed, rows: int) -> Timed:
    """It reads bits alone, and writes where they are not set: half of them, here."""
    logits = bed.noise(rows, bed.sizes.vocabulary, dtype=torch.float32)
    bits = torch.randint(-(2**31), 2**31, (rows, -(-bed.sizes.vocabulary // 32)), device=bed.device).to(torch.int32)
    at = torch.arange(rows, device=bed.device)
    return Timed([lambda: apply_mask(logits, bits, at)], bits.nbytes + logits.nbytes / 2)


def _settle(bed: Bed, rows: int) -> Timed:
    width = bed.sizes.vocabulary
    target, draft = (bed.noise(rows, width, seed=s, dtype=torch.float32).softmax(-1) for s in (1, 2))
    guesses = torch.zeros(rows, dtype=torch.int64, device=bed.device)
    u = bed.numbers(np.full((2, rows), 0.999), torch.float64)
    return Timed([lambda: settle(target, draft, guesses, u[0], u[1])], target.nbytes + draft.nbytes)
