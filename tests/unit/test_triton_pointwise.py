"""Norms, gates and masks in Triton, against float64 on the shapes of the other back ends and at the edges of tiles."""

from __future__ import annotations

import numpy as np
import op_oracles as oracle
import pytest
import torch
from op_cases import DTYPES, ROUND, as_tensor, exact
from triton_device import DEVICE

from bosquet.kernels.triton import tiles
from bosquet.kernels.triton.activation import gelu_mul, silu_mul
from bosquet.kernels.triton.masks import apply_mask
from bosquet.kernels.triton.norm import add_rms_norm, rms_norm
from bosquet.kernels.triton.quantize import Quantized
from bosquet.kernels.triton.tiles import Tile

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's of infinities, in the interpreter
TYPES = pytest.mark.parametrize("dtype", DTYPES, ids=str)
FLOAT = ROUND[torch.float32]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """So that small data has edges."""
    for kernel in ("norm", "gate", "mask"):
        monkeypatch.setitem(tiles.TILES, kernel, {"any": Tile(1, 512, 1)})


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def put(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return as_tensor(values, dtype).to(DEVICE)


def within(got: torch.Tensor, want: np.ndarray, bound: np.ndarray | float) -> None:
    assert got.shape == want.shape
    error = np.abs(got.cpu().double().numpy() - want)
    assert (error <= bound).all(), float(np.nanmax(error / bound))


@TYPES
@pytest.mark.parametrize("shape", [(0, 576), (1, 576), (33, 100), (9, 128)], ids=str)
def test_rms_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    scale = np.logspace(-4, 4, shape[0])[:, None] if shape[0] > 1 else 1.0
    x, w = exact(noise(*shape) * scale, dtype), exact(noise(shape[1], seed=1), dtype)
    want = oracle.rms_norm(x, w, 1e-5)
    got = rms_norm(put(x, dtype), put(w, dtype), 1e-5)
    assert got.dtype == dtype
    within(got, want, (1.01 * ROUND[dtype] + 16 * FLOAT) * np.abs(want) + 1e-12)


def test_rms_norm_over_heads_of_a_view() -> None:
    x, w = exact(noise(5, 12, 96), torch.float32), noise(96, seed=1)
    got = rms_norm(put(x, torch.float32)[:, 2:9], put(w, torch.float32), 1e-6)
    want = oracle.rms_norm(x[:, 2:9].reshape(35, 96), exact(w, torch.float32), 1e-6)
    within(got.reshape(35, 96), want, 2e-6 * np.abs(want) + 1e-9)
    four = rms_norm(put(x, torch.float32)[None, :, 2:9], put(w, torch.float32), 1e-6)
    assert torch.equal(four[0], got)


@TYPES
def test_add_rms_norm_replaces_the_residual(dtype: torch.dtype) -> None:
    x, r, w = (exact(v, dtype) for v in (noise(7, 96), noise(7, 96, seed=1), noise(96, seed=2)))
    wide = put(np.pad(r, ((0, 0), (0, 32)), constant_values=5), dtype)
    residual = wide[:, :96]
    normed, total = add_rms_norm(put(x, dtype), residual, put(w, dtype), 1e-5)
    assert total.data_ptr() == residual.data_ptr()
    within(total, x + r, 1.01 * ROUND[dtype] * np.abs(x + r))
    assert bool((wide[:, 96:] == 5).all()), "what lies beside the rows stays"
    want = oracle.rms_norm(exact(x + r, dtype), w, 1e-5)
    within(normed, want, (1.01 * ROUND[dtype] + 16 * FLOAT) * np.abs(want) + 1e-12)


def close_after_scaling(got: torch.Tensor | Quantized, want: np.ndarray, kind: str) -> None:
    """Each row's largest number uses the whole range, and every number is the nearest that the type has."""
    largest, dtype = {"fp8": (448, torch.float8_e4m3fn), "int8": (127, torch.int8)}[kind]
    assert isinstance(got, Quantized)
    assert got.values.dtype == dtype
    assert got.scales.dtype == torch.float32
    peak = np.abs(want).max(axis=-1)
    scales = got.scales.cpu().double().numpy()
    np.testing.assert_allclose(scales, np.maximum(peak, 1e-30) / largest, rtol=3e-6)
    back = got.values.cpu().to(torch.float64).numpy() * scales[..., None]
    near = 2.0**-4 * np.abs(want) + 2.0**-10 * scales[:, None] if kind == "fp8" else 0.5 * scales[:, None]
    slack = 4e-6 * peak[:, None]
    assert (np.abs(back - want) <= near + slack).all()
    assert (np.abs(got.values.cpu().float().numpy()).max(axis=-1)[peak > 0] == largest).all()


@pytest.mark.parametrize("kind", ["fp8", "int8"])
@TYPES
def test_norm_and_gates_in_eight_bits(kind: str, dtype: torch.dtype) -> None:
    x, r, w = (exact(v, dtype) for v in (noise(6, 96) * 3, noise(6, 96, seed=1), noise(96, seed=2)))
    x[4], r[4] = 0, 0  # a row of zeros
    close_after_scaling(rms_norm(put(x, dtype), put(w, dtype), 1e-5, kind), oracle.rms_norm(x, w, 1e-5), kind)
    total = put(r, dtype)
    scaled, same = add_rms_norm(put(x, dtype), total, put(w, dtype), 1e-5, kind)
    assert same is total
    close_after_scaling(scaled, oracle.rms_norm(exact(x + r, dtype), w, 1e-5), kind)
    gates = exact(noise(3, 2 * 700), dtype)  # two blocks of a row, the second not full
    close_after_scaling(silu_mul(put(gates, dtype), kind), oracle.silu_mul(gates), kind)
    close_after_scaling(gelu_mul(put(gates, dtype), kind), oracle.gelu_mul(gates), kind)


def test_int8_and_fp8_are_the_nearest() -> None:
    """torch's own conversions of the same quotients, away from halves."""
    x = noise(4, 300) * np.logspace(-6, 6, 4)[:, None]
    plain = rms_norm(put(x, torch.float32), torch.ones(300, device=DEVICE), 1e-5)
    for kind, dtype in (("fp8", torch.float8_e4m3fn), ("int8", torch.int8)):
        scaled = rms_norm(put(x, torch.float32), torch.ones(300, device=DEVICE), 1e-5, kind)
        assert isinstance(scaled, Quantized)
        quotient = plain.double() / scaled.scales.double()[:, None]
        nearest = (quotient.float() if kind == "fp8" else quotient.round()).to(dtype).double()
        assert float((nearest == scaled.values.double()).float().mean()) > 0.995


@TYPES
@pytest.mark.parametrize("gate", [silu_mul, gelu_mul])
@pytest.mark.parametrize("width", [37, 513])
def test_gates(gate, width: int, dtype: torch.dtype) -> None:
    steep = np.array([[-90.0, 90.0] * width])
    x = exact(np.concatenate([noise(3, 2 * width) * 4, steep, steep[:, ::-1]]), dtype)
    want = getattr(oracle, gate.__name__)(x)
    bound = 1.01 * ROUND[dtype] * np.abs(want) + 8 * FLOAT * (np.abs(want) + np.abs(x[:, width:]))
    whole = put(np.pad(x, ((0, 0), (0, 3))), dtype)
    got = gate(whole[:, : 2 * width])
    assert got.dtype == dtype
    within(got, want, bound)
    assert gate(whole[:0, : 2 * width]).shape == (0, width)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 512, 1000])
def test_apply_mask(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    words = -(-vocab // 32)
    logits = exact(noise(6, vocab), torch.float32)
    bits = rng.integers(0, 2**32, (5, words), dtype=np.uint64).tolist()
    bits[1], bits[2] = [2**32 - 1] * words, [0] * words
    before = torch.cat((torch.zeros(1, vocab), as_tensor(logits, torch.float32))).to(DEVICE)
    got = before[1:]
    packed = torch.tensor(bits, dtype=torch.int64).to(torch.int32).to(DEVICE)
    apply_mask(got, packed, torch.tensor([5, 0, 3, 2, -1], device=DEVICE))  # the last is padding
    np.testing.assert_array_equal(got.cpu().numpy(), oracle.masked(logits, bits[:4], [5, 0, 3, 2]))
    assert not before[0].any(), "what lies before the first row stays"
    apply_mask(got, packed[:0], torch.tensor([], dtype=torch.int64, device=DEVICE))


def test_a_row_does_not_depend_on_its_batch() -> None:
    x, w = put(noise(9, 100), torch.bfloat16), put(noise(100, seed=1), torch.bfloat16)
    whole, gates = rms_norm(x, w, 1e-5), silu_mul(x)
    for rows in (slice(0, 1), slice(3, 8)):
        assert torch.equal(rms_norm(x[rows], w, 1e-5), whole[rows])
        assert torch.equal(silu_mul(x[rows]), gates[rows])
