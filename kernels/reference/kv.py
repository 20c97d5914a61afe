"""Keys and values of all pages. Knows nothing of sequences: page and slot numbers only.

Storage is one tensor [layers, 2, K, P·16, d], keys before values. Heads come before pages, so that the pages of many
rows, gathered along one axis, are already the [K, rows, length, d] operand of a batched product, and so that (head,
slot) is one row number of a table [K·P·16, d] which sparse products can read in place.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..table import PAGE, Bytes
from .memory import advise_huge


class LayerKv(NamedTuple):
    """Views of one layer, made once."""

    keys: Tensor  # [K, P·16, d]
    values: Tensor  # [K, P·16, d]
    pages: Tensor  # [2·K, P, 16·d], keys of all heads before values
    key_columns: Tensor  # [d, K·P·16]
    value_rows: Tensor  # [K·P·16, d]


class KvStore:
    """All layers. Zero at the start: what a masked position holds must at least be a number. The system gives memory,
    already zeroed, when a page is first written, so an engine that is little used stays small."""

    def __init__(self, layers: int, kv_heads: int, pages: int, head_dim: int, dtype: torch.dtype) -> None:
        self.kv_heads, self.pages, self.head_dim, self.dtype = kv_heads, pages, head_dim, dtype
        shape = (layers, 2, kv_heads, pages * PAGE, head_dim)
        memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
        self.data = torch.frombuffer(memory, dtype=dtype).view(shape)
        # Before the first touch, so that the memory is never in small pages.
        advise_huge(self.data.data_ptr(), self.data.nbytes)
        self.layers = [self._layer(i) for i in range(layers)]

    def _layer(self, index: int) -> LayerKv:
        both = self.data[index]
        heads, pages, dim = self.kv_heads, self.pages, self.head_dim
        return LayerKv(
            keys=both[0],
            values=both[1],
            pages=both.view(2 * heads, pages, PAGE * dim),
            key_columns=both[0].view(heads * pages * PAGE, dim).t(),
            value_rows=both[1].view(heads * pages * PAGE, dim),
        )

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """k and v [T, K, d] to `slots` [T]."""
        store = self.layers[layer]
        store.keys.index_copy_(1, slots, k.transpose(0, 1))
        store.values.index_copy_(1, slots, v.transpose(0, 1))

    def copy_pages(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """(src, dst, n) one after the other, so a later copy sees what an earlier one wrote."""
        by_page = self.data.view(-1, self.pages, PAGE, self.head_dim)
        for src, dst, n in copies:
            assert min(src, dst) >= 0, "page numbers are not negative"  # torch would count from the end
            assert 0 <= n <= PAGE, n
            by_page[:, dst, :n].copy_(by_page[:, src, :n])

    @property
    def page_bytes(self) -> int:
        return self.data.nbytes // self.pages

    def read_pages(self, pages: Sequence[int]) -> Bytes:
        """[n, page_bytes]: each page's slots of layer after layer, head after head, keys before values."""
        found = self._by_page()[:, self._known(pages)].transpose(0, 1).contiguous()
        return found.view(len(pages), -1).view(torch.uint8).numpy()

    def write_pages(self, pages: Sequence[int], data: Bytes) -> None:
        """What `read_pages` gave."""
        assert data.shape == (len(pages), self.page_bytes), data.shape
        given = torch.from_numpy(data).view(self.dtype).view(len(pages), -1, PAGE * self.head_dim)
        self._by_page()[:, self._known(pages)] = given.transpose(0, 1)

    def _by_page(self) -> Tensor:
        return self.data.view(-1, self.pages, PAGE * self.head_dim)

    def _known(self, pages: Sequence[int]) -> Tensor:
        assert all(0 <= page < self.pages for page in pages), "no such page"
        return torch.tensor(pages, dtype=torch.int64)

    def move_slots(self, src: Tensor, dst: Tensor) -> None:
        """Slots `src` [n] to `dst` [n]; all are read before any is written. `dst` names each slot at most once."""
        by_slot = self.data.view(-1, self.pages * PAGE, self.head_dim)
        by_slot.index_copy_(1, dst, by_slot.index_select(1, src))
