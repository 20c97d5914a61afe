"""Attention, rotary positions and the cache on the device, against float64 loops over rows.

Every slot that belongs to no row holds NaN. Errors are those of a head's output, by length: the longest difference over
the length of what is right. bfloat16 rounds the weights and the output, about 0.002 together; one split of keys that is
left out or counted twice at 32k of context makes 0.09.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bosquet.kernels.table import PAGE, AttentionRow
from bosquet.kernels.triton.attention import attend
from bosquet.kernels.triton.kv import KvStore, write_kv
from bosquet.kernels.triton.plan import AttentionPlan, describe, exact_shape
from bosquet.kernels.triton.rotary import rotary, rotary_write

from .bed import Bed
from .report import Finding, compared, exact

BOUND = 1e-2
FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16


class Case(NamedTuple):
    """`rows` are (tokens in the cache, new tokens, parents or None); `shared`: pages that all rows begin with."""

    name: str
    rows: Sequence[tuple[int, int, Sequence[int] | None]]
    heads: int
    kv_heads: int
    dim: int
    window: int | None = None
    dtype: torch.dtype = BF16
    shared: int = 0

    @property
    def scale(self) -> float:
        return float(self.dim**-0.5)


class Laid(NamedTuple):
    """A case on the device."""

    case: Case
    q: Tensor  # [T, H, d]
    keys: list[Tensor]  # [n, K, d] of each row
    values: list[Tensor]
    rows: list[AttentionRow]
    store: KvStore


def tree(length: int, seed: int) -> list[int]:
    """Parents of a draft tree: some chains, some branches, now and then a root."""
    rng = np.random.default_rng(seed)
    return [-1 if i == 0 or rng.random() < 0.1 else int(rng.integers(max(0, i - 3), i)) for i in range(length)]


def cases(bed: Bed) -> list[Case]:
    heads, kv_heads, dim = bed.sizes.heads, bed.sizes.kv_heads, bed.sizes.head_dim
    if bed.tiny:
        shape = heads, kv_heads, dim
        mixed = [(1, 17, None), (18, 5, tree(5, 1))]
        return [
            Case("mixed", mixed, *shape),
            Case("cascade, fp8", [(258, 1, None), (261, 2, None)], *shape, dtype=FP8, shared=16),
        ]
    shape = heads, kv_heads, dim
    edges = (0, 1, 15, 16, 255, 256, 257, 1000, 4095, 8191, 16_400, 32_767)
    decode = [(n, 1, None) for n in edges]
    chains = [(n, 5, None) for n in (3, 250, 4000, 32_000)]
    trees = [(n, 16, tree(16, n)) for n in (3, 250, 8000)]
    large = [(700, 128, tree(128, 5)), (20, 40, tree(40, 6))]
    prompts = [(8192, 2048, None)]
    mixed = [
        (8000, 1, None),
        (0, 700, None),
        (512, 333, None),
        *trees[:2],
        (31_000, 1, None),
        *large[:1],
        (90, 16, None),
    ]
    forks = [(4096 + 40 * i, 1 + i % 3, None) for i in range(20)]
    return [
        Case("decode to 32k", decode, *shape),
        Case("decode to 32k, fp8 cache", decode, *shape, dtype=FP8),
        Case("decode, window of 4096", decode, *shape, window=4096),
        Case("verify chains of 5 to 32k", chains, *shape),
        Case("verify trees of 16", trees, *shape),
        Case("verify trees of 128", large, *shape),
        Case("prefill 2048 after 8192", prompts, *shape),
        Case("prefill 2048 after 8192, fp8 cache", prompts, *shape, dtype=FP8),
        Case("prefill, window of 1000", [(3000, 2000, None)], *shape, window=1000),
        Case("all kinds of rows in one pass", mixed, *shape),
        Case("20 forks of 4096 tokens", forks, *shape, shared=256),
        Case("heads of 64", mixed, 32, 8, 64),
        Case("heads of 96, no groups", mixed[1:], 8, 8, 96),
        Case("heads of 256, window of 512", mixed, 8, 4, 256, window=512),
        Case("one key head", decode, 16, 1, 128),
    ]


def run(bed: Bed) -> None:
    for case in cases(bed):
        bed.case(case.name, partial(_right, bed, case))
    for case in [case for case in cases(bed) if case.shared or case.name in ("mixed", "all kinds of rows in one pass")]:
        bed.case(f"same bits, cut otherwise: {case.name}", partial(_same, bed, case))
    for dtype in (BF16, FP8):
        bed.case(f"rotary and write, {_name(dtype)}", partial(_rotary, bed, dtype))
        bed.case(f"pages move, {_name(dtype)}", partial(_pages, bed, dtype))


def _name(dtype: torch.dtype) -> str:
    return "fp8" if dtype == FP8 else "bf16"


# ---- attention -------------------------------------------------------------------------------------------------------


def lay(bed: Bed, case: Case) -> Laid:
    tokens = sum(length for _, length, _ in case.rows)
    q = bed.noise(tokens, case.heads, case.dim)
    store, rows, keys, values = _filled(bed, case)
    return Laid(case, q, keys, values, rows, store)


def _filled(bed: Bed, case: Case) -> tuple[KvStore, list[AttentionRow], list[Tensor], list[Tensor]]:
    """Shuffled pages, as in a pool that has been in use; layer 1 of two."""
    counts = [-(-(start + length) // PAGE) for start, length, _ in case.rows]
    pool = case.shared + sum(count - case.shared for count in counts) + 3
    order = np.random.default_rng(3).permutation(pool).tolist()
    common = [order.pop() for _ in range(case.shared)]
    store = KvStore(2, case.kv_heads, pool, case.dim, case.dtype, bed.device)
    raw = store.data.view(torch.uint8)
    raw.fill_(0x7F if case.dtype == FP8 else 0xFF)  # NaN
    rows, keys, values = [], [], []
    for number, ((start, length, parents), count) in enumerate(zip(case.rows, counts, strict=True)):
        pages = [*common, *(order.pop() for _ in range(count - case.shared))]
        both = []
        for which in (0, 1):
            made = bed.noise(start + length, case.kv_heads, case.dim, seed=10 + 2 * number + which)
            if case.shared:
                made[: case.shared * PAGE] = bed.noise(case.shared * PAGE, case.kv_heads, case.dim, seed=which)
            kept = made.to(case.dtype)
            slots = slots_of(bed, pages, start + length)
            cells = raw[1, which].view(pool, case.kv_heads, PAGE, -1)
            cells[slots // PAGE, :, slots % PAGE] = kept.view(torch.uint8).view(len(kept), case.kv_heads, -1)
            both.append(kept)
        rows.append(AttentionRow(start, length, pages, parents))
        keys.append(both[0])
        values.append(both[1])
    return store, rows, keys, values


def slots_of(bed: Bed, pages: Sequence[int], count: int) -> Tensor:
    positions = np.arange(count)
    return bed.numbers(np.asarray(pages)[positions // PAGE] * PAGE + positions % PAGE, torch.int64)


def expected(laid: Laid) -> Tensor:
    """[T, H, d] float64, row by row and key head by key head."""
    case, out, first = laid.case, torch.empty_like(laid.q, dtype=torch.float64), 0
    group = case.heads // case.kv_heads
    for row, keys, values in zip(laid.rows, laid.keys, laid.values, strict=True):
        seen = _seen(row, case.window, laid.q.device)
        q = laid.q[first : first + row.length].double()
        for head in range(case.kv_heads):
            mine = slice(head * group, (head + 1) * group)
            scores = torch.einsum("lgd,nd->gln", q[:, mine], keys[:, head].double()) * case.scale
            weights = scores.masked_fill_(~seen, -torch.inf).softmax(-1)
            out[first : first + row.length, mine] = torch.einsum("gln,nd->lgd", weights, values[:, head].double())
        first += row.length
    return out


def _seen(row: AttentionRow, window: int | None, device: torch.device) -> Tensor:
    """[L, n]: which keys each of the row's queries sees."""
    own = np.tri(row.length, dtype=bool)
    depth = np.arange(row.length)
    if row.parents is not None:
        own = np.eye(row.length, dtype=bool)
        for i, parent in enumerate(row.parents):
            depth[i] = 0
            if parent >= 0:
                own[i] |= own[parent]
                depth[i] = depth[parent] + 1
    seen = np.concatenate([np.ones((row.length, row.start), dtype=bool), own], axis=1)
    if window is not None:
        at = np.concatenate([np.arange(row.start), row.start + depth])
        seen &= (row.start + depth)[:, None] - at[None, :] < window
    return torch.from_numpy(seen).to(device)


def far(got: Tensor, want: Tensor) -> float:
    """The longest difference of a vector of the last axis, over the length of what is right; infinite for NaN."""
    error = (got.double() - want).norm(dim=-1) / want.norm(dim=-1).clamp(min=1e-30)
    return float(torch.nan_to_num(error, nan=torch.inf).max())


def _attend(laid: Laid, plan: AttentionPlan, q: Tensor | None = None) -> Tensor:
    case = laid.case
    q = laid.q if q is None else q
    return attend(q, laid.store, 1, plan, case.scale, case.window).view(q.shape)


def planned(bed: Bed, laid: Laid, *, cascade: bool = True, more: int = 0) -> AttentionPlan:
    """`more`: padding in every way there is."""
    shape = exact_shape(laid.rows)
    if more:
        shape = shape._replace(
            rows=shape.rows + more, tokens=shape.tokens + more, context=2 * shape.context, blocks=shape.blocks + more,
            short=shape.short_tokens + more,
        )  # fmt: skip
    words = describe(laid.rows, shape, cascade=cascade)
    return AttentionPlan(shape, bed.numbers(words, torch.int32))


def _right(bed: Bed, case: Case) -> Finding:
    laid = lay(bed, case)
    return compared(far(_attend(laid, planned(bed, laid)), expected(laid)), BOUND)


def _same(bed: Bed, case: Case) -> Finding:
    """Without a cascade, in a larger shape, and each row alone."""
    laid = lay(bed, case)
    whole = _attend(laid, planned(bed, laid))
    found = {"no cascade": _bits(whole, _attend(laid, planned(bed, laid, cascade=False)))}
    padded = torch.cat([laid.q, laid.q[:3]])
    found["padded"] = _bits(whole, _attend(laid, planned(bed, laid, more=3), padded)[: len(whole)])
    first, alone = 0, True
    for row in laid.rows:
        part = laid._replace(rows=[row])
        mine = slice(first, first + row.length)
        alone = alone and _bits(whole[mine], _attend(part, planned(bed, part), laid.q[mine]))
        first += row.length
    found["alone"] = alone
    wrong = [name for name, same in found.items() if not same]
    return exact(not wrong, f"differ: {', '.join(wrong)}" if wrong else "same bits", **found)


def _bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16))


# ---- rotary positions, and what is stored ----------------------------------------------------------------------------


def _rotary(bed: Bed, dtype: torch.dtype) -> Finding:
    """Queries and keys in their places, with and without the norms that Qwen3 has; the values as they are."""
    heads, kv_heads, dim = bed.sizes.heads, bed.sizes.kv_heads, bed.sizes.head_dim
    tokens, positions, pages = bed.pick((300, 40_000, 64), (3, 50, 4))
    angles = bed.noise(positions, dim // 2, dtype=torch.float32) * 9
    cos, sin = angles.cos(), angles.sin()
    joined = bed.noise(tokens, heads + 2 * kv_heads, dim)
    q, k, v = joined.split_with_sizes((heads, kv_heads, kv_heads), 1)
    at = bed.numbers(np.random.default_rng(1).integers(0, positions, tokens), torch.int64)
    slots = bed.numbers(np.random.default_rng(2).permutation(pages * PAGE)[:tokens], torch.int64)
    norms = [1 + bed.noise(dim, seed=seed) * 0.1 for seed in (5, 6)]
    worst = {"turned": 0.0, "stored": 0.0}
    for named in ((), norms):
        store = KvStore(2, kv_heads, pages, dim, dtype, bed.device)
        got = rotary_write(q, k, v, cos, sin, at, slots, store, 1, *named, *([1e-5] if named else []))
        want_q, want_k = (_turned(x, cos[at], sin[at], named[i] if named else None) for i, x in enumerate((q, k)))
        worst["turned"] = max(worst["turned"], far(got, want_q))
        for which, want in enumerate((want_k, v.double())):
            held = store.data[1, which].float()[slots // PAGE, :, slots % PAGE]
            worst["stored"] = max(worst["stored"], far(held, want))
        if not named:
            plain = rotary(q, k, cos[at], sin[at])
            worst["turned"] = max(worst["turned"], far(plain[0], want_q), far(plain[1], want_k))
    stored = 4e-3 if dtype == BF16 else 5e-2
    return compared(max(worst["turned"], worst["stored"] * 4e-3 / stored), 4e-3, **worst)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, norm: Tensor | None) -> Tensor:
    """Pairs (x[j], x[j + d/2]) as complex numbers."""
    wide = x.double()
    if norm is not None:
        wide = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.double()
    first, second = wide.chunk(2, -1)
    turned = torch.complex(first, second) * torch.complex(cos.double(), sin.double())[:, None]
    return torch.cat([turned.real, turned.imag], -1)


def _pages(bed: Bed, dtype: torch.dtype) -> Finding:
    """Writes, copies of pages, moves of slots, and pages to the host and back: exactly what a copy in torch does."""
    kv_heads, dim = bed.sizes.kv_heads, bed.sizes.head_dim
    pages = bed.pick(40, 4)
    store = KvStore(2, kv_heads, pages, dim, dtype, bed.device)
    slots = torch.arange(pages * PAGE, device=bed.device)
    for layer in (0, 1):
        k, v = (bed.noise(pages * PAGE, kv_heads, dim, seed=layer + which) for which in (0, 2))
        write_kv(store, layer, k, v, slots)
    held = store.data[1, 0].float()[slots // PAGE, :, slots % PAGE]
    written = far(held, bed.noise(pages * PAGE, kv_heads, dim, seed=1).double())
    want = store.data.view(torch.uint8).clone()
    want[:, :, 2, :, :9] = want[:, :, 0, :, :9]
    want[:, :, 3] = want[:, :, 2]
    store.copy_pages([(0, 2, 9), (2, 3, PAGE)])
    src, dst = (bed.numbers(x, torch.int64) for x in ((5, 18, 33), (18, 5, 50)))
    moved = want[:, :, src // PAGE, :, src % PAGE].clone()
    want[:, :, dst // PAGE, :, dst % PAGE] = moved
    store.move_slots(src, dst)
    found: dict[str, Any] = {"copied": torch.equal(store.data.view(torch.uint8), want)}
    kept = store.read_pages([1, 3])
    store.data.view(torch.uint8).fill_(0)
    store.write_pages([1, 3], kept)
    found["restored"] = torch.equal(store.data.view(torch.uint8)[:, :, [1, 3]], want[:, :, [1, 3]])
    found["written"] = written <= (1e-6 if dtype == BF16 else 5e-2)
    wrong = [name for name, right in found.items() if not right]
    return exact(not wrong, f"wrong: {', '.join(wrong)}" if wrong else "all copies", **found)
