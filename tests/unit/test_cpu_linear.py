"""Packed weights and products of the native kernels, against float64, numpy and one another."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from bosquet.kernels.cpu.library import Library, usable
from bosquet.kernels.cpu.linear import NativeLinear, Packed, Storage
from bosquet.kernels.table import Blocks, Masks
from bosquet.runtime.models.dequantize import dequantize
from bosquet.runtime.models.gguf import TENSOR_TYPES

pytestmark = pytest.mark.skipif(not usable(), reason="no native library for this processor")

BLOCK_KINDS = {name: (values, size) for name, values, size in TENSOR_TYPES.values()}
QUANTIZED = [name for name in BLOCK_KINDS if name.startswith("Q")]
EMPTY = torch.zeros(0, dtype=torch.int64)


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(usable()[0], 2)


def random_blocks(kind: str, outs: int, width: int, seed: int = 0) -> Blocks:
    """Bytes at random: every bit pattern of numbers, with scales of ordinary size."""
    values, size = BLOCK_KINDS[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (outs * width // values, size), np.uint8)
    scales = rng.uniform(-0.02, 0.02, (len(blocks), 2)).astype(np.float16)
    where = {"Q6_K": (208,), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}.get(kind, (0, 2))
    for at, column in zip(where if kind.startswith("Q") else (), scales.T, strict=False):
        blocks[:, at : at + 2] = np.ascontiguousarray(column).view(np.uint8).reshape(-1, 2)
    if kind == "Q8_0":  # ggml never writes -128
        blocks[:, 2:] = np.where(blocks[:, 2:] == 128, 129, blocks[:, 2:])
    if not kind.startswith("Q"):
        numbers = rng.standard_normal((outs, width)).astype(np.float32)
        if kind == "BF16":
            return Blocks(kind, (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8), width)
        return Blocks(kind, numbers.astype({"F32": np.float32, "F16": np.float16}[kind]).view(np.uint8), width)
    return Blocks(kind, blocks.reshape(outs, -1), width)


def exact_values(blocks: Blocks) -> npt.NDArray[np.float64]:
    return dequantize(blocks.rows, blocks.kind).astype(np.float64)


def quantized(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """What the kernels make of activations: blocks of 32, symmetric, largest number 127, ties to even."""
    width = x.shape[1]
    parts = np.pad(x.astype(np.float32), ((0, 0), (0, -width % 32))).reshape(len(x), -1, 32)
    most = np.abs(parts).max(2, keepdims=True)
    scale = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
    whole = np.rint(parts * scale) * (most / np.float32(127)).astype(np.float64)
    return whole.reshape(len(x), -1)[:, :width]


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_packed_rows_are_those_of_the_file(kind: str, library: Library) -> None:
    blocks = random_blocks(kind, 37, 512)
    native = NativeLinear(library)
    got = native.lookup(torch.arange(37), native.pack([blocks])).double().numpy()
    want = exact_values(blocks)
    # A scale times an offset is one number here and a sum of two there: equal up to a rounding of float32.
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=2e-7 * np.abs(want).max())


@pytest.mark.parametrize("kind", BLOCK_KINDS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 11, 70])
def test_products_against_float64(kind: str, rows: int, library: Library) -> None:
    blocks = random_blocks(kind, 50, 768, seed=rows)
    bias = torch.randn(50, generator=torch.Generator().manual_seed(1))
    native = NativeLinear(library)
    x = np.random.default_rng(rows).standard_normal((rows, 768))
    got = native.linear(torch.from_numpy(x).float(), native.pack([blocks], bias)).double().numpy()
    seen = x.astype(np.float32).astype(np.float64)
    if kind.startswith("Q"):
        seen = quantized(x)
    want = seen @ exact_values(blocks).T + bias.double().numpy()
    size = np.abs(seen) @ np.abs(exact_values(blocks)).T + 1
    assert (np.abs(got - want) / size).max() < 3e-6  # roundings of float32, summed in order


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F32"])
def test_quantized_activations_cost_little(kind: str, library: Library) -> None:
    blocks = random_blocks(kind, 64, 1024, seed=3)
    native = NativeLinear(library)
    x = np.random.default_rng(3).standard_normal((6, 1024))
    got = native.linear(torch.from_numpy(x).float(), native.pack([blocks])).double().numpy()
    want = x @ exact_values(blocks).T
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < 0.01


@settings(max_examples=25, deadline=None)
@given(
    outs=st.integers(1, 70),
    width=st.integers(1, 130),
    rows=st.integers(1, 9),
    storage=st.sampled_from(["float32", "bfloat16", "int8", "int4"]),
)
def test_any_shape_and_storage(outs: int, width: int, rows: int, storage: Storage) -> None:
    native = NativeLinear(Library(usable()[0], 2), storage)
    generator = torch.Generator().manual_seed(outs * 1000 + width)
    weight, x = torch.randn(outs, width, generator=generator), torch.randn(rows, width, generator=generator)
    packed = native.pack(weight)
    kept = native.lookup(torch.arange(outs), packed).double()
    step = {"float32": 0.0, "bfloat16": 2**-8, "int8": 1 / 127, "int4": 1 / 7}[storage]
    assert (kept - weight.double()).abs().max() <= step * weight.abs().max() + 1e-3 * (storage == "int4")
    seen = torch.from_numpy(quantized(x.numpy())) if storage in ("int8", "int4") else x.double()
    want = seen @ kept.T
    size = seen.abs() @ kept.abs().T + 1
    assert ((native.linear(x, packed).double() - want).abs() / size).max() < 3e-6


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_a_row_does_not_depend_on_rows_threads_or_instruction_set(kind: str) -> None:
    blocks = random_blocks(kind, 83, 512, seed=5)
    x = torch.randn(71, 512, generator=torch.Generator().manual_seed(5))
    want: Tensor | None = None
    for isa in usable():
        for threads in (1, 2, 3):
            native = NativeLinear(Library(isa, threads))
            packed = native.pack([blocks])
            whole = native.linear(x, packed)
            want = whole if want is None else want
            assert torch.equal(whole, want), (isa, threads)
            for start, stop in ((0, 1), (1, 3), (3, 6), (6, 10), (10, 43), (70, 71)):
                assert torch.equal(native.linear(x[start:stop], packed), want[start:stop]), (isa, threads, start)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "BF16"])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_products(kind: str, activation: str, library: Library) -> None:
    from bosquet.kernels.cpu.linear import ACTIVATIONS

    blocks = random_blocks(kind, 96, 256, seed=7)
    native = NativeLinear(library)
    packed = native.pack([blocks])
    x = torch.randn(9, 256, generator=torch.Generator().manual_seed(7)) * 3
    gate, up = native.linear(x, packed).double().chunk(2, 1)
    act = functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")
    got = native.linear(x, packed, ACTIVATIONS[activation]).double()
    torch.testing.assert_close(got, act * up, rtol=2e-6, atol=1e-6)


def test_weights_of_several_types_stand_side_by_side(library: Library) -> None:
    native = NativeLinear(library)
    parts = [random_blocks(kind, outs, 256) for kind, outs in (("Q4_K", 32), ("Q4_K", 16), ("Q6_K", 24))]
    packed = native.pack(parts, torch.arange(72.0))
    assert [part.outs for part in packed.parts] == [48, 24]
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(2))
    one_by_one = [native.linear(x, native.pack([part])) for part in parts]
    torch.testing.assert_close(
        native.linear(x, packed), torch.cat(one_by_one, 1) + torch.arange(72.0), rtol=1e-5, atol=2e-4
    )


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_masked_products_are_the_same_bits_on_any_threads_and_instruction_set(kind: str) -> None:
    blocks, rng = random_blocks(kind, 83, 256, seed=9), np.random.default_rng(9)
    x = torch.from_numpy(rng.standard_normal((35, 256))).float()
    wanted = rng.random((33, 96)) < np.linspace(0, 0.3, 33)[:, None]
    bits = torch.from_numpy(np.packbits(wanted, axis=1, bitorder="little").view(np.int32))
    masks = Masks(bits, torch.from_numpy(rng.permutation(35)[:33]))
    for isa in usable():
        for threads in (1, 2, 3):
            native = NativeLinear(Library(isa, threads))
            packed = native.pack([blocks])
            want = native.linear(x, packed)
            want[masks.rows] = want[masks.rows].masked_fill(torch.from_numpy(~wanted[:, :83]), -torch.inf)
            got = torch.empty(35, 83)
            best = native.head(x, packed, masks, got)
            assert torch.equal(got, want), (isa, threads)
            assert best.ids.tolist() == want.numpy().argmax(1).tolist()
            assert best.values.tolist() == want.amax(1).tolist()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_best_of_equal_outputs_is_the_first(threads: int) -> None:
    """Whichever thread computed it: rows of weights repeat, so most outputs are the same as many others."""
    native = NativeLinear(Library(usable()[0], threads), "float32")
    rng = np.random.default_rng(threads)
    for outs in (5, 100, 4096):
        weight = torch.from_numpy(rng.standard_normal((7, 64)))[rng.integers(7, size=outs)]
        x, out = torch.from_numpy(rng.standard_normal((33, 64))).float(), torch.empty(33, outs)
        best = native.head(x, native.pack(weight), None, out)
        assert best.ids.tolist() == out.numpy().argmax(1).tolist()
        assert best.values.tolist() == out.amax(1).tolist()


@pytest.mark.alone
def test_few_wanted_outputs_cost_little(library: Library) -> None:
    native, outs = NativeLinear(library, "int8"), 16_384
    packed, x = native.pack_table(torch.randn(outs, 512)), torch.randn(1, 512)
    bits = torch.zeros(1, outs // 32, dtype=torch.int32)
    bits[0, 500] = 3
    masks, out = Masks(bits, torch.tensor([0])), torch.empty(1, outs)
    few = min(timed(lambda: native.head(x, packed, masks, out)) for _ in range(50))
    assert 3 * few < min(timed(lambda: native.head(x, packed, None, out)) for _ in range(50))


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def test_embedding_and_head_have_eight_bits_where_the_others_have_four(library: Library) -> None:
    outs, width = 96, 256
    weight = torch.randn(outs, width, generator=torch.Generator().manual_seed(4))
    x = torch.randn(7, width, generator=torch.Generator().manual_seed(5))
    native = NativeLinear(library, "int4")
    table, matrix = native.pack_table(weight), native.pack(weight)
    scales = outs * width // 32 * 2
    assert table.nbytes == outs * width + scales
    assert matrix.nbytes == outs * width // 2 + 2 * scales
    want = x.double() @ weight.double().T

    def lost(packed: Packed) -> float:
        return float((native.linear(x, packed).double() - want).norm() / want.norm())

    assert lost(table) < 0.01 < 0.05 < lost(matrix)


def test_four_bit_weights_take_the_bytes_that_the_file_takes(library: Library) -> None:
    blocks = random_blocks("Q4_1", 576, 1536)
    assert NativeLinear(library).pack([blocks]).nbytes == blocks.rows.nbytes


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_weights_take_little_more_than_their_bytes_and_give_them_back() -> None:
    """They lie in large pages that several share; one of them, and a library that has been closed, harm nobody."""
    library = Library(usable()[0], 2)
    native, blocks, x = NativeLinear(library), random_blocks("Q8_0", 576, 1536), torch.randn(3, 1536)
    alone = NativeLinear(Library(usable()[0], 1))
    want = alone.linear(x, alone.pack([blocks]))
    before = resident()
    weights = [native.pack([blocks]) for _ in range(120)]
    weights.append(native.pack([random_blocks("Q8_0", 24_000, 1536)]))  # larger than what they share
    taken, size = resident() - before, sum(weight.nbytes for weight in weights)
    assert size > 140 << 20
    assert size < taken < size + (16 << 20)
    kept = weights[:120:40]
    assert all(torch.equal(native.linear(x, weight), want) for weight in kept)
    weights.clear()
    assert resident() - before < taken - (35 << 20), "the largest goes with its last user"
    library.close()
    assert all(torch.equal(alone.linear(x, weight), want) for weight in kept)
    kept.clear()
    assert resident() - before < 16 << 20


def test_a_row_outside_the_table_is_an_error(library: Library) -> None:
    native = NativeLinear(library)
    packed = native.pack(torch.randn(10, 32))
    assert native.lookup(EMPTY, packed).shape == (0, 32)
    with pytest.raises(IndexError):
        native.lookup(torch.tensor([10]), packed)


@pytest.mark.alone
def test_an_idle_pool_uses_no_processor_time(library: Library) -> None:
    native = NativeLinear(library)
    native.linear(torch.randn(4, 64), native.pack(torch.randn(32, 64)))
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.05


@pytest.mark.alone
@pytest.mark.parametrize("threads", [2, 5])
def test_many_short_jobs_on_more_threads_than_processors(threads: int) -> None:
    native = NativeLinear(Library(usable()[0], threads))
    packed, x = native.pack(torch.randn(48, 64)), torch.randn(3, 64)
    want = native.linear(x, packed)
    assert all(torch.equal(native.linear(x, packed), want) for _ in range(300))
