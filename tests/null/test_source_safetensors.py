"""Our writer of safetensors files is read by the public library, and damage is told in one line."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from bosquet.errors import ModelLoadError
from bosquet.runtime.models.safetensors_file import TensorOut, read_chunks, read_header, to_bfloat16, write_safetensors

Array = npt.NDArray[np.float32]


def in_parts(value: Array, size: int) -> TensorOut:
    def chunks() -> Iterator[Array]:
        for start in range(0, value.size, size):
            yield value.ravel()[start : start + size]

    return TensorOut("", value.shape, chunks)


def make(seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    shapes = {"a.weight": (7, 5), "b": (3,), "deep.name.weight": (2, 3, 4)}
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_the_public_library_reads_what_was_written(tmp_path: Path) -> None:
    values = make()
    seen: list[tuple[int, int]] = []
    tensors = [in_parts(value, 4)._replace(name=name) for name, value in values.items()]
    write_safetensors(tmp_path / "m.safetensors", tensors, "F32", lambda done, total: seen.append((done, total)))
    got = load_file(tmp_path / "m.safetensors")
    assert got.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(got[name], value)
    assert seen[-1] == (62 * 4, 62 * 4)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_what_the_public_library_wrote_is_read(tmp_path: Path) -> None:
    values = {"x": np.linspace(-3, 3, 37).astype(np.float16), "y": np.arange(8, dtype=np.float64).reshape(2, 4)}
    save_file(values, tmp_path / "m.safetensors")
    for tensor in read_header(tmp_path / "m.safetensors"):
        got = np.concatenate(list(read_chunks(tmp_path / "m.safetensors", tensor, items=5)))
        np.testing.assert_array_equal(got, values[tensor.name].ravel().astype(np.float32))


def nearest_bfloat16(value: float) -> float:
    """By search: of the two neighbours on the grid of 8 significant bits, the nearer, the even one on a tie."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0] & 0xFFFF0000
    low = struct.unpack("<f", struct.pack("<I", bits))[0]
    high_bits = bits + 0x10000
    high = struct.unpack("<f", struct.pack("<I", high_bits))[0]
    if abs(value - low) != abs(high - value):
        return float(low if abs(value - low) < abs(high - value) else high)
    return float(low if (bits >> 16) % 2 == 0 else high)


@given(st.floats(width=32, min_value=-(2.0**100), max_value=2.0**100))
def test_bfloat16_is_the_nearest_ties_to_even(value: float) -> None:
    bits = to_bfloat16(np.array([value], np.float32)).astype(np.uint32) << 16
    assert bits.view(np.float32)[0] == nearest_bfloat16(value)


def test_bfloat16_keeps_what_is_not_finite() -> None:
    values = np.array([np.inf, -np.inf, np.nan, 3.4e38], np.float32)
    values.view(np.uint32)[2] = 0x7FFFFFFF  # a NaN that rounding up would turn into minus zero
    got = (to_bfloat16(values).astype(np.uint32) << 16).view(np.float32)
    assert got[0] == np.inf
    assert got[1] == -np.inf
    assert np.isnan(got[2])
    assert got[3] == np.inf


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda data: data[:-1], "truncated safetensors file"),
        (lambda data: data[:20], "truncated or damaged safetensors header"),
        (lambda data: b"", "truncated or damaged safetensors header"),
        (lambda data: b"\xff" * 8 + data[8:], "truncated or damaged safetensors header"),
        (lambda data: data[:8] + b"?" + data[9:], "damaged safetensors header"),
        (lambda data: data.replace(b'"data_offsets"', b'"data_offzets"'), "damaged safetensors header"),
    ],
)
def test_damaged_files(damage: object, expected: str, tmp_path: Path) -> None:
    save_file(dict(make()), tmp_path / "m.safetensors")
    path = tmp_path / "m.safetensors"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(ModelLoadError, match=expected) as error:
        read_header(path)
    assert str(path) in str(error.value)


def test_integers_are_no_weights(tmp_path: Path) -> None:
    save_file({"x": np.arange(4)}, tmp_path / "m.safetensors")
    with pytest.raises(ModelLoadError, match="tensor 'x' has the type I64"):
        list(read_chunks(tmp_path / "m.safetensors", read_header(tmp_path / "m.safetensors")[0]))
