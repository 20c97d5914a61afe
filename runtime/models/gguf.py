"""Reads the header of a GGUF file: metadata, and where each tensor lies.

Knows nothing of what the metadata means, of dequantization or of torch. A header with 100,000 strings is read
in about a tenth of a second; the arrays come out as plain lists.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import ModelLoadError

MAGIC = b"GGUF"
VERSIONS = (2, 3)

# code → (name, values in a block, bytes of a block)
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
_OTHER_TYPES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4
_MAX_DEPTH = 8


class GgufTensor(NamedTuple):
    """One tensor. `shape` has the row-major order of torch: [out, in]. `offset` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    size: int


class GgufFile(NamedTuple):
    """An open file: its metadata, and its tensors by name."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    def rows(self, tensor: GgufTensor) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, mapped, not read: [rows, bytes of a row]. A vector is one value a row."""
        data = np.memmap(self.path, np.uint8, "r", tensor.offset, (tensor.size,))
        count = int(np.prod(tensor.shape[:-1])) if len(tensor.shape) > 1 else tensor.shape[0]
        return data.reshape(count, -1)


def read_gguf(path: Path) -> GgufFile:
    """Raises `ModelLoadError`: the file is no GGUF, is cut short, or has tensors of a type that is not supported."""
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise ModelLoadError(f"{path}: not a GGUF file (it does not begin with 'GGUF')")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read_header(path, data)
            except _CutShort as error:
                raise ModelLoadError(f"{path}: truncated or damaged GGUF header ({error})") from None
            except UnicodeDecodeError as error:
                raise ModelLoadError(f"{path}: damaged GGUF header (a string is not UTF-8: {error.reason})") from None


class _CutShort(Exception):
    """The header asks for more bytes than there are, or holds an impossible value."""


def _read_header(path: Path, data: mmap.mmap) -> GgufFile:
    cursor = _Cursor(data, 4)
    version = cursor.number("I")
    if version not in VERSIONS:
        raise ModelLoadError(f"{path}: GGUF version {version} is not supported; expected 2 or 3, little-endian")
    tensor_count, key_count = cursor.number("Q"), cursor.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.number("I"))
    entries = [_read_tensor_entry(path, cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise _CutShort(f"alignment {alignment!r}")
    start = -(-cursor.position // alignment) * alignment
    tensors = {entry.name: entry._replace(offset=start + entry.offset) for entry in entries}
    for tensor in tensors.values():
        if tensor.offset + tensor.size > len(data):
            raise ModelLoadError(
                f"{path}: truncated GGUF file: tensor '{tensor.name}' ends at byte {tensor.offset + tensor.size:,}, "
                f"the file at {len(data):,}"
            )
    return GgufFile(path, metadata, tensors)


def _read_tensor_entry(path: Path, cursor: _Cursor) -> GgufTensor:
    name = cursor.string()
    dims = cursor.number("I")
    if not 1 <= dims <= _MAX_DIMS:
        raise _CutShort(f"tensor '{name}' has {dims} dimensions")
    shape = tuple(cursor.number("Q") for _ in range(dims))[::-1]
    code = cursor.number("I")
    offset = cursor.number("Q")
    if code not in TENSOR_TYPES:
        kind = _OTHER_TYPES.get(code, f"number {code}")
        known = ", ".join(entry[0] for entry in TENSOR_TYPES.values())
        raise ModelLoadError(f"{path}: tensor '{name}' has the type {kind}, which is not supported; expected {known}")
    kind, block, block_bytes = TENSOR_TYPES[code]
    count = 1
    for length in shape:
        count *= length
    if count == 0 or shape[-1] % block:
        raise _CutShort(f"tensor '{name}' of type {kind} has the shape {list(shape)}")
    return GgufTensor(name, shape, kind, offset, count // block * block_bytes)


class _Cursor:
    """A position in the mapped file."""

    def __init__(self, data: mmap.mmap, position: int) -> None:
        self.data = data
        self.position = position

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.data):
            raise _CutShort(f"{size:,} bytes wanted at byte {self.position:,} of {len(self.data):,}")
        chunk = self.data[self.position : end]
        self.position = end
        return chunk

    def number(self, form: str) -> Any:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def string(self) -> str:
        return self.take(self.number("Q")).decode()

    def value(self, code: int) -> Any:
        if code in _SCALARS:
            return self.number(_SCALARS[code])
        if code == _STRING:
            return self.string()
        if code == _ARRAY:
            return self.array()
        raise _CutShort(f"value type {code}")

    def array(self, depth: int = 1) -> list[Any]:
        if depth > _MAX_DEPTH:
            raise _CutShort(f"arrays nested deeper than {_MAX_DEPTH}")
        code, count = self.number("I"), self.number("Q")
        if code in _SCALARS:
            form = _SCALARS[code]
            return list(struct.unpack(f"<{count}{form}", self.take(count * struct.calcsize("<" + form))))
        if code == _STRING:
            return self.strings(count)
        if code == _ARRAY:
            return [self.array(depth + 1) for _ in range(count)]
        raise _CutShort(f"array of value type {code}")

    def strings(self, count: int) -> list[str]:
        """Vocabularies have 100,000 of these, so this loop avoids the calls of `string`."""
        data, position, limit = self.data, self.position, len(self.data)
        length_at = struct.Struct("<Q").unpack_from
        found: list[str] = []
        for _ in range(count):
            start = position + 8
            if start > limit:
                raise _CutShort(f"a string wanted at byte {position:,} of {limit:,}")
            position = start + length_at(data, position)[0]
            if position > limit:
                raise _CutShort(f"a string at byte {start:,} ends beyond byte {limit:,}")
            found.append(data[start:position].decode())
        self.position = position
        return found
