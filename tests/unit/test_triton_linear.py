"""Packed weights and products of the Triton kernels, against float64 on values that are unpacked here once more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from op_cases import ROUND, Array, LinearCase, as_tensor, exact, linear_cases
from packed_weights import unpacked
from torch import Tensor
from triton_device import DEVICE

from bosquet.kernels.triton import linear as module
from bosquet.kernels.triton.linear import linear
from bosquet.kernels.triton.quantize import Packed, Quantized, pack
from bosquet.kernels.triton.quantize_rows import quantize
from bosquet.kernels.triton.tiles import TILES, Tile

DTYPES = [torch.float32, torch.bfloat16]
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "int8": ("int8", {}),
    "int4": ("int4", {}),
    "int4 of 32": ("int4", {"group": 32}),
    "int4 zeros": ("int4", {"zeros": True}),
    "int4 of 32 zeros": ("int4", {"group": 32, "zeros": True}),
    "fp8": ("fp8", {}),
    "fp8 tensor": ("fp8", {"per_tensor": True}),
    "fp8_block": ("fp8_block", {}),
}
SMALL = Tile(16, 32, 128)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float().to(DEVICE)


def within(got: Tensor, x: Array, w: Array, bias: Array | float, steps: float = 4.0) -> None:
    """A float32 sum's rounding is a random walk; then comes one rounding to the type."""
    want = x @ w.T + bias
    sums = steps * w.shape[1] ** 0.5 * ROUND[torch.float32] * (np.abs(x) @ np.abs(w).T + np.abs(bias))
    error = np.abs(got.double().cpu().numpy() - want)
    assert got.shape == want.shape
    assert (error <= sums + 1.01 * ROUND[got.dtype] * np.abs(want)).all(), float(error.max())


def tensor(values: Array, dtype: torch.dtype) -> Tensor:
    return as_tensor(values, dtype).to(DEVICE)


def random_weight(outs: int, width: int) -> Tensor:
    """Rows and columns of very different size, as weights have them."""
    return noise(outs, width, seed=1) * (0.1 + noise(outs, 1, seed=2).abs()) * (0.1 + noise(1, width, seed=3).abs())


def cases() -> list[LinearCase]:
    """Some of the table's, of which the widest have fewer outs here: the interpreter takes milliseconds a tile."""
    return [
        LinearCase(case.name, case.rows, case.width_in, min(case.width_out, 101), case.bias)
        for case in linear_cases()
        if case.rows in (0, 1, 3, 17)
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_products_are_those_of_the_unpacked_weights(form: str, dtype: torch.dtype) -> None:
    storage, options = FORMS[form]
    weights: dict[tuple[int, int], tuple[Packed, Array]] = {}
    for case in cases():
        shape = case.width_out, case.width_in
        bias = noise(case.width_out, seed=4) if case.bias else None
        if shape not in weights:
            packed = pack(random_weight(*shape), bias, storage, **options)  # type: ignore[arg-type]
            weights[shape] = packed, unpacked(packed)
        packed, want = weights[shape]
        x = exact(noise(case.rows, case.width_in).double().cpu().numpy(), dtype)
        got = linear(tensor(x, dtype), packed)
        assert got.dtype == dtype
        # With zeros, values of twice the size cancel.
        within(got, x, want, 0.0 if bias is None else bias.double().cpu().numpy(), 16.0 if "zeros" in form else 4.0)


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_plain_weights_are_multiplied_as_they_are(dtype: torch.dtype, invariant: bool) -> None:
    name = "float32" if dtype == torch.float32 else "bfloat16"
    for rows in (0, 1, 17):
        x = exact(noise(rows, 300).double().cpu().numpy(), dtype)
        w, b = (exact(v.double().cpu().numpy(), dtype) for v in (random_weight(70, 300), noise(70, seed=4)))
        packed = pack(tensor(w, dtype), tensor(b, dtype), name)  # type: ignore[arg-type]
        within(linear(tensor(x, dtype), packed, invariant=invariant), x, w, b)
        logits = linear(tensor(x, dtype), packed, torch.float32, invariant)
        assert logits.dtype == torch.float32
        if invariant:
            within(logits, x, w, b)


@pytest.mark.parametrize("form", FORMS)
def test_quantized_weights_are_as_near_as_promised(form: str) -> None:
    storage, options = FORMS[form]
    weight = random_weight(150, 200)
    weight[3] = 0.0
    weight[4, :128] = 0.0
    found, want = unpacked(pack(weight, None, storage, **options)), weight.double().cpu().numpy()  # type: ignore[arg-type]
    assert (found[3] == 0).all()
    error = np.abs(found - want)
    group = options.get("group", 64)
    padded = np.pad(want, ((0, 106), (0, 56)))
    if storage == "int4":
        groups = padded[:150].reshape(150, -1, group)
        if "zeros" in options:
            bound = (groups.max(2) - groups.min(2)) / 28 + np.abs(groups).max(2) / 256
        else:
            bound = np.abs(groups).max(2) * (1 / 8 + 1 / 256)
        assert (error <= np.repeat(bound, group, 1)[:, :200]).all()
    elif storage == "int8":
        assert (error <= 1.001 * np.abs(want).max(1, keepdims=True) / 254).all()
    else:
        if form == "fp8_block":
            largest = np.abs(padded.reshape(2, 128, 2, 128)).max((1, 3)).repeat(128, 0).repeat(128, 1)[:150, :200]
        else:
            largest = np.abs(want).max(None if options else 1, keepdims=True)
        assert (error <= np.maximum(1.001 / 16 * np.abs(want), largest * 2.0**-10 / 448 * 1.001)).all()
        assert float(np.abs(found).max()) == pytest.approx(float(np.abs(want).max()))


@pytest.mark.parametrize("outs", [1, 33])
@pytest.mark.parametrize(("dtype", "blocks"), [("int8", False), ("fp8", False), ("fp8", True)])
def test_products_of_two_quantized_matrices(dtype: Any, blocks: bool, outs: int) -> None:
    packed = pack(random_weight(outs, 256), noise(outs, seed=4), "fp8_block" if blocks else dtype)
    for rows in (1, 5, 20):
        x = quantize(noise(rows, 256).bfloat16(), dtype, blocks)
        scales = x.scales.double().cpu().numpy()
        values = x.values.float().double().cpu().numpy()
        values = values * (np.repeat(scales, 128, 1) if blocks else scales[:, None])
        got = linear(x, packed)
        assert got.dtype == torch.bfloat16
        within(got, values, unpacked(packed), noise(outs, seed=4).double().cpu().numpy())
        within(linear(x, packed, torch.float32), values, unpacked(packed), noise(outs, seed=4).double().cpu().numpy())


@pytest.mark.parametrize(("dtype", "blocks"), [("int8", False), ("fp8", False), ("fp8", True)])
def test_activations_are_as_near_as_promised(dtype: Any, blocks: bool) -> None:
    whole = noise(3, 1500) * torch.tensor([1e-3, 1.0, 300.0], device=DEVICE)[:, None]
    x = whole[:, 100:1380].bfloat16()  # rows apart
    x[1, 256:384] = 0.0
    got = quantize(x, dtype, blocks)
    want, values, scales = (
        x.double().cpu().numpy(),
        got.values.float().double().cpu().numpy(),
        got.scales.double().cpu().numpy(),
    )
    assert got.scales.shape == ((3, 10) if blocks else (3,))
    scales = np.repeat(scales, 128, 1) if blocks else scales[:, None]
    error = np.abs(values * scales - want)
    assert (error <= (scales * 0.5001 if dtype == "int8" else np.maximum(np.abs(want) / 15.9, scales / 1000))).all()
    largest = np.abs(values).reshape(3, -1, 128 if blocks else 1280).max(2)
    assert ((largest == (127 if dtype == "int8" else 448)) | (blocks & (largest == 0))).all()
    assert quantize(x[:0], dtype, blocks).values.shape == (0, 1280)


@pytest.mark.parametrize("form", ["int8", "int4 zeros", "fp8_block", "plain"])
def test_a_row_does_not_depend_on_its_batch(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit: in any place, beside any other rows, also NaN; with `invariant` for any number of rows."""
    monkeypatch.setitem(TILES, "linear_few", {"any": SMALL})
    storage, options = FORMS.get(form, ("bfloat16", {}))
    packed = pack(random_weight(40, 1100), None, storage, **options)  # type: ignore[arg-type]
    assert module._splits(40, 9, SMALL, torch.device("cpu")) == 2
    x = noise(21, 1100).bfloat16()
    whole = linear(x, packed, torch.float32, invariant=True)
    for chosen in ([20, 3], list(range(20, -1, -1))):
        assert torch.equal(linear(x[chosen], packed, torch.float32, invariant=True), whole[chosen])
    x[4] = float("nan")
    others = [row for row in range(21) if row != 4]
    assert torch.equal(linear(x, packed, torch.float32, invariant=True)[others], whole[others])


def test_what_stands_beside_rows_and_outs_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """x is a view whose neighbours are NaN, the weight's padding is not read into sums."""
    packed = pack(random_weight(33, 100), None, "int8")
    wide = torch.full((6, 300), float("nan"), device=DEVICE)
    wide[1:4, 90:190] = noise(3, 100)
    got = linear(wide[1:4, 90:190], packed)
    assert torch.equal(got, linear(wide[1:4, 90:190].clone(), packed))
    assert not got.isnan().any()


@pytest.mark.parametrize("splits", [1, 4])
def test_many_tokens_meet_every_tile_once(splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More blocks of tokens than go together, a last block that is not full, and every split."""
    monkeypatch.setitem(TILES, "linear_some", {"any": SMALL})
    monkeypatch.setitem(TILES, "linear_many", {"any": SMALL})
    monkeypatch.setattr(module, "_splits", lambda *_: splits)
    rows = 60 if splits > 1 else 16 * 9 + 3
    packed = pack(random_weight(70, 520), noise(70, seed=4), "int8")
    x = noise(rows, 520).bfloat16()
    within(linear(x, packed), x.double().cpu().numpy(), unpacked(packed), noise(70, seed=4).double().cpu().numpy())


def test_splits_fill_the_device_and_leave_loops_long_enough() -> None:
    shape, cpu = Tile(16, 64, 128), torch.device("cpu")
    assert [module._splits(outs, 112, shape, cpu) for outs in (1, 64, 65, 256, 512, 513)] == [8, 8, 4, 2, 1, 1]
    assert [module._splits(64, steps, shape, cpu) for steps in (1, 7, 8, 15, 16, 31)] == [1, 1, 2, 2, 4, 4]


def test_what_does_not_fit_is_refused() -> None:
    packed = pack(noise(8, 256), None, "fp8")
    with pytest.raises(AssertionError):
        linear(noise(2, 255), packed)
    with pytest.raises(AssertionError):  # int8 activations, fp8 weights
        linear(Quantized(torch.zeros(2, 256, dtype=torch.int8), torch.ones(2)), packed)
    with pytest.raises(AssertionError):  # scales by blocks, weights by rows
        linear(quantize(noise(2, 256), "fp8", blocks=True), packed)


def test_sizes_are_those_of_the_storage() -> None:
    weight = noise(256, 1024)
    sizes = {name: pack(weight, None, name).nbytes / weight.numel() for name in ("bfloat16", "int8", "int4", "fp8")}  # type: ignore[arg-type]
    assert sizes["bfloat16"] == 2
    assert sizes["int8"] == sizes["fp8"] == 1 + 4 / 1024
    assert sizes["int4"] == 0.5 + 2 / 64
