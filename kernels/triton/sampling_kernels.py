"""The kernels of `sampling.py`. Each has rows of M draws; a kernel over blocks has one program for M rows and N tokens.

`logits`, `rows`, `masks`, `bits`, `n`, `width`, `stride`, `words`, `blocks` come first wherever logits are read.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .ranks import (
    NEVER,
    ONE,
    cut_of,
    first_above,
    key_at_least,
    keys_of,
    load_logits,
    target_of,
    weights_of,
)

Kernel = Any  # a `triton.JITFunction`, or what the interpreter has in its place
_NO_LIMIT: tl.constexpr = tl.constexpr(1 << 30)
_OF_DRAWS = ["rows", "masks", "temperatures", "top_ks", "top_ps", "min_ps", "us"]  # may be views of one buffer


@triton.jit
def _is_greedy(temperature, top_k):
    return (temperature <= 0) | (top_k == 1)


@triton.jit
def _rows_of(rows, masks, first, n, stride, words, M: tl.constexpr):
    """(draws [M], which exist, where their logits start, where their bits start or -1)."""
    draw = (first * M + tl.arange(0, M)).to(tl.int64)
    there = draw < n
    row = tl.load(rows + draw, mask=there, other=-1).to(tl.int64)
    mask = tl.load(masks + draw, mask=there, other=-1).to(tl.int64)
    return draw, there & (row >= 0), row * stride, tl.where(mask >= 0, mask * words, -1)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=_OF_DRAWS)
def find_maxima(
    logits, rows, masks, bits, n, width, stride, words, blocks,
    maxima, chunks,
    M: tl.constexpr, N: tl.constexpr, MASKED: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """maxima [n, chunks]: the largest allowed logit of each chunk."""
    program = tl.program_id(0)
    block = program % blocks
    draw, live, start, bits_start = _rows_of(rows, masks, program // blocks, n, stride, words, M)
    column = block * N + tl.arange(0, N)[None, :]
    x = load_logits(logits, start, bits, bits_start, column, live[:, None] & (column < width), MASKED)
    peak = tl.max(tl.reshape(x, [M, N // CHUNK, CHUNK]), 2)
    chunk = block * (N // CHUNK) + tl.arange(0, N // CHUNK)[None, :]
    tl.store(maxima + draw[:, None] * chunks + chunk, peak, mask=(draw < n)[:, None] & (chunk < chunks))


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=_OF_DRAWS)
def find_masses(
    logits, rows, masks, bits, n, width, stride, words, blocks,
    temperatures, top_ks, maxima, masses, chunks,
    M: tl.constexpr, N: tl.constexpr, MASKED: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """masses [n, chunks]: what each chunk weighs, 0 for greedy draws."""
    program = tl.program_id(0)
    block = program % blocks
    draw, live, start, bits_start = _rows_of(rows, masks, program // blocks, n, stride, words, M)
    every = tl.arange(0, CHUNKS)[None, :]
    those = live[:, None] & (every < chunks)
    peak = tl.max(tl.load(maxima + draw[:, None] * chunks + every, mask=those, other=float("-inf")), 1)
    temperature = tl.load(temperatures + draw, mask=live, other=0.0)
    random = live & (peak > float("-inf"))
    random = random & (_is_greedy(temperature, tl.load(top_ks + draw, mask=live, other=0)) == 0)
    mass = tl.zeros([M, N // CHUNK], tl.int64)
    if tl.max(random.to(tl.int32)) > 0:
        column = block * N + tl.arange(0, N)[None, :]
        x = load_logits(logits, start, bits, bits_start, column, random[:, None] & (column < width), MASKED)
        weight = tl.where(random[:, None], weights_of(keys_of(x, peak, temperature)), 0)
        mass = tl.sum(tl.reshape(weight, [M, N // CHUNK, CHUNK]), 2)
    chunk = block * (N // CHUNK) + tl.arange(0, N // CHUNK)[None, :]
    tl.store(masses + draw[:, None] * chunks + chunk, mass, mask=(draw < n)[:, None] & (chunk < chunks))


@triton.jit
def _bound(keys, width, total, top_k, limited, top_p, min_p, M: tl.constexpr):
    """A key [M] after which nothing is kept, nor counts in what filters sum up.

    With top-k: the k-th best of the chunks' best tokens, `keys` [M, CHUNKS]. Else tokens so light that all V of them
    would weigh less than top-p leaves, or under min-p; a hundredth more, so that rounding cannot matter.
    """
    last = tl.full([M], NEVER - 1, tl.int32)
    low, high = tl.zeros([M], tl.int32), last
    if tl.max(limited.to(tl.int32)) > 0:
        for _ in range(31):
            middle = low + (high - low) // 2
            enough = tl.sum((keys <= middle[:, None]).to(tl.int32), 1) >= top_k
            high = tl.where(enough, middle, high)
            low = tl.where(enough, low, tl.minimum(middle + 1, high))
    share = (1 - tl.minimum(top_p, 1.0)) * total.to(tl.float64) / ONE / width
    share = tl.maximum(tl.where(top_p < 1, share, 0.0), min_p)
    light = tl.minimum(key_at_least(tl.maximum(0.01 - tl.log(tl.maximum(share, 1e-300)), 0.0)), last)
    return tl.where(limited, high, tl.where(share > 0, light, last))


@triton.jit
def _pick(
    logits, start, bits, bits_start, live, best, mass, peak, temperature, greedy, u, width,
    MASKED: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Tokens [M] int32 of draws without filters: the chunk from maxima or masses [M, CHUNKS], then the place in it."""
    every, inside = tl.arange(0, CHUNKS)[None, :], tl.arange(0, CHUNK)[None, :]
    target = target_of(u, tl.sum(mass, 1))
    chunk, before = first_above(mass, target)
    first_best = tl.min(tl.where(best == peak[:, None], every, CHUNKS), 1)
    chunk = tl.where(greedy, first_best, chunk)
    column = chunk[:, None] * CHUNK + inside
    x = load_logits(logits, start, bits, bits_start, column, live[:, None] & (column < width), MASKED)
    found, _ = first_above(weights_of(keys_of(x, peak, temperature)), target - before)
    first_best = tl.min(tl.where(x == peak[:, None], inside, CHUNK), 1)
    return tl.where(live, chunk * CHUNK + tl.where(greedy, first_best, found), -1)


@triton.jit
def _list(
    logits, start, bits, bits_start, wanted, maxima, peak, temperature, bound, width, blocks, chunks,
    list_keys, list_ids, draw,
    M: tl.constexpr, N: tl.constexpr, MASKED: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write keys and ids of tokens down to `bound` [M], where `wanted` [M]; how many [M]. Blocks that have none are not
    read."""
    count = tl.zeros([M], tl.int32)
    bound = tl.where(wanted, bound, -1)[:, None]
    for block in range(0, blocks):
        chunk = block * (N // CHUNK) + tl.arange(0, N // CHUNK)[None, :]
        those = wanted[:, None] & (chunk < chunks)
        best = tl.load(maxima + draw[:, None] * chunks + chunk, mask=those, other=float("-inf"))
        if tl.max(tl.max((keys_of(best, peak, temperature) <= bound).to(tl.int32), 1), 0) > 0:
            column = block * N + tl.arange(0, N)[None, :]
            there = wanted[:, None] & (column < width)
            x = load_logits(logits, start, bits, bits_start, column, there, MASKED)
            key = keys_of(x, peak, temperature)
            keep = there & (key <= bound)
            place = draw[:, None] * width + count[:, None] + tl.cumsum(keep.to(tl.int32), 1) - 1
            tl.store(list_keys + place, key, mask=keep)
            tl.store(list_ids + place, tl.broadcast_to(column, [M, N]), mask=keep)
            count += tl.sum(keep.to(tl.int32), 1)
    return count


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=_OF_DRAWS)
def choose(
    logits, rows, masks, bits, n, width, stride, words, blocks,
    temperatures, top_ks, top_ps, min_ps, us, maxima, masses, tokens, peaks, cut_keys, cut_ids, kept, totals,
    list_keys, list_ids, listed, chunks,
    M: tl.constexpr, N: tl.constexpr, MASKED: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """The token and the cut of draws that need no list; the list [n, V] of the others, `listed` [n] long, in the order
    of ids; the largest logit of each row, and what all its tokens weigh."""
    draw, live, start, bits_start = _rows_of(rows, masks, tl.program_id(0), n, stride, words, M)
    there = draw < n
    temperature = tl.load(temperatures + draw, mask=live, other=0.0)
    top_k = tl.load(top_ks + draw, mask=live, other=0)
    top_p = tl.load(top_ps + draw, mask=live, other=1.0)
    min_p = tl.load(min_ps + draw, mask=live, other=0.0)
    u = tl.load(us + draw, mask=live, other=0.0)
    every = tl.arange(0, CHUNKS)[None, :]
    at, those = draw[:, None] * chunks + every, live[:, None] & (every < chunks)
    best = tl.load(maxima + at, mask=those, other=float("-inf"))
    mass = tl.load(masses + at, mask=those, other=0)
    peak, total = tl.max(best, 1), tl.sum(mass, 1)
    live = live & (peak > float("-inf"))
    greedy = _is_greedy(temperature, top_k)
    token = _pick(
        logits, start, bits, bits_start, live, best, mass, peak, temperature, greedy, u, width, MASKED, CHUNK, CHUNKS
    )
    tl.store(tokens + draw, token.to(tl.int64), mask=there)
    tl.store(peaks + draw, peak, mask=there)
    tl.store(cut_keys + draw, tl.where(greedy, 0, NEVER - 1), mask=there)
    tl.store(cut_ids + draw, tl.where(greedy, token, width), mask=there)
    tl.store(kept + draw, tl.where(live, tl.where(greedy, ONE, total), 0), mask=there)
    tl.store(totals + draw, total, mask=there)

    limited = (top_k > 1) & (top_k < width)
    filtered = live & (greedy == 0) & (limited | (top_p < 1) | (min_p > 0))
    count = tl.zeros([M], tl.int32)
    if tl.max(filtered.to(tl.int32)) > 0:
        bound = _bound(keys_of(best, peak, temperature), width, total, top_k, limited, top_p, min_p, M)
        count = _list(
            logits, start, bits, bits_start, filtered, maxima, peak, temperature, bound, width, blocks, chunks,
            list_keys, list_ids, draw, M, N, MASKED, CHUNK,
        )  # fmt: skip
    tl.store(listed + draw, count, mask=there)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=_OF_DRAWS)
def filter_and_draw(
    list_keys, list_ids, listed, totals, top_ks, top_ps, min_ps, us, tokens, cut_keys, cut_ids, kept, n, width,
    M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The token and the cut of draws that have a list."""
    draw = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)
    count = tl.load(listed + draw, mask=draw < n, other=0)
    live = count > 0
    longest = tl.max(count)
    if longest > 0:
        top_k = tl.load(top_ks + draw, mask=live, other=0)
        top_k = tl.where((top_k > 0) & (top_k < width), top_k, _NO_LIMIT)
        top_p = tl.load(top_ps + draw, mask=live, other=1.0)
        min_p = tl.load(min_ps + draw, mask=live, other=0.0)
        total = tl.load(totals + draw, mask=live, other=0)
        start = draw * width
        cut, ties, weight = cut_of(list_keys, start, count, longest, total, top_k, top_p, min_p, M, N)
        target = target_of(tl.load(us + draw, mask=live, other=0.0), weight)
        token, last = tl.full([M], width, tl.int32), tl.full([M], -1, tl.int32)
        before, tied = tl.zeros([M], tl.int64), tl.zeros([M], tl.int32)
        for first in range(0, longest, N):
            at = first + tl.arange(0, N)[None, :]
            there = at < count[:, None]
            key = tl.load(list_keys + start[:, None] + at, mask=there, other=NEVER)
            name = tl.load(list_ids + start[:, None] + at, mask=there, other=0)
            equal = there & (key == cut[:, None])
            equal = equal & (tied[:, None] + tl.cumsum(equal.to(tl.int32), 1) <= ties[:, None])
            mass = tl.where(equal | (there & (key < cut[:, None])), weights_of(key), 0)
            sums = before[:, None] + tl.cumsum(mass, 1)
            token = tl.minimum(token, tl.min(tl.where(there & (sums > target[:, None]), name, width), 1))
            last = tl.maximum(last, tl.max(tl.where(equal, name, -1), 1))
            before += tl.sum(mass, 1)
            tied += tl.sum(equal.to(tl.int32), 1)
        tl.store(tokens + draw, token.to(tl.int64), mask=live)
        tl.store(cut_keys + draw, cut, mask=live)
        tl.store(cut_ids + draw, last, mask=live)
        tl.store(kept + draw, weight, mask=live)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=_OF_DRAWS)
def write_odds(
    logits, rows, masks, bits, n, width, stride, words, blocks,
    temperatures, peaks, cut_keys, cut_ids, kept, out,
    M: tl.constexpr, N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """out [n, V]: weights of what is kept, over their sum."""
    program = tl.program_id(0)
    draw, live, start, bits_start = _rows_of(rows, masks, program // blocks, n, stride, words, M)
    column = (program % blocks) * N + tl.arange(0, N)[None, :]
    there = (draw < n)[:, None] & (column < width)
    x = load_logits(logits, start, bits, bits_start, column, live[:, None] & there, MASKED)
    temperature = tl.load(temperatures + draw, mask=live, other=0.0)
    peak = tl.load(peaks + draw, mask=live, other=0.0)
    key = keys_of(x, peak, temperature)
    cut = tl.load(cut_keys + draw, mask=live, other=-1)[:, None]
    last = tl.load(cut_ids + draw, mask=live, other=-1)[:, None]
    total = tl.load(kept + draw, mask=live, other=0)
    keep = ((key < cut) | ((key == cut) & (column <= last))) & (total > 0)[:, None]
    share = weights_of(key).to(tl.float32) / tl.maximum(total, 1).to(tl.float32)[:, None]
    tl.store(out + draw[:, None] * width + column, tl.where(keep, share, 0.0), mask=there)
