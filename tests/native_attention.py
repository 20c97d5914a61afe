"""What the tests of native attention share: libraries that run here, types of cache, what they make of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch
from op_cases import CPU, Array, AttentionCase, SeqRow, as_tensor, exact, slots_of
from torch import Tensor

from bosquet.kernels.cpu.attention import KvStore, NativeAttention
from bosquet.kernels.cpu.library import Library, usable
from bosquet.kernels.table import PAGE, AttentionRow

ISAS = usable()
if not ISAS:
    pytest.skip("no native library was built for this processor", allow_module_level=True)
KV_TYPES = [torch.float32, torch.bfloat16, torch.int8]
FLOAT = torch.float32


@cache
def library(isa: str, threads: int) -> Library:
    return Library(isa, threads)


@cache
def native(isa: str = ISAS[0], threads: int = 2, *, cascade: bool = True) -> NativeAttention:
    return NativeAttention(library(isa, threads), cascade=cascade)


def as_stored(values: Array, dtype: torch.dtype) -> Array:
    """`values` [T, K, d] as a cache of the type holds them."""
    if dtype != torch.int8:
        return exact(values, dtype)
    x = values.astype(np.float32)
    largest = np.abs(x).max(-1, keepdims=True)
    whole = np.rint(x * (np.float32(127) / largest))
    return whole.astype(np.float64) * (largest / np.float32(127)).astype(np.float64)


def write(ops: NativeAttention, kv: KvStore, layer: int, keys: Array, values: Array, slots: Tensor) -> None:
    ops.write_kv(kv, layer, as_tensor(keys, FLOAT), as_tensor(values, FLOAT), slots)


def stale_cache(ops: NativeAttention, case: AttentionCase, dtype: torch.dtype) -> KvStore:
    """Two layers in which every slot of the second holds NaN."""
    kv = ops.make_kv(2, case.kv_heads, case.pool, case.dim, dtype)
    slots = torch.arange(case.pool * PAGE)
    nan = torch.full((len(slots), case.kv_heads, case.dim), float("nan"))
    ops.write_kv(kv, 1, nan, nan, slots)
    return kv


def cache_of(ops: NativeAttention, case: AttentionCase, dtype: torch.dtype) -> KvStore:
    """The case's keys and values in layer 1; every other slot holds NaN."""
    kv = stale_cache(ops, case, dtype)
    for keys, values, pages in zip(case.keys, case.values, case.pages, strict=True):
        write(ops, kv, 1, keys, values, slots_of(pages, len(keys)))
    return kv


def attend(
    ops: NativeAttention,
    kv: KvStore,
    rows: Sequence[AttentionRow],
    q: Array,
    scale: float = 0.125,
    window: int | None = None,
) -> Tensor:
    return ops.attention(as_tensor(q, FLOAT), kv, 1, ops.plan_attention(rows, CPU), scale, window)


def run(ops: NativeAttention, case: AttentionCase, dtype: torch.dtype) -> Tensor:
    return attend(ops, cache_of(ops, case, dtype), case.table_rows(), case.q, case.scale, case.window)


def same_bits(a: Tensor, b: Tensor) -> bool:
    assert a.dtype == b.dtype == FLOAT
    return a.shape == b.shape and torch.equal(a.view(torch.int32), b.view(torch.int32))


def part(case: AttentionCase, index: int, values: Tensor) -> Tensor:
    """What `values` [T, …] holds of row `index`."""
    first = sum(row.length for row in case.rows[:index])
    return values[first : first + case.rows[index].length]


def own_path(row: SeqRow, query: int) -> list[int]:
    """The tree tokens that a query sees, from the root to itself."""
    assert row.parents is not None
    found = [query]
    while row.parents[found[-1]] >= 0:
        found.append(row.parents[found[-1]])
    return found[::-1]
