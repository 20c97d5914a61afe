"""Linear layers, norms, rotary, gates, head and mask, against float64, for every back end."""

from __future__ import annotations

import numpy as np
import op_oracles as oracle
import pytest
import torch
from op_cases import DTYPES, ROUND, LinearCase, as_tensor, back_end, back_ends, exact, linear_cases
from torch import Tensor

from bosquet.errors import ConfigError
from bosquet.kernels.reference.linear import padded_rows
from bosquet.kernels.reference.memory import HUGE, advise_huge
from bosquet.kernels.registry import known_ops, load_ops
from bosquet.kernels.table import Best, Masks

LINEAR = list(linear_cases())
NAMES = pytest.mark.parametrize("name", back_ends())
TYPES = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def within(got: torch.Tensor, want: np.ndarray, bound: np.ndarray | float) -> None:
    assert got.shape == want.shape
    error = np.abs(got.double().numpy() - want)
    assert (error <= bound).all(), float(np.nanmax(error / bound))


@TYPES
@pytest.mark.parametrize("case", LINEAR, ids=[case.name for case in LINEAR])
@NAMES
def test_linear(name: str, case: LinearCase, dtype: torch.dtype) -> None:
    ops = back_end(name)
    x, w, b = (exact(v, dtype) for v in (
        noise(case.rows, case.width_in), noise(case.width_out, case.width_in, seed=1), noise(case.width_out, seed=2)
    ))  # fmt: skip
    packed = ops.pack_linear(as_tensor(w, dtype), as_tensor(b, dtype) if case.bias else None)
    want = x @ w.T + (b if case.bias else 0)
    # Rounding errors of a float32 sum behave as a random walk: 4·√n steps; then one rounding to the type.
    steps = 4 * case.width_in**0.5 * ROUND[torch.float32] * (np.abs(x) @ np.abs(w).T + np.abs(b))
    bound = steps + 1.01 * ROUND[dtype] * np.abs(want)
    got = ops.linear(as_tensor(x, dtype), packed)
    assert got.dtype == dtype
    within(got, want, bound)
    logits = ops.head(as_tensor(x, dtype), packed)
    assert logits.dtype == torch.float32
    within(logits, want, bound)


@NAMES
def test_linear_keeps_its_weight_when_the_original_changes_or_x_is_a_view(name: str) -> None:
    ops = back_end(name)
    w = torch.from_numpy(noise(48, 32)).float()
    packed = ops.pack_linear(w.clone())
    wide = torch.from_numpy(noise(5, 70)).float()
    view = wide[:, 3:35]
    within(ops.linear(view, packed), view.double().numpy() @ w.double().numpy().T, 1e-5)


@NAMES
def test_a_linear_row_does_not_depend_on_its_batch(name: str) -> None:
    ops = back_end(name)
    packed = ops.pack_linear(torch.from_numpy(noise(960, 576)).float() / 24)
    x = torch.from_numpy(noise(64, 576)).float()
    whole = ops.linear(x, packed)
    for count in (1, 2, 7, 32):
        assert float((ops.linear(x[:count], packed) - whole[:count]).abs().max()) < 4e-6


@TYPES
@pytest.mark.parametrize("shape", [(0, 576), (1, 576), (33, 100), (9, 128)], ids=str)
@NAMES
def test_rms_norm(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    ops = back_end(name)
    # Rows of very different size: eps matters for the first, and the last would overflow a half-precision square.
    scale = np.logspace(-4, 4, shape[0])[:, None] if shape[0] > 1 else 1.0
    x, w = exact(noise(*shape) * scale, dtype), exact(noise(shape[1], seed=1), dtype)
    want = oracle.rms_norm(x, w, 1e-5)
    bound = (1.01 * ROUND[dtype] + 16 * ROUND[torch.float32]) * np.abs(want) + 1e-12
    got = ops.rms_norm(as_tensor(x, dtype), as_tensor(w, dtype), 1e-5)
    assert got.dtype == dtype
    within(got, want, bound)


@NAMES
def test_rms_norm_over_heads(name: str) -> None:
    """Qwen3 and Gemma 3 normalise each head: the last axis of [T, H, d], of a view."""
    x, w = noise(5, 12, 64), noise(64, seed=1)
    got = back_end(name).rms_norm(as_tensor(x, torch.float32)[:, :9], as_tensor(w, torch.float32), 1e-6)
    want = oracle.rms_norm(exact(x, torch.float32)[:, :9].reshape(45, 64), exact(w, torch.float32), 1e-6)
    within(got.reshape(45, 64), want, 2e-6 * np.abs(want) + 1e-9)


@TYPES
@NAMES
def test_add_rms_norm(name: str, dtype: torch.dtype) -> None:
    x, r, w = (exact(v, dtype) for v in (noise(7, 96), noise(7, 96, seed=1), noise(96, seed=2)))
    normed, total = back_end(name).add_rms_norm(*(as_tensor(v, dtype) for v in (x, r, w)), 1e-5)
    assert (normed.dtype, total.dtype) == (dtype, dtype)
    within(total, x + r, 1.01 * ROUND[dtype] * np.abs(x + r))
    want = oracle.rms_norm(exact(x + r, dtype), w, 1e-5)
    within(normed, want, (3 * ROUND[dtype] + 16 * ROUND[torch.float32]) * np.abs(want) + 1e-12)


@pytest.mark.parametrize("angles", DTYPES, ids=str)
@TYPES
@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize(
    "shape", [(0, 9, 3, 64), (1, 9, 3, 64), (17, 4, 4, 96), (5, 8, 1, 128), (3, 4, 2, 256)], ids=str
)
@NAMES
def test_rotary(
    name: str, shape: tuple[int, int, int, int], joined: bool, dtype: torch.dtype, angles: torch.dtype
) -> None:
    tokens, heads, kv_heads, dim = shape
    qkv = exact(noise(tokens, heads + 2 * kv_heads, dim), dtype)
    turn = np.arange(tokens)[:, None] * 37 * 10000.0 ** (-np.arange(dim // 2) / (dim // 2))
    cos, sin = exact(np.cos(turn), angles), exact(np.sin(turn), angles)
    whole = as_tensor(qkv, dtype)
    q, k = whole[:, :heads], whole[:, heads : heads + kv_heads]
    if not joined:
        q, k = q.clone(), k.clone()
    got = back_end(name).rotary(q, k, as_tensor(cos, angles), as_tensor(sin, angles))
    parts = (qkv[:, :heads], qkv[:, heads : heads + kv_heads])
    for out, part in zip(got, parts, strict=True):
        assert out.dtype == dtype
        want = oracle.rotary(part, cos, sin)
        within(out, want, 1.01 * ROUND[dtype] * np.abs(want) + 6 * ROUND[torch.float32] * 5)
    assert torch.equal(whole, as_tensor(qkv, dtype)), "the input stays as it was"


@TYPES
@pytest.mark.parametrize("gate", ["silu_mul", "gelu_mul"])
@NAMES
def test_gates(name: str, gate: str, dtype: torch.dtype) -> None:
    x = exact(np.concatenate([noise(6, 74) * 4, np.array([[-90.0, 90.0] * 37])]), dtype)
    want = getattr(oracle, gate)(x)
    # The gate may be rounded to the type before the product, and the product after it.
    bound = 2.1 * ROUND[dtype] * np.abs(want) + 8 * ROUND[torch.float32] * (np.abs(want) + np.abs(x[:, 37:]))
    got = getattr(back_end(name), gate)(as_tensor(x, dtype))
    assert got.dtype == dtype
    within(got, want, bound)


@TYPES
@NAMES
def test_embedding(name: str, dtype: torch.dtype) -> None:
    table = as_tensor(noise(50, 24), dtype)
    ids = torch.tensor([49, 0, 7, 7])
    packed = back_end(name).pack_embedding(table)
    got = back_end(name).embedding(ids, packed).to(dtype)  # a back end whose activations are float32 gives them
    assert torch.equal(got, torch.stack([table[i] for i in ids.tolist()]))
    assert back_end(name).embedding(ids[:0], packed).shape == (0, 24)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 1000, 4096])
@NAMES
def test_apply_mask(name: str, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    words = -(-vocab // 32)
    logits = exact(noise(6, vocab), torch.float32)
    bits = rng.integers(0, 2**32, (4, words), dtype=np.uint64).tolist()
    bits[1] = [2**32 - 1] * words
    bits[2] = [0] * words
    rows = [5, 0, 3, 2]
    got = as_tensor(logits, torch.float32)
    packed = torch.tensor(bits, dtype=torch.int64).to(torch.int32)
    back_end(name).apply_mask(got, packed, torch.tensor(rows))
    assert np.array_equal(got.double().numpy(), oracle.masked(logits, bits, rows))


def assert_best(best: Best | None, logits: Tensor) -> None:
    if best is not None:
        assert best.ids.tolist() == logits.numpy().argmax(1).tolist()
        assert best.values.tolist() == logits.amax(1).tolist()


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("vocab", [1, 31, 33, 100, 1000])
@NAMES
def test_a_masked_head_is_the_head_with_the_mask_over_it(name: str, vocab: int, rows: int) -> None:
    ops, rng = back_end(name), np.random.default_rng(vocab)
    weight = ops.as_head(ops.pack_embedding(torch.from_numpy(noise(vocab, 40)).float()))
    x = torch.from_numpy(noise(rows, 40, seed=1)).float()
    chosen = rng.permutation(rows)[: (rows + 1) // 2]  # the others have no mask
    bits = rng.integers(-(2**31), 2**31, (len(chosen), -(-vocab // 32)), np.int32)
    bits[rng.random(bits.shape) < 0.8] = 0
    bits[0, :-1], bits[-1] = -1, 0
    masks = Masks(torch.from_numpy(bits), torch.from_numpy(chosen))
    want = ops.head(x, weight).clone()
    ops.apply_mask(want, *masks)
    assert torch.equal(ops.masked_head(x, weight, masks), want)
    assert_best(ops.head_best(), want)
    logits = ops.head(x, weight)
    assert_best(ops.head_best(), logits)


@NAMES
def test_apply_mask_sets_minus_infinity_over_anything(name: str) -> None:
    logits = torch.tensor([[float("nan"), float("inf"), float("inf"), float("nan"), -0.0, 1.0]])
    back_end(name).apply_mask(logits, torch.tensor([[0b110100]], dtype=torch.int32), torch.tensor([0]))
    assert logits[0, :2].tolist() == [-float("inf")] * 2
    assert logits[0, 2:].tolist() == [float("inf"), -float("inf"), -0.0, 1.0]


@NAMES
def test_apply_mask_to_no_rows(name: str) -> None:
    logits = torch.ones(2, 40)
    back_end(name).apply_mask(logits, torch.empty(0, 2, dtype=torch.int32), torch.empty(0, dtype=torch.int64))
    assert torch.equal(logits, torch.ones(2, 40))


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"'fast'; known: .*reference"):
        load_ops("fast")
    assert "reference" in known_ops()
    assert [load_ops(name).name for name in known_ops()] == list(known_ops())


def test_large_pages_change_no_contents() -> None:
    block = torch.arange(HUGE // 2, dtype=torch.int64)
    advise_huge(block.data_ptr(), block.nbytes)
    assert torch.equal(block, torch.arange(HUGE // 2, dtype=torch.int64))
    assert not advise_huge(block.data_ptr(), 64), "not worth it for little"


def test_padding_leaves_few_numbers_of_rows_and_little_waste() -> None:
    padded = {rows: padded_rows(rows) for rows in range(1, 4097)}
    assert len({padded[rows] for rows in range(1, 513)}) <= 50
    assert all(rows <= padded[rows] <= 1.25 * rows for rows in padded)
    assert all(padded[rows] == rows for rows in (*range(1, 17), 32, 64, 128, 256, 512))
