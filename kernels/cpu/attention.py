"""Attention, rotary positions and the cache of keys and values in C++. Knows no model and no weights.

What the native side does, and why its results are equal bit for bit however rows are batched, chunked, shared or split
over threads, is said in `native/attention_plan.h` and `native/attention_tile.h`.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..table import AttentionRow, Bytes
from .library import Library

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
_POINTER, _INT, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "bosquet_kv_create": (_POINTER, (_INT,) * 5),
    "bosquet_kv_destroy": (None, (_POINTER,)),
    "bosquet_kv_bytes": (_LONG, (_POINTER,)),
    "bosquet_kv_write": (_INT, (_POINTER, _POINTER, _INT, _POINTER, _LONG, _POINTER, _LONG, _POINTER, _LONG)),
    "bosquet_kv_copy_pages": (_INT, (_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _LONG)),
    "bosquet_kv_move_slots": (_INT, (_POINTER, _POINTER, _POINTER, _POINTER, _LONG)),
    "bosquet_plan_create": (_POINTER, ()),
    "bosquet_plan_destroy": (None, (_POINTER,)),
    "bosquet_plan_build": (_LONG, (_POINTER, _LONG, _POINTER, _POINTER, _POINTER, _INT)),
    "bosquet_attention": (
        None,
        (_POINTER, _POINTER, _LONG, _INT, _POINTER, _INT, _POINTER, _FLOAT, _INT, _POINTER),
    ),
    "bosquet_rotary": (None, (_POINTER, _POINTER, _LONG, _LONG, _INT, _INT, _POINTER, _POINTER, _POINTER)),
    "bosquet_rotate_and_store": (
        None,
        (_POINTER, _POINTER, _INT, _POINTER, _LONG, _INT, *(_POINTER,) * 6, _FLOAT),
    ),
}
_FAULTS = {-2: "the page list is shorter than the row", -3: "a parent comes before its child"}


class _Cache(ctypes.Structure):
    """As KvCache in native/kv.h."""

    _fields_ = (
        *((name, _INT) for name in ("layers", "kv_heads", "pages", "dim", "padded", "type")),
        *((name, ctypes.c_size_t) for name in ("element", "values", "key_scales", "value_scales", "unit_bytes")),
        ("data", _POINTER),
        ("mapped", ctypes.c_size_t),
    )


class KvStore:
    """Keys and values of all pages and layers. Zero at the start; memory is taken when a page is first written.

    `dtype` float32, bfloat16 or int8; int8 numbers have a scale for each slot and head. Raises `MemoryError` when the
    system has no such range of addresses.
    """

    def __init__(
        self, functions: ctypes.CDLL, layers: int, kv_heads: int, pages: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        assert dtype in _TYPES, dtype
        assert 2 <= head_dim <= 256, head_dim
        assert min(layers, kv_heads, pages) >= 1, (layers, kv_heads, pages)
        self._functions = functions
        self.layers, self.kv_heads, self.pages, self.head_dim, self.dtype = layers, kv_heads, pages, head_dim, dtype
        self.handle: int | None = functions.bosquet_kv_create(layers, kv_heads, pages, head_dim, _TYPES[dtype])
        if self.handle is None:
            raise MemoryError(f"no memory for a cache of {pages} pages")
        self._bytes = self._by_page()

    def _by_page(self) -> Bytes:
        """All memory as [pages, page_bytes]: the units of a page lie side by side."""
        assert self.handle is not None
        native = _Cache.from_address(self.handle)
        sizes = (self.layers, self.kv_heads, self.pages, self.head_dim, _TYPES[self.dtype], self.nbytes)
        assert sizes == (
            *(native.layers, native.kv_heads, native.pages, native.dim, native.type),
            native.layers * native.kv_heads * native.pages * native.unit_bytes,
        ), "_Cache is not KvCache of native/kv.h"
        memory = (ctypes.c_uint8 * self.nbytes).from_address(native.data)
        return np.ctypeslib.as_array(memory).reshape(self.pages, -1)

    @property
    def page_bytes(self) -> int:
        return int(self._bytes.shape[1])

    def read_pages(self, pages: Sequence[int]) -> Bytes:
        """[n, page_bytes]: the units of each page as they lie."""
        return self._bytes[self._known(pages)]

    def write_pages(self, pages: Sequence[int], data: Bytes) -> None:
        """What `read_pages` gave."""
        assert data.shape == (len(pages), self.page_bytes), data.shape
        self._bytes[self._known(pages)] = data

    def _known(self, pages: Sequence[int]) -> list[int]:
        assert all(0 <= page < self.pages for page in pages), "no such page"
        return list(pages)

    @property
    def nbytes(self) -> int:
        """What all pages take once each has been written."""
        return int(self._functions.bosquet_kv_bytes(self.handle))

    def __del__(self) -> None:
        if getattr(self, "handle", None) is not None:
            self._functions.bosquet_kv_destroy(self.handle)
            self.handle = None


class _Plans:
    """Plans that are not in use. They keep their memory, so that a pass seldom asks the system for any."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        self.functions = functions
        self.spare: list[int] = []

    def take(self) -> int:
        return self.spare.pop() if self.spare else int(self.functions.bosquet_plan_create())

    def __del__(self) -> None:
        for handle in self.spare:
            self.functions.bosquet_plan_destroy(handle)


class AttentionPlan:
    """The rows of one pass on the native side. `highest_page` is -1 without rows."""

    __slots__ = ("_owner", "handle", "highest_page", "tokens")

    def __init__(self, owner: _Plans, rows: Sequence[AttentionRow], cascade: bool) -> None:
        self._owner = owner
        self.tokens = 0
        header: list[int] = []
        pages, parents = array("I"), array("i")
        for start, length, row_pages, row_parents in rows:
            self.tokens += length
            assert start >= 0, "a row does not start before its first token"
            assert length >= 1, "a row has at least one token"
            header += (start, length, len(row_pages), row_parents is not None)
            # A list of whole numbers is read several times as fast as any other sequence.
            pages.fromlist(row_pages if type(row_pages) is list else list(row_pages))
            if row_parents is not None:
                assert len(row_parents) == length, (len(row_parents), length)
                parents.extend(row_parents)
        self.handle = owner.take()
        numbers = array("I", header)
        self.highest_page = int(
            owner.functions.bosquet_plan_build(
                self.handle, len(rows), _address(numbers), _address(pages), _address(parents), cascade
            )
        )
        assert self.highest_page >= -1, _FAULTS[self.highest_page]

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self._owner.spare.append(self.handle)


def _address(numbers: array[int]) -> int:
    return numbers.buffer_info()[0]


class NativeAttention:
    """The operations of `kernels.table.Ops` that have to do with keys and values, on one native library.

    One thread at a time may call. `cascade`: rows that begin with the same pages read them together.
    """

    def __init__(self, library: Library, *, cascade: bool = True) -> None:
        self._library = library
        self._functions = library.functions
        self._cascade = cascade
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._functions, name)
            function.restype, function.argtypes = result, arguments
        self._plans = _Plans(self._functions)

    def make_kv(self, layers: int, kv_heads: int, pages: int, head_dim: int, dtype: torch.dtype) -> KvStore:
        return KvStore(self._functions, layers, kv_heads, pages, head_dim, dtype)

    def write_kv(self, kv: KvStore, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """k and v [T, K, d] are stored in the cache's type, int8 with a scale for each slot and head."""
        assert k.shape == v.shape == (len(slots), kv.kv_heads, kv.head_dim), (k.shape, v.shape)
        assert 0 <= layer < kv.layers, layer
        k, v, slots = _heads_together(k), _heads_together(v), _whole(slots)
        done = self._functions.bosquet_kv_write(
            self._library.handle, kv.handle, layer,
            k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0), slots.data_ptr(), len(slots),
        )  # fmt: skip
        assert done == 0, "no such slot"

    def copy_pages(self, kv: KvStore, copies: Sequence[tuple[int, int, int]]) -> None:
        """(src, dst, n) one after the other, so a later copy sees what an earlier one wrote."""
        if not copies:
            return
        columns = torch.tensor(copies, dtype=torch.int64).t().contiguous()
        src, dst, count = (column.data_ptr() for column in columns)
        done = self._functions.bosquet_kv_copy_pages(self._library.handle, kv.handle, src, dst, count, len(copies))
        assert done == 0, "no such page, or more slots than a page has"

    def move_slots(self, kv: KvStore, src: Tensor, dst: Tensor) -> None:
        """Slots `src` [n] to `dst` [n]; all are read before any is written. `dst` names each slot at most once."""
        assert src.shape == dst.shape, (src.shape, dst.shape)
        src, dst = _whole(src), _whole(dst)
        done = self._functions.bosquet_kv_move_slots(
            self._library.handle, kv.handle, src.data_ptr(), dst.data_ptr(), len(src)
        )
        assert done == 0, "no such slot"

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos.float().contiguous(), sin.float().contiguous()
        return self._rotated(q, cos, sin), self._rotated(k, cos, sin)

    def _rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        tokens, heads, dim = x.shape
        assert cos.shape == sin.shape == (tokens, dim // 2), (cos.shape, sin.shape, x.shape)
        wide = _heads_together(x)
        out = torch.empty(tokens, heads, dim)
        self._functions.bosquet_rotary(
            self._library.handle, wide.data_ptr(), wide.stride(0), tokens, heads, dim,
            cos.data_ptr(), sin.data_ptr(), out.data_ptr(),
        )  # fmt: skip
        return out.to(x.dtype)

    def rotate_and_store(
        self,
        kv: KvStore,
        layer: int,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        slots: Tensor,
        norms: tuple[Tensor, Tensor] | None = None,
        eps: float = 0.0,
    ) -> None:
        """In place on qkv [T, (H + 2·K)·d] float32: norms of each query and key head, where given, then rotary by rows
        `positions` of cos and sin [N, d/2], then keys and values to `slots`. All tensors contiguous."""
        tokens, width = qkv.shape
        heads = width // kv.head_dim - 2 * kv.kv_heads
        q_norm, k_norm = (norm.data_ptr() for norm in norms) if norms else (None, None)
        self._functions.bosquet_rotate_and_store(
            self._library.handle, kv.handle, layer, qkv.data_ptr(), tokens, heads, cos.data_ptr(), sin.data_ptr(),
            positions.data_ptr(), slots.data_ptr(), q_norm, k_norm, eps,
        )  # fmt: skip

    def plan_attention(self, rows: Sequence[AttentionRow], device: torch.device) -> AttentionPlan:
        assert device.type == "cpu", device
        return AttentionPlan(self._plans, rows, self._cascade)

    def attention(
        self, q: Tensor, kv: KvStore, layer: int, plan: AttentionPlan, scale: float, window: int | None = None
    ) -> Tensor:
        tokens, heads, dim = q.shape
        assert tokens == plan.tokens, (tokens, plan.tokens)
        assert plan.highest_page < kv.pages, (plan.highest_page, kv.pages)
        assert dim == kv.head_dim, (dim, kv.head_dim)
        assert heads % kv.kv_heads == 0, (heads, kv.kv_heads)
        assert 0 <= layer < kv.layers, layer
        assert window is None or window >= 1, window
        wide = _heads_together(q)
        out = torch.empty(tokens, heads * dim)
        self._functions.bosquet_attention(
            self._library.handle, wide.data_ptr(), wide.stride(0), heads, kv.handle, layer,
            plan.handle, scale, window or 0, out.data_ptr(),
        )  # fmt: skip
        return out if q.dtype == torch.float32 else out.to(q.dtype)


def _heads_together(x: Tensor) -> Tensor:
    """x [T, heads, d] in float32, each token's heads in one piece; a view where it already is so."""
    wide = x if x.dtype == torch.float32 else x.float()
    return wide if wide.stride(2) == 1 and wide.stride(1) == x.shape[2] else wide.contiguous()


def _whole(slots: Tensor) -> Tensor:
    assert slots.dtype == torch.int64, slots.dtype
    return slots.contiguous()
