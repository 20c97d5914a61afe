"""Buckets of like lengths, against every possible way to cut the sorted lengths."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from bosquet.kernels.reference.buckets import SPLIT_COST, length_buckets


def cost(lengths: list[int], buckets: list[list[int]]) -> int:
    return sum(max(lengths[i] for i in bucket) * len(bucket) + SPLIT_COST for bucket in buckets)


def least(lengths: list[int]) -> int:
    """The cost of the best of all 2^(n-1) cuts; buckets of neighbours in sorted order are always best."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    best = cost(lengths, [order])
    for count in range(1, len(order)):
        for cuts in combinations(range(1, len(order)), count):
            edges = [0, *cuts, len(order)]
            best = min(best, cost(lengths, [order[a:b] for a, b in pairwise(edges)]))
    return best


@given(st.lists(st.integers(1, 3000), max_size=9))
def test_buckets_cost_little_more_than_the_best(lengths: list[int]) -> None:
    buckets = length_buckets(lengths)
    assert sorted(i for bucket in buckets for i in bucket) == list(range(len(lengths)))
    assert all(bucket == sorted(bucket) for bucket in buckets)
    if lengths:
        # Up to 16 lengths are told apart, at worst in steps of 32; one bucket is taken when no cut can save its cost.
        assert cost(lengths, buckets) <= least(lengths) + 32 * len(lengths) + SPLIT_COST


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=200))
def test_many_lengths(lengths: list[int]) -> None:
    buckets = length_buckets(lengths)
    assert sorted(i for bucket in buckets for i in bucket) == list(range(len(lengths)))
    assert len(buckets) <= 17


def test_equal_lengths_stay_together() -> None:
    assert length_buckets([500] * 64) == [list(range(64))]
    assert length_buckets([]) == []
