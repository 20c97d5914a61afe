"""The cache and the rotary kernels of Triton, against float64 and plain loops."""

from __future__ import annotations

import numpy as np
import op_oracles as oracle
import pytest
import torch
from op_cases import DTYPES, ROUND, Array, as_tensor, exact
from torch import Tensor
from triton_device import DEVICE

from bosquet.kernels.table import PAGE
from bosquet.kernels.triton.kv import KvStore, write_kv
from bosquet.kernels.triton.rotary import rotary, rotary_write

FP8 = torch.float8_e4m3fn
LAYERS, HEADS, PAGES = 2, 2, 4
SLOTS = PAGES * PAGE


def store_of(dim: int, dtype: torch.dtype, seed: int = 0) -> tuple[KvStore, Tensor]:
    """A store full of random numbers, and what it holds, [layers, 2, slots, K, d]."""
    store = KvStore(LAYERS, HEADS, PAGES, dim, dtype, DEVICE)
    rng = np.random.default_rng(seed)
    store.data.copy_(torch.from_numpy(rng.standard_normal(store.data.shape)).float().to(dtype))
    return store, held(store)


def held(store: KvStore) -> Tensor:
    """[layers, 2, slots, K, d], as the layout is described."""
    return store.data.float().cpu().movedim(3, 4).reshape(LAYERS, 2, SLOTS, HEADS, store.head_dim).clone()


def noise(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FP8], ids=str)
@pytest.mark.parametrize("dim", [64, 96])
def test_writes_touch_their_slots_and_layer_only(dim: int, dtype: torch.dtype) -> None:
    store, want = store_of(dim, dtype)
    wide = as_tensor(noise(5, 3 * HEADS, dim), torch.float32).to(DEVICE)  # views with strides, as of a projection
    k, v = wide[:, :HEADS], wide[:, 2 * HEADS :]
    slots = [33, 0, -1, 15, 16]  # the third is padding
    write_kv(store, 1, k, v, torch.tensor(slots, dtype=torch.int32, device=DEVICE))
    for token, slot in enumerate(slots):
        if slot >= 0:
            want[1, 0, slot], want[1, 1, slot] = k[token].cpu().to(dtype).float(), v[token].cpu().to(dtype).float()
    assert torch.equal(held(store), want)


def test_fp8_is_rounded_to_nearest_even_and_saturates() -> None:
    """Every number that e4m3 has, the middles between neighbours, numbers beside those, and numbers beyond all."""
    known = torch.arange(127, dtype=torch.uint8).view(FP8).double()
    middles = (known[1:] + known[:-1]) / 2
    beside = torch.cat([middles * (1 - 2.0**-20), middles * (1 + 2.0**-20)])
    far = torch.tensor([448.0, 460.0, 1e4, 3e38, 1e-30, 2.0**-10])
    values = torch.cat([known, middles, beside, far]).float()
    values = torch.cat([values, -values])
    values = torch.nn.functional.pad(values, (0, -len(values) % (HEADS * 64))).view(-1, HEADS, 64)
    store = KvStore(LAYERS, HEADS, PAGES, 64, FP8, DEVICE)
    write_kv(store, 0, values.to(DEVICE), -values.to(DEVICE), torch.arange(len(values), device=DEVICE))
    want = values.clamp(-448, 448).to(FP8).float()
    assert torch.equal(held(store)[0, 0, : len(values)], want)
    assert torch.equal(held(store)[0, 1, : len(values)], -want)


@pytest.mark.parametrize(
    "copies",
    [[], [(0, 1, 16)], [(0, 1, 15), (2, 0, 1)], [(0, 1, 16), (1, 2, 7), (2, 3, 16)], [(3, 3, 4)], [(0, 1, 0)]],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8], ids=str)
def test_copies_are_as_if_in_order(dtype: torch.dtype, copies: list[tuple[int, int, int]]) -> None:
    store, want = store_of(10, dtype)
    store.copy_pages(copies)
    for src, dst, n in copies:
        for slot in range(n):
            want[:, :, dst * PAGE + slot] = want[:, :, src * PAGE + slot]
    assert torch.equal(held(store), want)


@pytest.mark.parametrize("copy", [(-1, 0, 1), (0, PAGES, 1), (0, 1, 17)], ids=str)
def test_copies_outside_the_pool_are_our_bugs(copy: tuple[int, int, int]) -> None:
    with pytest.raises(AssertionError):
        store_of(16, torch.float32)[0].copy_pages([copy])


@pytest.mark.parametrize("move", [([], []), ([3], [40]), ([1, 2, 3, 4], [2, 3, 4, 5]), ([7, 60], [60, 7])], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, FP8], ids=str)
def test_moves_read_before_they_write(dtype: torch.dtype, move: tuple[list[int], list[int]]) -> None:
    store, before = store_of(17, dtype)  # rows of an odd number of bytes
    store.move_slots(*(torch.tensor(slots, dtype=torch.int64, device=DEVICE) for slots in move))
    want = before.clone()
    for src, dst in zip(*move, strict=True):
        want[:, :, dst] = before[:, :, src]
    assert torch.equal(held(store), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FP8], ids=str)
def test_pages_go_out_and_come_back(dtype: torch.dtype) -> None:
    store, want = store_of(12, dtype)
    other, _ = store_of(12, dtype, seed=5)
    data = store.read_pages([2, 0])
    assert data.shape == (2, store.page_bytes)
    assert data.dtype == np.uint8
    other.write_pages([1, 3], data)
    assert torch.equal(held(other)[:, :, PAGE : 2 * PAGE], want[:, :, 2 * PAGE : 3 * PAGE])
    assert torch.equal(held(other)[:, :, 3 * PAGE :], want[:, :, :PAGE])
    with pytest.raises(AssertionError, match="no such page"):
        store.read_pages([PAGES])


def test_a_new_store_is_zero() -> None:
    store = KvStore(1, 1, 2, 64, FP8, DEVICE)
    assert not store.data.float().any()
    assert store.page_bytes == 2 * PAGE * 64


def turns(tokens: int, dim: int) -> tuple[Array, Array]:
    angles = noise(tokens, dim // 2, seed=3) * 3
    return np.cos(angles), np.sin(angles)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 64), (3, 3, 96), (6, 2, 10)])
def test_rotary_turns_pairs(heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
    both = as_tensor(noise(3, heads + kv_heads, dim), dtype).to(DEVICE)
    cos, sin = (as_tensor(x, torch.float32).to(DEVICE) for x in turns(3, dim))
    q, k = rotary(both[:, :heads], both[:, heads:], cos, sin)
    want = oracle.rotary(both.double().cpu().numpy(), cos.double().cpu().numpy(), sin.double().cpu().numpy())
    got = torch.cat([q, k], 1)
    assert got.dtype == dtype
    # A pair is at most about 5 long; float32 adds a few roundings of its own.
    assert np.abs(got.double().cpu().numpy() - want).max() < 5 * (ROUND[dtype] + 2.0**-22)


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, FP8], ids=str)
def test_rotary_and_write_in_one(stored: torch.dtype, norms: bool) -> None:
    heads, dim, tokens, eps = 6, 24, 4, 1e-5
    store, want = store_of(dim, stored)
    dtype = torch.bfloat16 if stored == FP8 else stored
    qkv = as_tensor(noise(tokens, heads + 2 * HEADS, dim), dtype).to(DEVICE)
    q, k, v = qkv.split([heads, HEADS, HEADS], 1)
    cos, sin = (exact(x, torch.float32) for x in turns(30, dim))
    weights = [exact(1 + 0.1 * noise(dim, seed=s), dtype) for s in (7, 8)]
    positions, slots = [29, 0, 3, 3], [5, 63, -1, 16]
    got = rotary_write(
        q, k, v, as_tensor(cos, torch.float32).to(DEVICE), as_tensor(sin, torch.float32).to(DEVICE),
        torch.tensor(positions, device=DEVICE), torch.tensor(slots, device=DEVICE), store, 1,
        *((as_tensor(w, dtype).to(DEVICE) for w in weights) if norms else ()), eps=eps,
    )  # fmt: skip
    parts = [x.double().cpu().numpy() for x in (q, k)]
    if norms:
        parts = [
            oracle.rms_norm(x.reshape(-1, dim), w, eps).reshape(x.shape) for x, w in zip(parts, weights, strict=True)
        ]
    q_want, k_want = (oracle.rotary(x, cos[positions], sin[positions]) for x in parts)
    bound = 5 * (ROUND[dtype] + 2.0**-20)
    assert np.abs(got.double().cpu().numpy() - q_want).max() < bound
    now = held(store)
    for token, slot in enumerate(slots):
        if slot >= 0:
            error = np.abs(now[1, 0, slot].double().numpy() - k_want[token])
            step = 2.0**-4 * np.abs(k_want[token]) + 2.0**-10 if stored == FP8 else 0
            assert (error < bound + step).all()
            assert torch.equal(now[1, 1, slot], v[token].cpu().to(stored).float())
            want[1, :, slot] = now[1, :, slot]
    assert torch.equal(now, want)  # nothing else has changed


def test_no_tokens() -> None:
    store, want = store_of(64, torch.float32)
    none = torch.empty(0, HEADS, 64, device=DEVICE)
    table, index = torch.ones(4, 32, device=DEVICE), torch.empty(0, dtype=torch.int64, device=DEVICE)
    write_kv(store, 0, none, none, index)
    assert rotary_write(none, none, none, table, table, index, index, store, 0).shape == (0, HEADS, 64)
    assert rotary(none, none, table[:0], table[:0])[1].shape == (0, HEADS, 64)
    assert torch.equal(held(store), want)
