"""The rows of a pass as one array of 32-bit numbers, all that attention reads about them. Knows nothing of heads.

A `Shape` bounds a pass; where everything lies in the array, and how many programs run, depends on the shape alone. So a
captured graph serves every pass of its shape: `describe` another one into the same words.

Work is cut at fixed positions, never by what else is in the batch. A row of up to SHORT tokens is short: its keys are
cut every SPLIT positions, and an *item* is some tokens times one split. The tokens of an item come from one row, or
from several whose page lists agree so far (a shared-prefix cascade), since a split that ends before the rows' own
tokens looks the same to all. Each token's part of an item is kept apart, so sharing changes no bit. Longer rows are cut
every BLOCK tokens, and a block walks over its keys alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..table import PAGE, AttentionRow

Words = npt.NDArray[np.int32]

SPLIT = 256  # keys of an item
SHORT = 16  # tokens of an item, and of a short row
BLOCK = 128  # tokens of a block of a long row
TREE = 128  # tokens of a draft tree
SPLIT_PAGES = SPLIT // PAGE
ITEM_WORDS = BLOCK_WORDS = 8
NO_OWN_KEYS = 1 << 30  # a start beyond every key: all that the item holds lies before its rows' own tokens


class Shape(NamedTuple):
    """What a pass may be. At most `rows` rows, none with more keys than `context`; exactly `tokens` tokens, of which
    those after the last row's are padding; at most `blocks` blocks of long rows (none: short rows only) and `short`
    tokens in short rows (None: all may be)."""

    rows: int
    tokens: int
    context: int
    blocks: int = 0
    short: int | None = None

    @property
    def short_tokens(self) -> int:
        return self.tokens if self.short is None else self.short

    @property
    def splits(self) -> int:
        return -(-self.context // SPLIT)

    @property
    def items(self) -> int:
        return min(self.rows, self.short_tokens) * self.splits

    @property
    def partials(self) -> int:
        """Pairs of a short token and a split: each is kept, per head, between the two kernels of short rows."""
        return self.short_tokens * self.splits

    @property
    def tree_words(self) -> int:
        """Words of a token's ancestors: a bit for each token of its tree."""
        return TREE // 32 if self.blocks else 1


def exact_shape(rows: Sequence[AttentionRow]) -> Shape:
    """The least shape that these rows fit."""
    lengths = [row.length for row in rows]
    return Shape(
        rows=len(rows),
        tokens=sum(lengths),
        context=max((row.start + row.length for row in rows), default=0),
        blocks=sum(-(-n // BLOCK) for n in lengths if n > SHORT),
        short=sum(n for n in lengths if n <= SHORT),
    )


@lru_cache(maxsize=256)
def _sections(shape: Shape) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Where each section begins, and its shape. Beginnings are multiples of 16 bytes, so that no pointer's alignment,
    for which kernels are compiled, depends on the shape."""
    shapes: dict[str, tuple[int, ...]] = {
        "counts": (4,),  # items, blocks, short tokens
        "items": (shape.items, ITEM_WORDS),  # first member, members, keys from … to, pages, start, first token
        "blocks": (shape.blocks, BLOCK_WORDS),  # first token, tokens, start, index in the row, pages, is a tree
        "members": (shape.short_tokens,),  # tokens of short rows, neighbours where page lists agree
        "partials": (shape.tokens,),  # of a short token: its partial result of split 0
        "keys": (shape.tokens,),  # which key of its row a token is
        "positions": (shape.tokens,),  # the same but in a tree
        "ancestors": (shape.tokens, shape.tree_words),  # of a token of a short row or a tree: what it sees of its own
        "pages": (shape.rows, shape.splits * SPLIT_PAGES),
    }
    found, at = {}, 0
    for name, extent in shapes.items():
        found[name] = at, extent
        at += -(-int(np.prod(extent)) // 4) * 4
    found["end"] = at, ()
    return found


class AttentionPlan:
    """A shape, and the words of a pass of that shape on the device, section by section."""

    def __init__(self, shape: Shape, words: Tensor) -> None:
        assert words.dtype == torch.int32, words.dtype
        assert words.shape == (self.size(shape),), (words.shape, shape)
        self.shape, self.words = shape, words
        self.counts = self._section("counts")
        self.items, self.blocks = self._section("items"), self._section("blocks")
        self.members, self.partials = self._section("members"), self._section("partials")
        self.keys, self.positions = self._section("keys"), self._section("positions")
        self.ancestors, self.pages = self._section("ancestors"), self._section("pages")

    @staticmethod
    def size(shape: Shape) -> int:
        """Words that a pass of this shape takes."""
        return _sections(shape)["end"][0]

    def _section(self, name: str) -> Tensor:
        at, extent = _sections(self.shape)[name]
        return self.words.narrow(0, at, int(np.prod(extent)))


def plan_attention(rows: Sequence[AttentionRow], device: torch.device) -> AttentionPlan:
    """A plan of exactly these rows."""
    shape = exact_shape(rows)
    return AttentionPlan(shape, torch.from_numpy(describe(rows, shape)).to(device))


def describe(rows: Sequence[AttentionRow], shape: Shape, out: Words | None = None, *, cascade: bool = True) -> Words:
    """The words of a pass: [size], into `out` (a pinned buffer, say) where that is given, whatever it held before.

    Page lists cost least as arrays of numpy. Without `cascade` no row shares an item.
    """
    words = np.zeros(AttentionPlan.size(shape), dtype=np.int32) if out is None else out
    into = {
        name: words[at : at + int(np.prod(extent))].reshape(extent)
        for name, (at, extent) in _sections(shape).items()
        if name != "end"
    }
    starts = np.array([row.start for row in rows], dtype=np.int64)
    lengths = np.array([row.length for row in rows], dtype=np.int64)
    ends, first = starts + lengths, np.cumsum(lengths) - lengths
    _check(rows, ends, shape)
    for pages, row, count in zip(into["pages"], rows, (-(-ends // PAGE)).tolist(), strict=False):
        pages[:count] = row.pages[:count]
    _tokens(rows, starts, lengths, first, into)
    short = np.flatnonzero(lengths <= SHORT)
    shared = _shared(into["pages"], starts, short) if cascade else None
    order, common = (short, np.zeros(len(short), dtype=np.int64)) if shared is None else shared
    members = _ranges(first[order], lengths[order])
    splits = -(-ends[order] // SPLIT)
    items = _items(order, common, splits, lengths[order], into["pages"].shape[1], starts, ends, first)
    blocks = _blocks(rows, starts, lengths, first, into["pages"].shape[1])
    assert len(blocks) <= shape.blocks, (len(blocks), shape)
    assert len(members) <= shape.short_tokens, (len(members), shape)
    into["counts"][:] = len(items), len(blocks), len(members), 0
    into["items"][: len(items)] = items
    into["blocks"][: len(blocks)] = blocks
    into["members"][: len(members)] = members
    kept = np.repeat(splits, lengths[order])
    into["partials"][members] = np.cumsum(kept) - kept
    return words


def _check(rows: Sequence[AttentionRow], ends: npt.NDArray[np.int64], shape: Shape) -> None:
    assert len(rows) <= shape.rows, (len(rows), shape)
    assert sum(row.length for row in rows) <= shape.tokens, shape
    for row, end in zip(rows, ends.tolist(), strict=True):
        assert row.length >= 1, row
        assert row.start >= 0, row
        assert end <= shape.context, (row, shape)
        assert len(row.pages) * PAGE >= end, "the page list is shorter than the row"


def _tokens(
    rows: Sequence[AttentionRow],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
    into: dict[str, Words],
) -> None:
    """Each token's key, position and ancestors."""
    total = int(lengths.sum())
    own = np.arange(total) - np.repeat(first, lengths)
    keys = np.repeat(starts, lengths) + own
    into["keys"][:total] = into["positions"][:total] = keys
    # A chain of up to 16 sees its own tokens up to itself; of a longer one the index says so, and this goes unread.
    into["ancestors"][:total, 0] = (2 << np.minimum(own, SHORT)) - 1
    for row, at in zip(rows, first.tolist(), strict=True):
        if row.parents is not None and row.length > 1:
            ancestors, depth = tree(row.parents, row.length)
            into["positions"][at : at + row.length] = row.start + depth
            width = min(into["ancestors"].shape[1], ancestors.shape[1])
            into["ancestors"][at : at + row.length, :width] = ancestors[:, :width]
            into["ancestors"][at : at + row.length, width:] = 0


def tree(parents: Sequence[int], length: int) -> tuple[Words, npt.NDArray[np.int64]]:
    """(ancestors [n, words], depth [n]) of a draft tree: bit j % 32 of word j // 32 is set for each ancestor j of a
    token, itself included. A root has a negative parent."""
    assert len(parents) == length, (len(parents), length)
    assert length <= TREE, f"a tree has at most {TREE} tokens, not {length}"
    seen: list[int] = []
    depth = np.zeros(length, dtype=np.int64)
    for i, parent in enumerate(parents):
        assert parent < i, "a parent comes before its child"
        seen.append((1 << i) | (seen[parent] if parent >= 0 else 0))
        depth[i] = depth[parent] + 1 if parent >= 0 else 0
    width = -(-length // 32) * 4
    octets = b"".join(bits.to_bytes(width, "little") for bits in seen)
    return np.frombuffer(octets, dtype="<i4").reshape(length, width // 4), depth


def _shared(
    pages: Words, starts: npt.NDArray[np.int64], short: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """(the short rows such that like page lists are neighbours, how many whole splits each shares with the one before),
    or None where no page is first in two rows. Only splits that end before a row's own tokens are shared."""
    whole = starts[short] // SPLIT
    if not whole.any():
        return None
    heads = pages[short[whole > 0], 0]
    if len(np.unique(heads)) == len(heads):
        return None
    # Any order in which lists with a common beginning are neighbours will do: that of their bytes is one.
    lists = [pages[row, : count * SPLIT_PAGES].tobytes() for row, count in zip(short, whole, strict=True)]
    by_list = np.array(sorted(range(len(short)), key=lists.__getitem__))
    order, whole = short[by_list], whole[by_list]
    table = pages[order].reshape(len(order), -1, SPLIT_PAGES)
    same = np.logical_and.accumulate((table[1:] == table[:-1]).all(2), axis=1).sum(1)
    common = np.zeros(len(order), dtype=np.int64)
    common[1:] = np.minimum(same, np.minimum(whole[1:], whole[:-1]))
    return order, common


def _items(
    order: npt.NDArray[np.int64],
    common: npt.NDArray[np.int64],
    splits: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    width: int,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """[n, 8]. Of each split, neighbours in `order` that share it make one group, cut into items of SHORT tokens."""
    rows = len(order)
    if not rows:
        return np.empty((0, ITEM_WORDS), dtype=np.int64)
    depth = int(splits.max())
    leads = np.arange(depth)[:, None] >= common[None, :]  # [splits, rows]: not with the row before
    leads[:, 0] = True
    lead = np.flatnonzero(leads)
    after = np.append(lead[1:], depth * rows)
    split, at = lead // rows, lead % rows
    there = split < splits[at]
    split, at, group = split[there], at[there], (after - lead)[there]
    begin = np.append(0, np.cumsum(lengths))
    count = begin[at + group] - begin[at]
    pieces = -(-count // SHORT)
    piece = _ranges(np.zeros_like(pieces), pieces)
    split, at, group, count = (np.repeat(x, pieces) for x in (split, at, group, count))
    row, low = order[at], split * SPLIT
    items = np.zeros((len(at), ITEM_WORDS), dtype=np.int64)
    items[:, 0] = begin[at] + piece * SHORT
    items[:, 1] = np.minimum(SHORT, count - piece * SHORT)
    items[:, 2] = low
    items[:, 3] = np.minimum(low + SPLIT, ends[row])
    items[:, 4] = row * width
    items[:, 5] = np.where(group > 1, NO_OWN_KEYS, starts[row])
    items[:, 6] = first[row]
    return items


def _blocks(
    rows: Sequence[AttentionRow],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
    width: int,
) -> npt.NDArray[np.int64]:
    """[n, 8]. Those with most keys come first, so that none of them is left to the end of a launch."""
    long = np.flatnonzero(lengths > SHORT)
    counts = -(-lengths[long] // BLOCK)
    row = np.repeat(long, counts)
    index = _ranges(np.zeros_like(counts), counts) * BLOCK
    blocks = np.zeros((len(row), BLOCK_WORDS), dtype=np.int64)
    blocks[:, 0] = first[row] + index
    blocks[:, 1] = np.minimum(BLOCK, lengths[row] - index)
    blocks[:, 2] = starts[row]
    blocks[:, 3] = index
    blocks[:, 4] = row * width
    blocks[:, 5] = [rows[r].parents is not None for r in row.tolist()]
    return blocks[np.argsort(-(blocks[:, 2] + index), kind="stable")]


def _ranges(begins: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """begin, begin + 1, … (count of them) for each pair, one after the other."""
    total = int(counts.sum())
    return np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(total)
