"""What is learnt from: the target's rows as batches of starts, each with the tokens that followed.

A start is a row whose hidden state and token are given; what its answer said after it is to be guessed. Every
seventeenth prompt is held out: nothing of its answers is learnt, and guesses are judged by them.

Knows arrays; nothing of networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .rows import Row, RowStore

HELD_OUT = 17

Ints = npt.NDArray[np.int64]


class Batch(NamedTuple):
    """B starts and the `depth` tokens after each. Tokens are columns of the head, F for a rare one.

    `hidden` [B, D] float32 and `tokens` [B, depth + 1] of each start and what followed; `ids` and `odds`
    [B, depth, TOP] what the target held likeliest for those that followed; `there` [B, depth]: the answer went on so
    far.
    """

    hidden: Tensor
    tokens: Tensor
    ids: Tensor
    odds: Tensor
    there: Tensor


class Lessons:
    """Rows of a store by their place. `frequent` are the tokens that columns stand for."""

    def __init__(self, store: RowStore, frequent: Ints, width: int) -> None:
        self._rows: Row = store.map()
        lengths = np.asarray(store.lengths, np.int64)
        self._left = _left(lengths)
        held = np.repeat(np.asarray(store.prompts) % HELD_OUT == 0, lengths)
        self.learnt: Ints = np.flatnonzero(~held & (self._left > 0))
        self.held: Ints = np.flatnonzero(held)
        self.column = np.full(width, len(frequent), np.int64)
        self.column[frequent] = np.arange(len(frequent))

    def draw(self, seed: int, number: int, size: int, depth: int) -> Batch:
        """Random starts to learn from: batch `number` is the same whenever it is drawn."""
        random = np.random.default_rng((seed, number))
        return self.batch(self.learnt[random.integers(0, len(self.learnt), size)], depth)

    def batch(self, starts: Ints, depth: int) -> Batch:
        after = starts[:, None] + np.arange(depth + 1)
        there = self._left[starts][:, None] >= np.arange(1, depth + 1)
        rows = self._rows[np.minimum(after, len(self._rows) - 1)]
        return Batch(
            torch.from_numpy(rows["hidden"][:, 0].astype(np.float32)),
            torch.from_numpy(self.column[rows["token"]]),
            torch.from_numpy(self.column[rows["ids"][:, 1:]]),
            torch.from_numpy(np.exp(rows["logs"][:, 1:].astype(np.float32))),
            torch.from_numpy(there),
        )

    def next_states(self, starts: Ints) -> Tensor:
        """The hidden states [B, D] of the rows after starts that have one."""
        return torch.from_numpy(self._rows["hidden"][starts + 1].astype(np.float32))

    def judged(self, depth: int, sure: bool) -> tuple[Tensor, Ints]:
        """Held-out hidden states [n, D], and the tokens (not columns) [n, depth + 1] of each and after it, where the
        answer went on so far. `sure`: only answers that always took the likeliest token."""
        starts = self.held[self._left[self.held] >= depth]
        if sure:
            whole = self._rows["token"] == self._rows["ids"][:, 0]
            ends = np.flatnonzero(self._left == 0)
            begins = np.concatenate(([0], ends[:-1] + 1))
            greedy = np.repeat(np.logical_and.reduceat(whole, begins), ends - begins + 1)
            starts = starts[greedy[starts]]
        tokens: Ints = self._rows["token"][starts[:, None] + np.arange(depth + 1)].astype(np.int64)
        return torch.from_numpy(self._rows["hidden"][starts].astype(np.float32)), tokens


def frequent_tokens(store: RowStore, width: int, count: int) -> Ints:
    """The ids, rising, of the `count` tokens that the target held likeliest in all; of equals the lower ids."""
    rows, mass = store.map(), np.zeros(width)
    for at in range(0, len(rows), _CHUNK):
        part = rows[at : at + _CHUNK]
        odds = np.exp(part["logs"].astype(np.float64))
        mass += np.bincount(part["ids"].ravel(), odds.ravel(), minlength=width)
    return np.sort(np.argsort(-mass, kind="stable")[:count])


_CHUNK = 1 << 16


def _left(lengths: Sequence[int] | Ints) -> Ints:
    """For each row, how many of its answer come after it."""
    ends = np.cumsum(lengths)
    return np.repeat(ends, lengths) - 1 - np.arange(int(ends[-1]) if len(ends) else 0)
