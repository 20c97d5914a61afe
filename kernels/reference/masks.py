"""Which query sees which key. Knows nothing of tensors' layout or of heads.

Keys and queries of a row are counted in storage order: key j lies in slot j of the row's page list, query i is the key
start + i. In a draft tree a token's position is start + its depth, so siblings share one; a window counts positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..table import PAGE, AttentionRow

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


class RowView:
    """One row of a pass, with the place of its first token in the pass."""

    __slots__ = ("ancestors", "depth", "first", "length", "pages", "start")

    def __init__(self, row: AttentionRow, first: int) -> None:
        assert row.length >= 1, row
        assert row.start >= 0, row
        assert len(row.pages) * PAGE >= row.start + row.length, "the page list is shorter than the row"
        self.start, self.length, self.first = row.start, row.length, first
        self.pages: Ints = np.array(row.pages, dtype=np.int64)
        self.ancestors: Bools | None = None
        self.depth: Ints | None = None
        if row.parents is not None and row.length > 1:
            self.ancestors, self.depth = tree(row.parents, row.length)

    @property
    def end(self) -> int:
        """Number of keys, the row's own tokens included."""
        return self.start + self.length

    def first_key(self, query: int, window: int | None) -> int:
        """The lowest key that any query from `query` on can see; at most `start` for a tree."""
        if window is None:
            return 0
        if self.depth is None:
            return max(0, self.start + query - window + 1)
        lowest = self.start + int(self.depth[query:].min()) - window + 1
        return max(0, min(lowest, self.start))

    def visible(self, queries: range, keys: range, window: int | None) -> Bools:
        """[len(queries), len(keys)]: may the query see the key?"""
        query = np.arange(queries.start, queries.stop)[:, None]
        key = np.arange(keys.start, keys.stop)[None, :]
        own = key - self.start
        if self.ancestors is None or self.depth is None:
            seen = own <= query
            distance = query - own
        else:
            inside = np.clip(own, 0, self.length - 1)
            seen = np.where(own < 0, True, self.ancestors[query, inside] & (own < self.length))
            distance = self.depth[query] - np.where(own < 0, own, self.depth[inside])
        return seen if window is None else seen & (distance < window)


def tree(parents: Sequence[int], length: int) -> tuple[Bools, Ints]:
    """(ancestors [n, n], depth [n]) of a draft tree. A token is its own ancestor; a root has a negative parent."""
    assert len(parents) == length, (len(parents), length)
    ancestors = np.eye(length, dtype=np.bool_)
    depth = np.zeros(length, dtype=np.int64)
    for i, parent in enumerate(parents):
        assert parent < i, "a parent comes before its child"
        if parent >= 0:
            ancestors[i] |= ancestors[parent]
            depth[i] = depth[parent] + 1
    return ancestors, depth
