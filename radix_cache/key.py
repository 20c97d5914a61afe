"""Token ids in the form in which the tree compares them.

Knows no tokenizer: an id is a 32-bit number. Four bytes a token in one `bytes` object, so that comparing, slicing and
hashing run at the speed of memcmp. The byte order is the machine's; it only has to be the same for all keys.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..types import PAGE

TOKEN_BYTES = 4
PAGE_BYTES = PAGE * TOKEN_BYTES

Ids = Sequence[int] | npt.NDArray[np.integer]
"""What callers may hold token ids in: a sequence of ints, `array("i")`, or a one-dimensional integer array."""


class Key:
    """Immutable token ids. `Key.of` costs about 10 ns a token for a list and almost nothing for a 32-bit array, so
    whoever looks a prompt up more than once keeps its key."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    @classmethod
    def of(cls, ids: Key | Ids) -> Key:
        """Raises `struct.error` if an id does not fit 32 bits, `TypeError` for an array that is not of integers."""
        if isinstance(ids, Key):
            return ids
        if isinstance(ids, np.ndarray):
            if ids.ndim != 1 or ids.dtype.kind not in "iu":
                raise TypeError(f"token ids in an array of {ids.ndim} dimensions of {ids.dtype}")
            if ids.dtype == np.int32:
                return cls(ids.tobytes())
            listed: list[int] = ids.tolist()
            return cls(struct.pack(f"={len(listed)}i", *listed))
        if isinstance(ids, array) and ids.typecode == "i" and ids.itemsize == TOKEN_BYTES:
            return cls(ids.tobytes())
        return cls(struct.pack(f"={len(ids)}i", *ids))

    def __len__(self) -> int:
        return len(self.data) // TOKEN_BYTES

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"Key({len(self)} tokens)"

    def prefix(self, n: int) -> Key:
        """The first `n` tokens."""
        return Key(self.data[: n * TOKEN_BYTES])

    def plus(self, ids: Key | Ids) -> Key:
        """These tokens followed by `ids`."""
        return Key(self.data + Key.of(ids).data)

    def ids(self) -> list[int]:
        return list(struct.unpack(f"={len(self)}i", self.data))


def common_tokens(run: bytes, data: bytes, at: int = 0) -> int:
    """Number of leading tokens that `run` and `data[at:]` share.

    Binary search for the first difference: each probe is one memcmp of half of what is left, about two passes in all.
    """
    high = min(len(run), len(data) - at) // TOKEN_BYTES
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        a, b = low * TOKEN_BYTES, middle * TOKEN_BYTES
        if run[a:b] == data[at + a : at + b]:
            low = middle
        else:
            high = middle - 1
    return low


def nearest(ordered: list[bytes], page: bytes) -> tuple[int, int]:
    """Where in the sorted, non-empty list `ordered` an entry stands that shares the most leading tokens with `page`,
    and how many these are. In a sorted list that entry is a neighbour of where `page` would stand: O(log n)."""
    i = bisect_left(ordered, page)
    if i == len(ordered):
        return i - 1, common_tokens(ordered[i - 1], page)
    after = common_tokens(ordered[i], page)
    if i == 0:
        return 0, after
    before = common_tokens(ordered[i - 1], page)
    return (i - 1, before) if before > after else (i, after)
