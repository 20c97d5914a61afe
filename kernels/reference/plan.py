"""What all layers of one pass share: rows sorted into groups, with their indices and masks. Computes no attention.

Three kinds of group. `SparseGroup`: rows of one token, in float32; the cache is read in place. `DenseGroup`: rows of up
to 16 tokens (of one token too, where sparse products do not work); pages are gathered, some rows at a time. `LongRow`:
one row of more tokens. A group depends on the number of heads and the window, which only `attention` learns, so it is
made by the first layer that needs it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..table import PAGE, AttentionRow
from .buckets import length_buckets
from .masks import Ints, RowView

SHORT = 16  # rows of up to this many tokens are grouped
GATHERED = 1 << 20  # numbers gathered at once: 4 MB in float32, which stays in a cache that others use too
PRODUCTS = 4 << 20  # scores computed at once by one sparse group
KEY_BLOCK = 4096  # keys of a long row gathered at once
QUERY_BLOCK = 128  # queries of a long row under a window
HIDDEN = -1e30  # finite: a sparse product multiplies the value that it replaces by zero


class Sizes(NamedTuple):
    """What groups depend on besides the rows."""

    heads: int
    kv_heads: int
    pages: int
    head_dim: int
    sparse: bool
    window: int | None


class Tokens:
    """Some tokens of the pass: a slice where they stand side by side, else an index."""

    __slots__ = ("count", "first", "index")

    def __init__(self, which: Ints) -> None:
        self.count, self.first = len(which), int(which[0])
        side_by_side = bool((np.diff(which) == 1).all())
        self.index = None if side_by_side else torch.from_numpy(which)

    def read(self, x: Tensor) -> Tensor:
        return x.narrow(0, self.first, self.count) if self.index is None else x.index_select(0, self.index)

    def write(self, out: Tensor, values: Tensor) -> None:
        if self.index is None:
            out.narrow(0, self.first, self.count).copy_(values)
        else:
            out.index_copy_(0, self.index, values)


class SparseGroup(NamedTuple):
    """R rows of one token, L keys each (padding repeats a row's last key)."""

    tokens: Tokens
    scores: Tensor  # CSR [R·H, K·P·16]; its values are overwritten by each layer
    columns: Tensor  # [R·H·L] rows of the value table
    offsets: Tensor  # [R·H] where each query's columns begin
    mask: Tensor | None  # [R, 1, L]


class DenseGroup(NamedTuple):
    """R rows of `queries` tokens (padding repeats a row's last token), `pages` pages each."""

    rows: int
    queries: int
    pages: int
    reads: Tokens
    kept: Tensor | None  # which of the R·queries are real
    writes: Tokens
    page_index: Tensor  # [R·pages]
    stale: Tensor | None  # gathered slots past a row's end; another sequence may have left anything there
    mask: Tensor  # [R, 1, queries, L]


class Span(NamedTuple):
    """Keys of a long row: `keys` of them after `skip` slots of the first page. All visible when there is no mask."""

    page_index: Tensor
    skip: int
    keys: int
    mask: Tensor | None = None  # [queries, keys]
    causal: bool = False


class LongRow(NamedTuple):
    """A block of queries of one row and the keys that it sees, in spans to be merged."""

    first: int
    length: int
    spans: list[Span]


Group = SparseGroup | DenseGroup | LongRow


class AttentionPlan:
    """The rows of one pass."""

    def __init__(self, rows: Sequence[AttentionRow], *, sparse: bool) -> None:
        self.rows: list[RowView] = []
        self.tokens = 0
        for row in rows:
            self.rows.append(RowView(row, self.tokens))
            self.tokens += row.length
        self.sparse = sparse
        self._groups: dict[Sizes, list[Group]] = {}

    def groups(self, sizes: Sizes) -> list[Group]:
        groups = self._groups.get(sizes)
        if groups is None:
            groups = self._groups[sizes] = list(self._build(sizes))
        return groups

    def _build(self, sizes: Sizes) -> list[Group]:
        by_queries: dict[int, list[RowView]] = {}
        groups: list[Group] = []
        for row in self.rows:
            if row.length > SHORT:
                groups += _long_row(row, sizes.window)
            else:
                # 1, 2–4, 5–8, 9–16: at most half of a group's queries is padding, about a quarter on average.
                upper = row.length if row.length == 1 else max(4, 1 << (row.length - 1).bit_length())
                by_queries.setdefault(upper, []).append(row)
        for queries, rows in by_queries.items():
            build = _sparse_group if queries == 1 and sizes.sparse else _dense_group
            keys = [row.end - row.first_key(0, sizes.window) for row in rows]
            for bucket in length_buckets(keys):
                longest = max(keys[i] for i in bucket)
                step = _rows_at_once(longest, sizes, build is _sparse_group)
                for at in range(0, len(bucket), step):
                    groups.append(build([rows[i] for i in bucket[at : at + step]], sizes))
        return groups


def _rows_at_once(longest: int, sizes: Sizes, sparse: bool) -> int:
    if sparse:
        return max(1, PRODUCTS // (longest * sizes.heads))
    return max(1, GATHERED // (2 * sizes.kv_heads * sizes.head_dim * (longest + PAGE)))


def _page_table(rows: Sequence[RowView], first_page: Ints, width: int) -> Ints:
    """[R, width] pages from `first_page` on, up to each row's last key; the last is repeated."""
    table = np.empty((len(rows), width), dtype=np.int64)
    for i, row in enumerate(rows):
        pages = row.pages[first_page[i] : -(-row.end // PAGE)][:width]
        table[i, : len(pages)] = pages
        table[i, len(pages) :] = pages[-1]
    return table


def _sparse_group(rows: Sequence[RowView], sizes: Sizes) -> SparseGroup:
    low = np.array([row.first_key(0, sizes.window) for row in rows])
    count = np.array([row.end for row in rows]) - low
    length, first_page = int(count.max()), low // PAGE
    key = np.minimum(np.arange(length), count[:, None] - 1) + (low - first_page * PAGE)[:, None]
    table = _page_table(rows, first_page, int(key.max()) // PAGE + 1)
    slot = np.take_along_axis(table, key // PAGE, 1) * PAGE + key % PAGE
    # 32-bit indices halve what is read beside the cache itself.
    kind = torch.int32 if sizes.kv_heads * sizes.pages * PAGE < 1 << 31 else torch.int64
    head = torch.arange(sizes.kv_heads, dtype=kind).view(-1, 1, 1) * (sizes.pages * PAGE)
    per_head = torch.from_numpy(slot).to(kind).view(-1, 1, 1, length) + head
    # Contiguous, because the kernels read the memory as it lies and `reshape` may return a view with stride 0.
    columns = per_head.expand(-1, -1, sizes.heads // sizes.kv_heads, -1).reshape(-1).contiguous()
    ends = torch.arange(0, columns.numel() + 1, length, dtype=kind)
    shape = (len(rows) * sizes.heads, sizes.kv_heads * sizes.pages * PAGE)
    scores = torch.sparse_csr_tensor(
        ends, columns, torch.zeros(columns.numel()), size=shape, dtype=torch.float32, check_invariants=False
    )
    mask = None
    if (count != length).any():
        past = np.arange(length) >= count[:, None]
        mask = torch.from_numpy(np.where(past, np.float32(HIDDEN), np.float32(0))).unsqueeze(1)
    tokens = Tokens(np.array([row.first for row in rows]))
    return SparseGroup(tokens, scores, columns, ends[:-1], mask)


def _dense_group(rows: Sequence[RowView], sizes: Sizes) -> DenseGroup:
    queries = max(row.length for row in rows)
    first_page = np.array([row.first_key(0, sizes.window) // PAGE for row in rows])
    ends = np.array([row.end for row in rows]) - first_page * PAGE
    width = -(-int(ends.max()) // PAGE)
    table = _page_table(rows, first_page, width)
    visible = np.zeros((len(rows), queries, width * PAGE), dtype=np.bool_)
    reads = np.empty((len(rows), queries), dtype=np.int64)
    for i, row in enumerate(rows):
        low = int(first_page[i]) * PAGE
        visible[i, : row.length, : row.end - low] = row.visible(range(row.length), range(low, row.end), sizes.window)
        visible[i, row.length :] = visible[i, row.length - 1]
        reads[i] = row.first + np.minimum(np.arange(queries), row.length - 1)
    real = (np.arange(queries) < np.array([row.length for row in rows])[:, None]).reshape(-1)
    stale = np.nonzero((np.arange(width * PAGE) >= ends[:, None]).reshape(-1))[0]
    return DenseGroup(
        rows=len(rows),
        queries=queries,
        pages=width,
        reads=Tokens(reads.reshape(-1)),
        kept=None if real.all() else torch.from_numpy(np.nonzero(real)[0]),
        writes=Tokens(reads.reshape(-1)[real]),
        page_index=torch.from_numpy(table.reshape(-1)),
        stale=torch.from_numpy(stale) if len(stale) else None,
        mask=_additive(visible).unsqueeze(1),
    )


def _long_row(row: RowView, window: int | None) -> list[LongRow]:
    if window is not None and row.end > window:
        blocks = range(0, row.length, QUERY_BLOCK)
        return [_window_block(row, i, min(i + QUERY_BLOCK, row.length), window) for i in blocks]
    # The keys before the row's own tokens need no mask; softmax over both parts is put together afterwards.
    spans = [_span(row, low, min(low + KEY_BLOCK, row.start)) for low in range(0, row.start, KEY_BLOCK)]
    own = _span(row, row.start, row.end)
    if row.ancestors is None:
        spans.append(own._replace(causal=True))
    else:
        spans.append(own._replace(mask=_additive(row.ancestors)))
    return [LongRow(row.first, row.length, spans)]


def _window_block(row: RowView, begin: int, end: int, window: int) -> LongRow:
    low, high = row.first_key(begin, window), row.start + end
    mask = _additive(row.visible(range(begin, end), range(low, high), window))
    return LongRow(row.first + begin, end - begin, [_span(row, low, high)._replace(mask=mask)])


def _span(row: RowView, low: int, high: int) -> Span:
    pages = row.pages[low // PAGE : -(-high // PAGE)]
    return Span(torch.from_numpy(pages), low % PAGE, high - low)


def _additive(visible: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Tensor:
    return torch.from_numpy(np.where(visible, np.float32(0), np.float32(-np.inf)))


def sparse_products_work() -> bool:
    """Whether this build of torch has the sampled product of a CSR pattern on the CPU (not all have).

    Also draws torch's one-time warning that CSR tensors are in beta.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pattern = torch.sparse_csr_tensor([0, 1], [1], [0.0], size=(1, 2), check_invariants=False)
    try:
        torch.sparse.sampled_addmm(pattern, torch.ones(1, 2), torch.ones(2, 2), beta=0.0, out=pattern)
    except RuntimeError:  # includes NotImplementedError: the operator is missing
        return False
    return bool(pattern.values().item() == 2.0)
