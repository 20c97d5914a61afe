"""The native cache of keys and values, rotary positions, and both at once as the fused pass uses them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import op_oracles as oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_attention import FLOAT, ISAS, KV_TYPES, as_stored, native, same_bits
from op_cases import CPU, Array
from torch import Tensor

from bosquet.kernels.cpu.attention import KvStore
from bosquet.kernels.table import PAGE, AttentionRow

LAYERS, HEADS, PAGES = 2, 2, 4
SLOTS = PAGES * PAGE


def values_of(kv: KvStore, layer: int, isa: str) -> Tensor:
    """Values of all slots [P·16, K, d]: a query that sees one key gives that key's value."""
    ops, rows = native(isa), [AttentionRow(0, PAGE, [page]) for page in range(kv.pages)]
    q = torch.zeros(kv.pages * PAGE, kv.kv_heads, kv.head_dim)
    out = ops.attention(q, kv, layer, ops.plan_attention(rows, CPU), 1.0, window=1)
    return out.view(-1, kv.kv_heads, kv.head_dim)


def answers_of(kv: KvStore, layer: int, isa: str) -> Tensor:
    """Attention over each page alone: it changes when any key, value or scale of the page does."""
    ops, rows = native(isa), [AttentionRow(0, PAGE, [page]) for page in range(kv.pages)]
    q = torch.randn(kv.pages * PAGE, kv.kv_heads, kv.head_dim, generator=torch.Generator().manual_seed(3))
    return ops.attention(q, kv, layer, ops.plan_attention(rows, CPU), 0.2)


class Model:
    """What a store should hold, as plain numbers: [layers, slots, K, d]."""

    def __init__(self, dim: int, dtype: torch.dtype, isa: str) -> None:
        rng = np.random.default_rng(dim)
        self.dim, self.dtype, self.isa = dim, dtype, isa
        self.keys = torch.from_numpy(rng.standard_normal((LAYERS, SLOTS, HEADS, dim))).float()
        self.values = torch.from_numpy(rng.standard_normal((LAYERS, SLOTS, HEADS, dim))).float()

    def store(self) -> KvStore:
        ops = native(self.isa)
        kv = ops.make_kv(LAYERS, HEADS, PAGES, self.dim, self.dtype)
        for layer in range(LAYERS):
            ops.write_kv(kv, layer, self.keys[layer], self.values[layer], torch.arange(SLOTS))
        return kv

    def check(self, kv: KvStore) -> None:
        fresh = self.store()
        for layer in range(LAYERS):
            assert same_bits(values_of(kv, layer, self.isa), values_of(fresh, layer, self.isa))
            assert same_bits(answers_of(kv, layer, self.isa), answers_of(fresh, layer, self.isa))


@pytest.mark.parametrize("dtype", KV_TYPES, ids=str)
@pytest.mark.parametrize("dim", [6, 16, 24, 64, 256])
@pytest.mark.parametrize("isa", ISAS)
def test_what_is_written_is_read(isa: str, dim: int, dtype: torch.dtype) -> None:
    model = Model(dim, dtype, isa)
    kv = model.store()
    for layer in range(LAYERS):
        want = as_stored(model.values[layer].double().numpy(), dtype)
        got = values_of(kv, layer, isa).double().numpy()
        # A weight of one over a sum of one is exact; int8 is a product of a whole number and a rounded scale.
        assert np.abs(got - want).max() <= (1e-6 if dtype == torch.int8 else 0)


@pytest.mark.parametrize("isa", ISAS)
def test_int8_keeps_a_half_step_of_each_slot_and_head(isa: str) -> None:
    model = Model(64, torch.int8, isa)
    model.values[0, 5, 1] *= 1000.0  # has a scale of its own
    model.values[0, 6, 0] = 0.0
    got = values_of(model.store(), 0, isa)
    step = model.values[0].abs().amax(-1, keepdim=True) / 127
    assert ((got - model.values[0]).abs() <= step * 0.501).all()


Change = tuple[str, list[int], list[int]]
SLOT, PLACE = st.integers(0, SLOTS - 1), st.integers(0, PAGES - 1)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    kind = draw(st.sampled_from(["write", "copy", "move"]))
    if kind == "copy":
        return kind, [draw(PLACE), draw(PLACE)], [draw(st.integers(0, PAGE))]
    dst = draw(st.lists(SLOT, unique=True, max_size=20))
    return kind, draw(st.lists(SLOT, min_size=len(dst), max_size=len(dst))), dst


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(changes(), max_size=6), st.sampled_from(KV_TYPES), st.sampled_from([10, 16, 64]))
def test_any_changes(isa: str, steps: list[Change], dtype: torch.dtype, dim: int) -> None:
    ops, model = native(isa), Model(dim, dtype, isa)
    kv = model.store()
    for kind, src, dst in steps:
        if kind == "copy":
            (a, b), n = (page * PAGE for page in src), dst[0]
            ops.copy_pages(kv, [(src[0], src[1], n)])
            for both in (model.keys, model.values):
                both[:, b : b + n] = both[:, a : a + n].clone()
        elif kind == "move":
            ops.move_slots(kv, torch.tensor(src, dtype=torch.int64), torch.tensor(dst, dtype=torch.int64))
            for both in (model.keys, model.values):
                both[:, dst] = both[:, src].clone()
        else:
            new = torch.randn(2, len(dst), HEADS, dim, generator=torch.Generator().manual_seed(len(dst)))
            ops.write_kv(kv, 1, new[0], new[1], torch.tensor(dst, dtype=torch.int64))
            model.keys[1, dst], model.values[1, dst] = new[0], new[1]
    model.check(kv)


@pytest.mark.parametrize("dtype", KV_TYPES, ids=str)
def test_copies_run_in_order(dtype: torch.dtype) -> None:
    model = Model(16, dtype, ISAS[0])
    kv = model.store()
    copies = [(0, 1, 16), (1, 2, 7), (2, 3, 16), (3, 3, 4), (0, 1, 0)]
    native().copy_pages(kv, copies)
    for src, dst, n in copies:
        for both in (model.keys, model.values):
            both[:, dst * PAGE : dst * PAGE + n] = both[:, src * PAGE : src * PAGE + n].clone()
    model.check(kv)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_pages_that_are_not_used_take_no_memory_and_are_zero() -> None:
    before = resident()
    kv = native().make_kv(30, 3, 50_000, 64, torch.bfloat16)
    assert kv.nbytes == 50_000 * 16 * 30 * 3 * 64 * 2 * 2  # 18 GB
    ones = torch.ones(1, 3, 64)
    native().write_kv(kv, 29, ones, ones, torch.tensor([49_999 * PAGE]))
    assert resident() - before < 16 << 20
    got = native().attention(ones, kv, 29, native().plan_attention([AttentionRow(15, 1, [49_998])], CPU), 1.0)
    assert not got.any()


def test_slots_and_pages_that_do_not_exist_are_refused() -> None:
    ops, kv = native(), native().make_kv(1, 1, 2, 16, FLOAT)
    one = torch.ones(1, 1, 16)
    for slot in (-1, 32):
        with pytest.raises(AssertionError, match="no such slot"):
            ops.write_kv(kv, 0, one, one, torch.tensor([slot]))
        with pytest.raises(AssertionError, match="no such slot"):
            ops.move_slots(kv, torch.tensor([0]), torch.tensor([slot]))
    for copy in ((0, 2, 1), (-1, 0, 1), (0, 1, 17)):
        with pytest.raises(AssertionError, match="no such page"):
            ops.copy_pages(kv, [copy])


def angles(count: int, dim: int) -> tuple[Array, Array]:
    turn = np.outer(np.arange(count), 0.5 ** np.arange(dim // 2))
    return np.cos(turn), np.sin(turn)


@pytest.mark.parametrize("dim", [6, 16, 24, 64, 256])
@pytest.mark.parametrize("isa", ISAS)
def test_rotary_turns_pairs(isa: str, dim: int) -> None:
    rng = np.random.default_rng(dim)
    wide = torch.from_numpy(rng.standard_normal((7, 8 * dim))).float()
    q, k = wide[:, : 4 * dim].view(7, 4, dim), wide[:, 5 * dim : 7 * dim].view(7, 2, dim)
    cos, sin = angles(7, dim)
    got = native(isa).rotary(q, k, torch.from_numpy(cos).float(), torch.from_numpy(sin).float())
    for x, turned in zip((q, k), got, strict=True):
        assert np.abs(turned.double().numpy() - oracle.rotary(x.double().numpy(), cos, sin)).max() < 2e-6


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("dtype", KV_TYPES, ids=str)
@pytest.mark.parametrize("dim", [16, 24, 64])
@pytest.mark.parametrize("isa", ISAS)
def test_rotate_and_store(isa: str, dim: int, dtype: torch.dtype, norms: bool) -> None:
    """In place, for heads of both kinds; positions choose the angles, slots the places."""
    ops, rng, tokens, heads = native(isa), np.random.default_rng(dim), 40, 4
    raw = torch.from_numpy(rng.standard_normal((tokens, heads + 2 * HEADS, dim))).float()
    qkv = raw.clone().view(tokens, -1)
    positions, slots = (torch.from_numpy(rng.permutation(SLOTS)[:tokens]) for _ in range(2))
    weights = [torch.from_numpy(1 + 0.1 * rng.standard_normal(dim)).float() for _ in range(2)]
    cos, sin = angles(SLOTS, dim)
    kv = ops.make_kv(LAYERS, HEADS, PAGES, dim, dtype)
    both = (weights[0], weights[1]) if norms else None
    turns = [torch.from_numpy(x).float() for x in (cos, sin)]
    ops.rotate_and_store(kv, 1, qkv, *turns, positions, slots, both, 1e-5)

    want = raw.double().numpy().copy()
    for part, weight in ((slice(0, heads), weights[0]), (slice(heads, heads + HEADS), weights[1])):
        if norms:
            normed = oracle.rms_norm(want[:, part].reshape(-1, dim), weight.double().numpy(), 1e-5)
            want[:, part] = normed.reshape(tokens, -1, dim)
        want[:, part] = oracle.rotary(want[:, part], cos[positions], sin[positions])
    got = qkv.view(tokens, -1, dim)
    assert np.abs(got.double().numpy() - want).max() < 5e-6

    fresh = ops.make_kv(LAYERS, HEADS, PAGES, dim, dtype)
    ops.write_kv(fresh, 1, got[:, heads : heads + HEADS], got[:, heads + HEADS :], slots)
    for read in (values_of, answers_of):
        assert same_bits(read(kv, 1, isa), read(fresh, 1, isa))


def test_rotation_does_not_depend_on_the_batch() -> None:
    ops, dim = native(), 64
    qkv = torch.randn(33, 8 * dim, generator=torch.Generator().manual_seed(1))
    cos, sin = (torch.from_numpy(x).float() for x in angles(33, dim))
    slots = torch.arange(33)
    weights = (torch.full((dim,), 1.5), torch.full((dim,), 0.5))

    def turned(which: slice, threads: int) -> Tensor:
        x = qkv[which].clone()
        kv = ops.make_kv(1, HEADS, PAGES, dim, FLOAT)
        native(threads=threads).rotate_and_store(kv, 0, x, cos, sin, slots[which], slots[which], weights, 1e-6)
        return x

    whole = turned(slice(0, 33), 3)
    assert all(same_bits(turned(slice(i, i + 1), 1), whole[i : i + 1]) for i in range(33))
