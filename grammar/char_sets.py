"""Sets of Unicode characters as sorted ranges. Surrogates belong to no set: they cannot be written in UTF-8.

Knows nothing of regular expressions.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

CharSet = tuple[tuple[int, int], ...]
"""Disjoint, sorted, inclusive ranges of code points that do not touch."""

EVERYTHING: CharSet = ((0, 0xD7FF), (0xE000, 0x10FFFF))
NOTHING: CharSet = ()


def make(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """Any ranges, in any order, overlapping or not; surrogates are dropped."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return intersect(tuple(merged), EVERYTHING)


def of(text: str) -> CharSet:
    return make((ord(char), ord(char)) for char in text)


def union(first: CharSet, second: CharSet) -> CharSet:
    return make((*first, *second))


def complement(chars: CharSet) -> CharSet:
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in chars:
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= 0x10FFFF:
        gaps.append((start, 0x10FFFF))
    return intersect(tuple(gaps), EVERYTHING)


def intersect(first: CharSet, second: CharSet) -> CharSet:
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(first) and j < len(second):
        low, high = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if low <= high:
            found.append((low, high))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


ASCII_DIGITS: CharSet = ((0x30, 0x39),)
ASCII_WORD: CharSet = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
ASCII_SPACE: CharSet = ((0x09, 0x0D), (0x20, 0x20))

ANY_SPACE: CharSet = make(
    (
        *ASCII_SPACE,
        *((0x1C, 0x1F), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
        *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
    )
)
"""White space of ECMA-262 or of Python's `re`."""

NOT_LINE_END: CharSet = complement(of("\n\r\u2028\u2029"))

# No character outside these is surely not a word character in Unicode; more would only make \W larger.
_SURELY_NOT_WORD = union(intersect(((0, 0x7F),), complement(ASCII_WORD)), ((0x2010, 0x2027), (0x2030, 0x205E)))
ANY_WORD: CharSet = complement(_SURELY_NOT_WORD)
"""Holds at least every letter, digit and underscore of Unicode."""


@cache
def any_digit() -> CharSet:
    """Every decimal digit of Unicode."""
    return make((code, code) for code in range(0x20000) if chr(code).isdecimal())
