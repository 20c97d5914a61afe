"""Rows of like length together. Knows nothing of what is done with them.

Rows that share one padded operation cost as much as the longest of them. A further operation costs what about 256
padded positions cost, so rows are split where that saves more.
"""

from __future__ import annotations

from collections.abc import Sequence

SPLIT_COST = 256
_QUANTUM = 32
_LEVELS = 16


def length_buckets(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of `lengths` in buckets, each in rising order, such that padding and buckets together cost least.

    Lengths are rounded up so that at most 16 different ones are weighed against each other.
    """
    if not lengths:
        return []
    longest = max(lengths)
    if (longest - min(lengths)) * len(lengths) <= SPLIT_COST:
        return [list(range(len(lengths)))]
    quantum = _QUANTUM
    while longest // quantum >= _LEVELS and len({-(-n // quantum) for n in lengths}) > _LEVELS:
        quantum *= 2
    at: dict[int, list[int]] = {}
    for i, n in enumerate(lengths):
        at.setdefault(-(-n // quantum), []).append(i)
    levels = sorted(at, reverse=True)
    # best[j]: least cost of the j longest levels; cut[j]: where the last bucket of that solution begins.
    best, cut = [0], [0]
    for j in range(1, len(levels) + 1):
        cost, rows, begin = -1, 0, j - 1
        for i in range(j - 1, -1, -1):
            rows += len(at[levels[i]])
            candidate = best[i] + levels[i] * quantum * rows + SPLIT_COST
            if cost < 0 or candidate < cost:
                cost, begin = candidate, i
        best.append(cost)
        cut.append(begin)
    buckets: list[list[int]] = []
    end = len(levels)
    while end > 0:
        buckets.append(sorted(i for level in levels[cut[end] : end] for i in at[level]))
        end = cut[end]
    return buckets
