"""Packed weights in C++, and products with them. Knows no models.

Activations are float32. Weights stay in the precision that they come in, or are quantized when they are packed;
quantized weights meet activations quantized by blocks of 32, see `native/weight.h`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ...errors import ConfigError
from ..table import Best, Blocks, Masks
from .library import Library

Storage = Literal["stored", "float32", "bfloat16", "int8", "int4"]
"""What matrices are kept in; "stored" is whatever they come in."""

_STORAGES = {"float32": 0, "bfloat16": 2, "int4": 3, "int8": 4}
_GGUF = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
    "BF16": 30,
}  # fmt: skip
_FLOATS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_STORE, _SILU_MUL, _GELU_MUL = 0, 1, 2
ACTIVATIONS = {"silu": _SILU_MUL, "gelu_tanh": _GELU_MUL}

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "bosquet_pack": (_POINTER, (_POINTER, _INT, _INT, _POINTER, _LONG, _LONG, _POINTER)),
    "bosquet_free_weight": (None, (_POINTER,)),
    "bosquet_weight_bytes": (_LONG, (_POINTER,)),
    "bosquet_linear": (None, (_POINTER, _POINTER, _POINTER, _LONG, _INT, _POINTER)),
    "bosquet_head": (None, (_POINTER, _POINTER, _POINTER, _LONG, _POINTER, _POINTER, _POINTER, _POINTER)),
    "bosquet_unpack": (None, (_POINTER, _POINTER, _POINTER, _LONG, _POINTER)),
}


class Part:
    """One packed weight [outs, width] of one type."""

    def __init__(self, functions: ctypes.CDLL, handle: int, outs: int, width: int) -> None:
        self._functions = functions
        self.handle = handle
        self.outs = outs
        self.width = width

    @property
    def nbytes(self) -> int:
        return int(self._functions.bosquet_weight_bytes(self.handle))

    def __del__(self) -> None:
        self._functions.bosquet_free_weight(self.handle)


class Packed:
    """Weights that stand one below the other in one projection."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self.outs = sum(part.outs for part in parts)
        self.width = parts[0].width

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


class NativeLinear:
    """Packs and multiplies. One thread at a time may call."""

    def __init__(self, library: Library, storage: Storage = "stored") -> None:
        self._library = library
        self._storage = storage
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library.functions, name)
            function.restype, function.argtypes = result, arguments

    def pack(self, weight: Tensor | Sequence[Blocks], bias: Tensor | None = None) -> Packed:
        """weight [out, in], bias [out] in any float type. Blocks of like kind become one part."""
        biases = None if bias is None else bias.detach().to(torch.float32).contiguous()
        if isinstance(weight, Tensor):
            return Packed([self._pack_tensor(weight, biases, self._storage)])
        groups: list[list[Blocks]] = []
        for blocks in weight:
            if groups and groups[-1][0].kind == blocks.kind:
                groups[-1].append(blocks)
            else:
                groups.append([blocks])
        parts, start = [], 0
        for group in groups:
            outs = sum(len(blocks.rows) for blocks in group)
            own = None if biases is None else biases[start : start + outs]
            rows = np.concatenate([_row_addresses(blocks.rows) for blocks in group])
            parts.append(self._pack(_GGUF[group[0].kind], -1, rows, group[0].width, own))
            start += outs
        return Packed(parts)

    def pack_stored(self, weight: Tensor) -> Packed:
        """weight [out, in] in the precision that it comes in, whatever other matrices are kept in."""
        return Packed([self._pack_tensor(weight, None, "stored")])

    def pack_table(self, weight: Tensor | Blocks) -> Packed:
        """An embedding or a head, [V, D]. Where matrices get four bits this one gets eight: as head it alone would cost
        6 % of perplexity (docs/benchmarks.md)."""
        if isinstance(weight, Tensor):
            return Packed([self._pack_tensor(weight, None, "int8" if self._storage == "int4" else self._storage)])
        return self.pack([weight])

    def linear(self, x: Tensor, weight: Packed, activation: int = _STORE) -> Tensor:
        """x [T, in] → [T, out] float32; with an activation, act(first half) · second half: [T, out / 2]."""
        assert x.ndim == 2, x.shape
        assert x.shape[1] == weight.width, (x.shape, weight.width)
        x = x.to(torch.float32).contiguous()
        if len(weight.parts) == 1:
            return self._product(x, weight.parts[0], activation)
        return torch.cat([self._product(x, part, activation) for part in weight.parts], 1)

    def head(self, x: Tensor, weight: Packed, masks: Masks | None, out: Tensor) -> Best:
        """`linear` of a weight of one part into `out` [T, out], with -inf where a row's mask has no bit; reads only
        weights that some row wants."""
        (part,) = weight.parts
        assert x.shape == (len(out), part.width), (x.shape, out.shape)
        x = x.to(torch.float32).contiguous()
        addresses = None
        if masks is not None:
            addresses, bits = (_POINTER * len(x))(), masks.bits.contiguous()
            assert bits.shape == (len(masks.rows), -(-part.outs // 32)), bits.shape
            for i, row in enumerate(masks.rows.tolist()):
                addresses[row] = bits.data_ptr() + i * bits.stride(0) * bits.element_size()
        best = Best(np.empty(len(x), np.int64), np.empty(len(x), np.float32))
        call = self._library.functions.bosquet_head
        call(
            self._library.handle, part.handle, x.data_ptr(), len(x), addresses, out.data_ptr(),
            best.ids.ctypes.data, best.values.ctypes.data,
        )  # fmt: skip
        return best

    def lookup(self, ids: Tensor, weight: Packed) -> Tensor:
        """Rows `ids` [T] int64 of a weight → [T, in]."""
        (part,) = weight.parts
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < part.outs:
            raise IndexError(f"a row outside 0 … {part.outs - 1}")
        ids = ids.contiguous()
        out = torch.empty(len(ids), part.width)
        call = self._library.functions.bosquet_unpack
        call(self._library.handle, part.handle, ids.data_ptr(), len(ids), out.data_ptr())
        return out

    def _product(self, x: Tensor, part: Part, activation: int) -> Tensor:
        out = torch.empty(len(x), part.outs if activation == _STORE else part.outs // 2)
        call = self._library.functions.bosquet_linear
        call(self._library.handle, part.handle, x.data_ptr(), len(x), activation, out.data_ptr())
        return out

    def _pack_tensor(self, weight: Tensor, bias: Tensor | None, kept: Storage) -> Part:
        weight = weight.detach().contiguous()
        storage = -1 if kept == "stored" else _STORAGES[kept]
        if storage >= 0 or weight.dtype not in _FLOATS:
            weight = weight.float()
        rows = weight.data_ptr() + np.arange(weight.shape[0], dtype=np.uint64) * np.uint64(
            weight.shape[1] * weight.element_size()
        )
        return self._pack(_GGUF[_FLOATS[weight.dtype]], storage, rows, weight.shape[1], bias)

    def _pack(self, kind: int, storage: int, rows: Any, width: int, bias: Tensor | None) -> Part:
        handle = self._library.functions.bosquet_pack(
            self._library.handle,
            kind,
            storage,
            rows.ctypes.data,
            len(rows),
            width,
            None if bias is None else bias.data_ptr(),
        )
        if handle is None:
            raise ConfigError(f"no memory for a weight of {len(rows)} · {width}")
        return Part(self._library.functions, handle, len(rows), width)


def _row_addresses(rows: Any) -> Any:
    assert rows.strides[1] == 1, "a row's bytes stand together"
    return rows.ctypes.data + np.arange(len(rows), dtype=np.uint64) * np.uint64(rows.strides[0])
