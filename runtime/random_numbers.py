"""Random numbers as a pure function of who asks: counter-based, so nothing is carried from step to step.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The key is the
request's seed; the counter is (position low, position high, choice, purpose). A token's number is therefore the same
whatever else is in the batch, before and after preemption, and with or without drafts.

Knows nothing of logits or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_TO_UNIT = 2.0**-53
_VECTOR_FROM = 6  # rows from which numpy's fixed cost is below that of plain ints


class Purpose(IntEnum):
    """What a number is for. Numbers of different purposes are independent. Values are part of what a seed means:
    never change one, give a new purpose the next."""

    SAMPLE = 0
    DRAFT = 1  # what a draft model proposes
    ACCEPT = 2  # whether the proposal stands
    RESIDUAL = 3  # what comes in its place


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10: four 32-bit words of counter and two of key give four 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0 = c0 * _MULTIPLIERS[0]
        p1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0 = (k0 + _WEYL[0]) & _MASK
        k1 = (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def philox_many(counters: npt.NDArray[np.uint64], keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """`philox` for n rows at once: counters [4, n] and keys [2, n], 32-bit words held in uint64 → [4, n]."""
    mask, shift = np.uint64(_MASK), np.uint64(32)
    rounds = np.arange(_ROUNDS, dtype=np.uint64)[:, None, None]
    weyl = np.array(_WEYL, dtype=np.uint64)[:, None]
    schedule = (keys[None] + rounds * weyl) & mask  # [rounds, 2, n]
    multipliers = np.array(_MULTIPLIERS, dtype=np.uint64)[:, None]
    even, odd = counters[0::2], counters[1::2]
    for key in schedule:
        product = (even * multipliers)[::-1]
        even, odd = (product >> shift) ^ odd ^ key, product & mask
    out = np.empty_like(counters)
    out[0::2], out[1::2] = even, odd
    return out


def uniform(seed: int, choice: int, position: int, purpose: Purpose) -> float:
    """One number in [0, 1) with 53 random bits. `seed` counts modulo 2^64, `choice` modulo 2^32."""
    counter = (position & _MASK, (position >> 32) & _MASK, choice & _MASK, int(purpose))
    high, low, _, _ = philox(counter, (seed & _MASK, (seed >> 32) & _MASK))
    return (((high << 32) | low) >> 11) * _TO_UNIT


def uniforms(
    seeds: Sequence[int], choices: Sequence[int], positions: Sequence[int], purpose: Purpose
) -> npt.NDArray[np.float64]:
    """`uniform` for n rows: [n] float64, the same bits as one by one."""
    n = len(seeds)
    if n < _VECTOR_FROM:
        return np.array([uniform(*row, purpose) for row in zip(seeds, choices, positions, strict=True)], np.float64)
    words = [
        [p & _MASK for p in positions],
        [(p >> 32) & _MASK for p in positions],
        [c & _MASK for c in choices],
        [int(purpose)] * n,
    ]
    keys = [[s & _MASK for s in seeds], [(s >> 32) & _MASK for s in seeds]]
    out = philox_many(np.array(words, dtype=np.uint64), np.array(keys, dtype=np.uint64))
    bits = ((out[0] << np.uint64(32)) | out[1]) >> np.uint64(11)
    numbers: npt.NDArray[np.float64] = bits * _TO_UNIT
    return numbers
