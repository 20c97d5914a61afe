"""What sampling's kernels share: ranks and weights as integers, and where a rank falls. Functions inside kernels.

A logit's *key* is how far it lies below its row's largest, over the temperature: a float32 that is not negative, whose
bits as int32 have the same order. Key 0 is the best, `NEVER` (+inf) a token that cannot come. Its *weight* is
exp(-distance) in fixed point, 44 bits after the point: sums of fewer than 2¹⁹ of them are exact in int64, whatever the
order, so a draw depends neither on tiles nor on other rows. Weights below 2⁻⁴⁴ of the best are 0.

Every tensor has one row a draw, M of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .masks import allowed

NEVER: tl.constexpr = tl.constexpr(0x7F800000)
ONE: tl.constexpr = tl.constexpr(1 << 44)  # the weight of key 0
_NO_LIMIT: tl.constexpr = tl.constexpr(1 << 30)


@triton.jit
def load_logits(logits, start, bits, bits_start, column, there, MASKED: tl.constexpr):
    """[M, N] logits at `column` of the rows that start at `start` [M]; -inf where not `there`, not a number, or, where
    `bits_start` [M] is not negative, forbidden."""
    x = tl.load(logits + start[:, None] + column, mask=there, other=float("-inf"))
    x = tl.where(x == x, x, float("-inf"))
    if MASKED:
        masked = (bits_start >= 0)[:, None]
        free = allowed(bits, bits_start[:, None], column, there & masked)
        x = tl.where(masked & (free == 0), float("-inf"), x)
    return x


@triton.jit
def keys_of(x, peak, temperature):
    """Keys [M, N] of logits, given each row's largest and temperature [M]."""
    top = tl.broadcast_to(peak[:, None], x.shape)
    divisor = tl.maximum(tl.broadcast_to(temperature[:, None], x.shape), 1.1754943508222875e-38)
    down = tl.where(x == top, 0.0, tl.div_rn(top - x, divisor))
    return down.to(tl.int32, bitcast=True)


@triton.jit
def weights_of(key):
    return (tl.exp(-key.to(tl.float32, bitcast=True)) * ONE).to(tl.int64)


@triton.jit
def key_at_least(distance):
    """The least key whose distance is not below `distance` (float64, not negative)."""
    near = distance.to(tl.float32)
    key = near.to(tl.int32, bitcast=True)
    return tl.where(near.to(tl.float64) < distance, key + 1, key)


@triton.jit
def key_at_most(distance):
    """The largest key whose distance is not above `distance`."""
    near = distance.to(tl.float32)
    key = near.to(tl.int32, bitcast=True)
    return tl.where(near.to(tl.float64) > distance, key - 1, key)


@triton.jit
def target_of(u, total):
    """Which of `total` equal parts a number u of [0, 1) falls on."""
    return tl.maximum(tl.minimum((u * total.to(tl.float64)).to(tl.int64), total - 1), 0)


@triton.jit
def first_above(weight, target):
    """(index of the first column at which the running sum of weights [M, N] passes `target` [M], the sum before it)."""
    sums = tl.cumsum(weight, 1)
    passed = sums <= target[:, None]
    return tl.sum(passed.to(tl.int32), 1), tl.max(tl.where(passed, sums, 0), 1)


@triton.jit
def tally(keys, start, count, longest, limit, M: tl.constexpr, N: tl.constexpr):
    """(number [M] int32, weight [M] int64) of the listed candidates whose key is at most `limit` [M], below
    `NEVER`. The list of a draw has `count` [M] keys from `start` [M]; none has more than `longest`."""
    number = tl.zeros([M, N], tl.int32)
    weight = tl.zeros([M, N], tl.int64)
    for first in range(0, longest, N):  # each thread sums its own; they meet once
        at = first + tl.arange(0, N)[None, :]
        key = tl.load(keys + start[:, None] + at, mask=at < count[:, None], other=NEVER)
        inside = key <= limit[:, None]
        number += inside.to(tl.int32)
        weight += tl.where(inside, weights_of(key), 0)
    return tl.sum(number, 1), tl.sum(weight, 1)


@triton.jit
def bisect(keys, start, count, longest, number, weight, highest, M: tl.constexpr, N: tl.constexpr):
    """The least key [M] at which candidates down to it are at least `number` and weigh at least `weight`; `highest`
    where none below does."""
    low, high = tl.zeros([M], tl.int32), highest
    for _ in range(31):  # a key has 31 bits
        middle = low + (high - low) // 2
        found, found_weight = tally(keys, start, count, longest, middle, M, N)
        enough = (found >= number) & (found_weight >= weight)
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, tl.minimum(middle + 1, high))
    return high


@triton.jit
def cut_of(keys, start, count, longest, total, top_k, top_p, min_p, M: tl.constexpr, N: tl.constexpr):
    """What the filters keep of a list, in the order top-k, top-p, min-p: (key, ties, weight) [M]: candidates above
    `key`, and the first `ties` of those equal to it, which weigh `weight` together.

    `total` is what all tokens of the row weigh; `top_k` is `_NO_LIMIT` and top_p ≥ 1 where a filter is off. A rank
    stays while the weight before it is below top_p · the weight after top-k; the first rank always stays.
    """
    last = tl.full([M], NEVER - 1, tl.int32)
    none = tl.zeros([M], tl.int64)
    limited = top_k < _NO_LIMIT
    key, ties = last, tl.full([M], _NO_LIMIT, tl.int32)
    if tl.max(limited.to(tl.int32)) > 0:
        found = bisect(keys, start, count, longest, top_k, none, last, M, N)
        key = tl.where(limited, found, last)
        above, above_weight = tally(keys, start, count, longest, key - 1, M, N)
        down_to, _ = tally(keys, start, count, longest, key, M, N)
        ties = tl.where(limited, tl.minimum(top_k - above, down_to - above), ties)
        total = tl.where(limited, above_weight + ties * weights_of(key), total)
    nucleus = top_p < 1
    if tl.max(nucleus.to(tl.int32)) > 0:
        line = tl.maximum(tl.ceil(top_p * total.to(tl.float64)).to(tl.int64), 1)
        found = tl.where(nucleus, bisect(keys, start, count, longest, 0, line, key, M, N), key)
        above, above_weight = tally(keys, start, count, longest, found - 1, M, N)
        step = weights_of(found)
        crossing = (line - above_weight + step - 1) // tl.maximum(step, 1)
        crossing = tl.minimum(crossing, _NO_LIMIT).to(tl.int32)
        ties = tl.where(found < key, _NO_LIMIT, ties)
        ties = tl.where(nucleus & (step > 0), tl.minimum(ties, crossing), ties)
        key = found
    lowest = key_at_most(-tl.log(tl.maximum(min_p, 1e-300)))
    lowest = tl.where(min_p > 0, tl.maximum(lowest, 0), NEVER)
    ties = tl.where(lowest < key, _NO_LIMIT, ties)
    key = tl.minimum(key, lowest)
    above, above_weight = tally(keys, start, count, longest, key - 1, M, N)
    down_to, _ = tally(keys, start, count, longest, key, M, N)
    ties = tl.minimum(ties, down_to - above)
    return key, ties, above_weight + ties * weights_of(key)
