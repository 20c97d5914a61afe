"""Philox against published vectors; uniforms against statistics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bosquet.runtime.random_numbers import Purpose, philox, philox_many, uniform, uniforms

# Known-answer vectors of the authors' library (Random123, kat_vectors, "philox4x32 10").
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

word = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_published_answers(counter, key, expected):
    assert philox(counter, key) == expected


def test_vectorised_philox_gives_the_published_answers():
    counters = np.array([row[0] for row in KNOWN], dtype=np.uint64).T
    keys = np.array([row[1] for row in KNOWN], dtype=np.uint64).T
    assert philox_many(counters, keys).T.tolist() == [list(row[2]) for row in KNOWN]


@given(st.lists(st.tuples(st.integers(-(2**63), 2**64), st.integers(0, 200), st.integers(0, 2**40)), max_size=20))
def test_many_numbers_are_the_same_bits_as_one_by_one(rows):
    seeds, choices, positions = ([row[i] for row in rows] for i in range(3))
    one_by_one = [uniform(*row, Purpose.SAMPLE) for row in rows]
    assert uniforms(seeds, choices, positions, Purpose.SAMPLE).tolist() == one_by_one
    assert all(0 <= u < 1 for u in one_by_one)


@given(st.tuples(word, word, word, word), st.tuples(word, word))
def test_every_word_of_counter_and_key_matters(counter, key):
    base = philox(counter, key)
    for at in range(4):
        changed = list(counter)
        changed[at] ^= 1
        assert philox(tuple(changed), key) != base
    for at in range(2):
        changed = list(key)
        changed[at] ^= 1
        assert philox(counter, tuple(changed)) != base


@pytest.mark.parametrize("varied", ["seed", "choice", "position"])
def test_numbers_are_uniform_along_each_part_of_the_key(varied):
    n, bins = 40_000, 64
    parts = {"seed": [7] * n, "choice": [0] * n, "position": [5] * n} | {varied: list(range(n))}
    u = uniforms(parts["seed"], parts["choice"], parts["position"], Purpose.SAMPLE)
    counts = np.bincount((u * bins).astype(int), minlength=bins)
    chi_square = float(((counts - n / bins) ** 2 / (n / bins)).sum())
    assert chi_square < 63 + 5 * (2 * 63) ** 0.5  # 5 standard deviations of a chi-square with 63 degrees
    neighbours = np.corrcoef(u[:-1], u[1:])[0, 1]
    assert abs(neighbours) < 5 / n**0.5
