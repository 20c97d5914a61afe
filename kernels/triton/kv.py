"""Keys and values of all pages, on the device. Knows nothing of sequences: page and slot numbers only.

One tensor [layers, 2, P, K, 16, d], keys before values. Heads lie inside a page, so that what a program of attention
reads of a page, the 16 slots of one head, is one run of memory: 4 KB at d = 128 in bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..table import PAGE, Bytes
from .tiles import tile

PAGE_SLOTS = tl.constexpr(PAGE)
E4M3_MAX = tl.constexpr(448.0)
E4M3_LEAST_NORMAL = tl.constexpr(2.0**-6)
E4M3_ROUNDER = tl.constexpr(1.5 * 2.0**20)
EXPONENT_BITS = tl.constexpr(0x7F800000)


class KvStore:
    """All layers, zero at the start. `dtype` is float32, bfloat16 or float8_e4m3fn.

    The last is a plain cast (no scale) that saturates at ±448; a GPU needs compute capability 8.9 for it.
    """

    def __init__(
        self, layers: int, kv_heads: int, pages: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.kv_heads, self.pages, self.head_dim, self.dtype = kv_heads, pages, head_dim, dtype
        shape = (layers, 2, pages, kv_heads, PAGE, head_dim)
        # Zeroed as bytes: not every operation of torch knows every type that is stored.
        words = torch.zeros((*shape[:-1], head_dim * dtype.itemsize), dtype=torch.uint8, device=device)
        self.data = words.view(dtype)
        self.layers: list[Tensor] = list(self.data.unbind(0))  # [2, P, K, 16, d] each
        self._words = words.view(_widest(head_dim * dtype.itemsize))  # moves need no arithmetic, only wide words

    def copy_pages(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """(src, dst, n) as if one after the other: a later copy sees what an earlier one wrote."""
        origin: dict[int, int] = {}  # what a slot will hold, by the slot that holds it now
        for src, dst, n in copies:
            assert min(src, dst) >= 0, (src, dst)
            assert max(src, dst) < self.pages, (src, dst)
            assert 0 <= n <= PAGE, n
            read = [origin.get(slot, slot) for slot in range(src * PAGE, src * PAGE + n)]
            origin.update(zip(range(dst * PAGE, dst * PAGE + n), read, strict=True))
        moves = [(src, dst) for dst, src in origin.items() if src != dst]
        if moves:
            both = torch.tensor(moves, dtype=torch.int64).t().contiguous()
            if self.data.is_cuda:
                both = both.pin_memory().to(self.data.device, non_blocking=True)
            self.move_slots(both[0], both[1])

    def move_slots(self, src: Tensor, dst: Tensor) -> None:
        """Slots `src` [n] to `dst` [n]; all are read before any is written. `dst` names each slot at most once, or with
        the same source each time. Two operations on the device."""
        moved = self._words[:, :, src // PAGE, :, src % PAGE]
        self._words[:, :, dst // PAGE, :, dst % PAGE] = moved

    @property
    def page_bytes(self) -> int:
        return self.data.nbytes // self.pages

    def read_pages(self, pages: Sequence[int]) -> Bytes:
        """[n, page_bytes]: each page's keys, then its values, layer after layer. Waits for the device."""
        found = self._words.index_select(2, self._known(pages)).movedim(2, 0).contiguous()
        return found.view(len(pages), -1).view(torch.uint8).cpu().numpy()

    def write_pages(self, pages: Sequence[int], data: Bytes) -> None:
        """What `read_pages` gave. May wait for the device."""
        assert data.shape == (len(pages), self.page_bytes), data.shape
        layers, both, _, *page = self._words.shape
        given = torch.from_numpy(data).to(self.data.device).view(self._words.dtype).view(-1, layers, both, *page)
        self._words.index_copy_(2, self._known(pages), given.movedim(0, 2))

    def _known(self, pages: Sequence[int]) -> Tensor:
        assert all(0 <= page < self.pages for page in pages), "no such page"
        return torch.tensor(pages, dtype=torch.int64, device=self.data.device)


def _widest(row_bytes: int) -> torch.dtype:
    """The widest integer of which a row of so many bytes is made."""
    kinds = (torch.int64, torch.int32, torch.int16, torch.uint8)
    return next(kind for kind in kinds if row_bytes % kind.itemsize == 0)


def write_kv(store: KvStore, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """k and v [T, K, d], any strides but the last, to slots [T] int64 or int32; a negative slot is not written.

    Source: own. Exact where the types agree, else one rounding to the stored type, ties to even.
    """
    tokens, heads, dim = k.shape
    assert k.shape == v.shape, (k.shape, v.shape)
    assert k.stride(2) == v.stride(2) == 1, (k.stride(), v.stride())
    if tokens:
        width, data = triton.next_power_of_2(dim), store.layers[layer]
        strides = k.stride(0), k.stride(1), v.stride(0), v.stride(1)
        warps = tile("write_kv", k.device).warps
        _write[(tokens, heads)](k, v, data[0], data[1], slots, *strides, K=heads, D=dim, DP=width, num_warps=warps)


@triton.jit
def _write(
    k,
    v,
    keys,
    values,
    slots,
    k_token,
    k_head,
    v_token,
    v_head,
    K: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dims = tl.arange(0, DP)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        at = cell(slot, head, K, D) + dims
        real = dims < D
        new_key = tl.load(k + token * k_token + head * k_head + dims, mask=real, other=0.0)
        new_value = tl.load(v + token * v_token + head * v_head + dims, mask=real, other=0.0)
        tl.store(keys + at, as_stored(new_key, keys.dtype.element_ty), mask=real)
        tl.store(values + at, as_stored(new_value, values.dtype.element_ty), mask=real)


@triton.jit
def cell(slot, head, K: tl.constexpr, D: tl.constexpr):
    """Where the d numbers of a slot (int64) and head begin in a layer's keys, or in its values."""
    return ((slot // PAGE_SLOTS * K + head) * PAGE_SLOTS + slot % PAGE_SLOTS) * D


@triton.jit
def as_stored(x, dtype: tl.constexpr):
    """`x` in the type that is stored: rounded to nearest, ties to even, and for fp8 saturated."""
    if dtype == tl.float8e4nv:
        # Rounded by arithmetic, so that the cast is exact and every implementation of it agrees: adding and taking
        # away 1.5·2^20 times the power of two below |x| leaves three bits after the first.
        wide = tl.clamp(x.to(tl.float32), -E4M3_MAX, E4M3_MAX)
        power = (wide.to(tl.int32, bitcast=True) & EXPONENT_BITS).to(tl.float32, bitcast=True)
        rounder = tl.maximum(power, E4M3_LEAST_NORMAL) * E4M3_ROUNDER
        return ((wide + rounder) - rounder).to(dtype)
    else:
        return x.to(dtype)
