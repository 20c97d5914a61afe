"""Cases for the operation table, the same for every back end. Knows no back end's layout.

A function yields named cases; a case holds float64 data, and `op_oracles.py` has the right answers in float64. Tests
take the back ends from `back_ends()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bosquet.kernels.registry import known_ops, load_ops
from bosquet.kernels.table import PAGE, AttentionRow, Ops

Array = npt.NDArray[np.float64]
CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
ROUND = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}  # half a unit in the last place, relative


@cache
def back_end(name: str) -> Ops:
    return load_ops(name)


def back_ends() -> list[str]:
    """Names of the back ends that run on this machine."""
    return list(known_ops())


def as_tensor(values: Array, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(values).to(dtype)


def exact(values: Array, dtype: torch.dtype) -> Array:
    """`values` as the type holds them, so that an oracle starts from the same numbers."""
    return np.asarray(as_tensor(values, dtype).double().numpy())


@dataclass(frozen=True)
class SeqRow:
    """One row: `start` tokens are in the cache, `length` are new."""

    start: int
    length: int
    parents: Sequence[int] | None = None


@dataclass
class AttentionCase:
    """Ragged rows over shuffled pages. Keys and values of row r: [start + length, K, d], new tokens last."""

    name: str
    heads: int
    kv_heads: int
    dim: int
    rows: list[SeqRow]
    window: int | None = None
    spare_pages: int = 3
    seed: int = 0
    scale: float = 0.0
    q: Array = field(init=False)
    keys: list[Array] = field(init=False)
    values: list[Array] = field(init=False)
    pages: list[list[int]] = field(init=False)
    pool: int = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed + 1)
        self.scale = self.scale or self.dim**-0.5
        tokens = sum(row.length for row in self.rows)
        self.q = rng.standard_normal((tokens, self.heads, self.dim))
        shapes = [(row.start + row.length, self.kv_heads, self.dim) for row in self.rows]
        self.keys = [rng.standard_normal(shape) for shape in shapes]
        self.values = [rng.standard_normal(shape) for shape in shapes]
        counts = [-(-(row.start + row.length) // PAGE) for row in self.rows]
        self.pool = sum(counts) + self.spare_pages
        order = rng.permutation(self.pool).tolist()
        self.pages = []
        for count in counts:
            self.pages.append([order.pop() for _ in range(count)])

    def table_rows(self) -> list[AttentionRow]:
        return [
            AttentionRow(row.start, row.length, pages, row.parents)
            for row, pages in zip(self.rows, self.pages, strict=True)
        ]

    def only(self, index: int) -> AttentionCase:
        """The same row, alone, with the same data."""
        alone = AttentionCase(
            f"{self.name}[{index}]", self.heads, self.kv_heads, self.dim, [self.rows[index]], self.window
        )
        first = sum(row.length for row in self.rows[:index])
        alone.q = self.q[first : first + self.rows[index].length]
        alone.keys, alone.values = [self.keys[index]], [self.values[index]]
        return alone


def slots_of(pages: Sequence[int], count: int) -> Tensor:
    """Slot numbers of positions 0 … count - 1."""
    positions = np.arange(count)
    return torch.from_numpy(np.asarray(pages)[positions // PAGE] * PAGE + positions % PAGE)


def filled_cache(ops: Ops, case: AttentionCase, dtype: torch.dtype, layers: int = 2, layer: int = 1) -> Any:
    """A store in which every slot that belongs to no row holds NaN: what another request left must not be read."""
    kv = ops.make_kv(layers, case.kv_heads, case.pool, case.dim, dtype)
    everywhere = torch.arange(case.pool * PAGE)
    nan = torch.full((case.pool * PAGE, case.kv_heads, case.dim), float("nan"), dtype=dtype)
    ops.write_kv(kv, layer, nan, nan, everywhere)
    for keys, values, pages in zip(case.keys, case.values, case.pages, strict=True):
        slots = slots_of(pages, len(keys))
        ops.write_kv(kv, layer, as_tensor(keys, dtype), as_tensor(values, dtype), slots)
    return kv


def run_attention(ops: Ops, case: AttentionCase, dtype: torch.dtype) -> Tensor:
    kv = filled_cache(ops, case, dtype)
    plan = ops.plan_attention(case.table_rows(), CPU)
    return ops.attention(as_tensor(case.q, dtype), kv, 1, plan, case.scale, case.window)


def random_tree(length: int, seed: int) -> list[int]:
    """Parents of a tree; some roots, some chains."""
    rng = np.random.default_rng(seed)
    return [-1 if i == 0 or rng.random() < 0.1 else int(rng.integers(max(0, i - 3), i)) for i in range(length)]


SHAPES = {"gqa": (9, 3, 64), "mha": (4, 4, 96), "mqa": (8, 1, 128), "wide": (4, 2, 256)}


def attention_cases() -> Iterator[AttentionCase]:
    """Rows of every kind: decode, short, long, mixed, trees, windows; starts and lengths around page edges."""
    edges = [0, 1, 14, 15, 16, 17, 31, 32, 33]
    mixed = [SeqRow(40, 1), SeqRow(0, 23), SeqRow(7, 5), SeqRow(100, 1), SeqRow(33, 31), SeqRow(0, 1)]
    trees = [SeqRow(20, n, random_tree(n, n)) for n in (2, 7, 16)] + [SeqRow(31, 40, random_tree(40, 1))]
    for name, (heads, kv_heads, dim) in SHAPES.items():
        for window in (None, 19):
            label = f"{name}-{window}"
            yield AttentionCase(f"{label}-decode", heads, kv_heads, dim, [SeqRow(n, 1) for n in edges], window)
            yield AttentionCase(f"{label}-mixed", heads, kv_heads, dim, mixed, window)
    shape = SHAPES["gqa"]
    for window in (None, 5, 25):
        label = f"window-{window}"
        yield AttentionCase(f"{label}-short", *shape, [SeqRow(n, 1 + n % 16) for n in edges], window)
        yield AttentionCase(f"{label}-long", *shape, [SeqRow(n, 17 + n) for n in edges], window)
        yield AttentionCase(f"{label}-trees", *shape, trees, window)
        yield AttentionCase(f"{label}-trees-mixed", *shape, [*mixed[:3], *trees, *mixed[3:]], window)
    yield AttentionCase("single", *shape, [SeqRow(0, 1)])
    yield AttentionCase("even", *shape, [SeqRow(50, 1)] * 3)
    yield AttentionCase("unlike-lengths", 2, 1, 64, [SeqRow(n, 1) for n in (900, 3, 850, 200, 190, 15, 420)])
    yield AttentionCase("blocks", 2, 1, 64, [SeqRow(8200, 20), SeqRow(4096, 17)])
    yield AttentionCase("long-window", 2, 1, 64, [SeqRow(150, 300)], window=64)
    yield AttentionCase("window-not-reached", *shape, [SeqRow(10, 20), SeqRow(3, 1)], window=30)
    yield AttentionCase("scaled", *shape, mixed, scale=0.3)


@dataclass(frozen=True)
class LinearCase:
    name: str
    rows: int
    width_in: int
    width_out: int
    bias: bool


def linear_cases() -> Iterator[LinearCase]:
    """Numbers of rows around vector widths, and widths that are no multiple of one."""
    for rows in (0, 1, 2, 3, 8, 17, 64, 130):
        yield LinearCase(f"{rows}-model", rows, 576, 960, bias=False)
        yield LinearCase(f"{rows}-odd", rows, 37, 101, bias=True)


@dataclass(frozen=True)
class ExpertsCase:
    """Tokens of width `width` over `count` experts of `inner`."""

    name: str
    tokens: int
    width: int
    inner: int
    count: int
    top_k: int
    normalize: bool = True
    skewed: bool = False
    seed: int = 0

    def data(self, dtype: torch.dtype) -> tuple[Array, Array, list[Array], list[Array]]:
        """x, router logits, gate_up and down, as the type holds them (logits as float32 does)."""
        rng = np.random.default_rng(self.seed)
        logits = rng.standard_normal((self.tokens, self.count)) * 2
        if self.skewed:  # nearly all tokens want two experts, and those they like equally
            logits[:, [1, self.count - 1]] = 5.0
        gate_up = rng.standard_normal((self.count, 2 * self.inner, self.width)) * self.width**-0.5
        down = rng.standard_normal((self.count, self.width, self.inner)) * self.inner**-0.5
        x = exact(rng.standard_normal((self.tokens, self.width)), dtype)
        return x, exact(logits, torch.float32), list(exact(gate_up, dtype)), list(exact(down, dtype))


def experts_cases() -> Iterator[ExpertsCase]:
    """One token and many, experts that nobody chooses and one that all choose, widths that fill no block."""
    yield ExpertsCase("none", 0, 32, 16, 4, 2)
    yield ExpertsCase("one", 1, 64, 40, 8, 3)
    yield ExpertsCase("only-expert", 5, 32, 16, 1, 1)
    yield ExpertsCase("all-experts", 3, 37, 23, 5, 5, normalize=False)
    yield ExpertsCase("some", 19, 64, 40, 8, 3)
    yield ExpertsCase("shares", 19, 64, 40, 8, 2, normalize=False)
    yield ExpertsCase("skewed", 37, 32, 24, 6, 2, skewed=True)
    yield ExpertsCase("many-experts", 7, 32, 16, 33, 4)
