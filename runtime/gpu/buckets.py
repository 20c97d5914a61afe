"""In which padded shape a pass runs, so that few recordings serve all passes. Pure numbers.

A pass of short rows (decode, verify) costs what it reads: weights once, and each row's keys and values. Padding tokens
read nothing but weights that are read anyway, so a shape may be up to a half larger than what it holds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of rows, and of tokens."""

FIRST_CONTEXT = 1024
"""The shortest context bound; each further one is twice as long. Programs beyond a row's end return at once, but a
layer starts one for every 256 positions, row and key head, so a bound should not be far above what is there."""


class Bucket(NamedTuple):
    """Room for so many rows with so many tokens in all, none with more keys than `context`."""

    rows: int
    tokens: int
    context: int

    def holds(self, other: Bucket) -> bool:
        return self.rows >= other.rows and self.tokens >= other.tokens and self.context >= other.context


def bucket(rows: int, tokens: int, context: int, longest: int) -> Bucket | None:
    """The least shape for such a pass; None where it is too large for any. `longest` is the longest context there is:
    no shape goes beyond."""
    assert 1 <= rows <= tokens, (rows, tokens)
    assert context <= longest, (context, longest)
    if tokens > SIZES[-1]:
        return None
    reach = FIRST_CONTEXT
    while reach < context:
        reach *= 2
    return Bucket(_at_least(rows), _at_least(tokens), min(reach, longest))


def _at_least(size: int) -> int:
    return SIZES[bisect_left(SIZES, size)]


def nearest(wanted: Bucket, held: Iterable[Bucket]) -> Bucket | None:
    """Of the shapes there are, the cheapest that holds the wanted one."""
    return min((one for one in held if one.holds(wanted)), key=_cost, default=None)


def _cost(room: Bucket) -> tuple[int, int, int]:
    return room.tokens, room.context, room.rows
