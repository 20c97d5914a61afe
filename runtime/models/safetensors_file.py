"""Writes safetensors files tensor by tensor, and reads where their tensors lie; numpy only.

The public library needs either all tensors in memory or torch to write bfloat16; conversion has neither. Knows nothing
of models.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import ModelLoadError

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_MAX_HEADER = 100_000_000


class TensorOut(NamedTuple):
    """A tensor to be written: `chunks()` yields its values in order, as float32 arrays of any size."""

    name: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterator[npt.NDArray[np.float32]]]


class TensorIn(NamedTuple):
    """A tensor in a file. `offset` counts from the start of the file, in bytes."""

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    size: int


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


def write_safetensors(
    path: Path, tensors: Sequence[TensorOut], kind: str, progress: Callable[[int, int], None]
) -> None:
    """Write all tensors as `kind`, "F32" or "BF16", and flush them to the disk. One chunk is in memory at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start = end
        end += int(np.prod(tensor.shape)) * ITEM_BYTES[kind]
        header[tensor.name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64)  # tensors then begin at a multiple of 8 bytes, as readers expect
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        done = 0
        for tensor in tensors:
            for chunk in tensor.chunks():
                data = chunk.astype("<f4", copy=False) if kind == "F32" else to_bfloat16(chunk)
                file.write(np.ascontiguousarray(data).data)
                done += data.nbytes
            progress(done, end)
        file.flush()
        os.fsync(file.fileno())


def read_header(path: Path) -> list[TensorIn]:
    """What the file holds, in the order of the data. Raises `ModelLoadError` when it is damaged or cut short."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _MAX_HEADER + 1
        if length > min(_MAX_HEADER, size - 8):
            raise ModelLoadError(f"{path}: truncated or damaged safetensors header")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            tensors = [_entry(name, entry, 8 + length) for name, entry in header.items()]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ModelLoadError(f"{path}: damaged safetensors header") from None
    tensors.sort(key=lambda tensor: tensor.offset)
    if tensors and tensors[-1].offset + tensors[-1].size > size:
        end = tensors[-1].offset + tensors[-1].size
        raise ModelLoadError(f"{path}: truncated safetensors file: {size:,} bytes, the header says {end:,}")
    return tensors


def _entry(name: str, entry: dict[str, Any], start: int) -> TensorIn:
    first, last = entry["data_offsets"]
    return TensorIn(name, tuple(entry["shape"]), entry["dtype"], start + first, last - first)


def read_chunks(path: Path, tensor: TensorIn, items: int = 1 << 22) -> Iterator[npt.NDArray[np.float32]]:
    """The tensor's values as float32, at most `items` at a time. Raises `ModelLoadError` for other than floats."""
    if tensor.kind not in ITEM_BYTES:
        raise ModelLoadError(
            f"{path}: tensor '{tensor.name}' has the type {tensor.kind}, which is not supported; "
            f"expected {', '.join(ITEM_BYTES)}"
        )
    if tensor.size == 0:
        return
    data = np.memmap(path, np.uint8, "r", tensor.offset, (tensor.size,))
    step = items * ITEM_BYTES[tensor.kind]
    for start in range(0, tensor.size, step):
        yield _as_float32(np.array(data[start : start + step]), tensor.kind)


def _as_float32(data: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[np.float32]:
    if kind == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return data.view({"F64": np.float64, "F32": np.float32, "F16": np.float16}[kind]).astype(np.float32)
