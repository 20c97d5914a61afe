"""Causal attention of ragged queries over pages, as `plan.py` has cut the work. Knows nothing of requests.

- Short rows: `_short` computes items, some tokens times a fixed split of positions, for one key head; the query heads
  that share it stand below one another in one product. `_merge` puts a token's splits together, in their order.
- Long rows: `_long` computes a block of queries of one head, walking over its keys.

Both are the softmax of FlashAttention-2 (arXiv 2307.08691), in powers of two; the splits are Flash-Decoding's; that an
item may serve several rows is Hydragen's idea (arXiv 2402.05099). A token's bits depend on its own row alone.

Error, of the largest value: 1e-6 in float32 where scores are of unit size. In bfloat16 scores and sums are float32 all
the same, weights are rounded before they multiply values (2^-9 of each), and the output is. fp8 is read exactly.
"""

from __future__ import annotations

import math
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .kv import PAGE_SLOTS, KvStore
from .plan import BLOCK, BLOCK_WORDS, ITEM_WORDS, SPLIT, AttentionPlan
from .tiles import Tile, tile

LOG2E = 1 / math.log(2)
MERGED = 8192  # numbers that a program of `_merge` holds at once
PROGRAMS = 4  # programs for each multiprocessor: short rows' items are dealt out to so many, not launched one by one
SPLIT_KEYS = tl.constexpr(SPLIT)
BLOCK_TOKENS = tl.constexpr(BLOCK)
PER_ITEM, PER_BLOCK = tl.constexpr(ITEM_WORDS), tl.constexpr(BLOCK_WORDS)
NOWHERE = tl.constexpr(1 << 30)  # beyond every position


def attend(q: Tensor, store: KvStore, layer: int, plan: AttentionPlan, scale: float, window: int | None) -> Tensor:
    """q [T, H, d], any strides but the last, d up to 256 → [T, H·d] in its type; a padding token's is not written.

    `window` w: a query at position p sees only keys at positions > p - w.
    """
    tokens, heads, dim = q.shape
    assert tokens == plan.shape.tokens, (tokens, plan.shape)
    assert q.stride(2) == 1, q.stride()
    assert dim == store.head_dim <= 256, (dim, store.head_dim)
    out = q.new_empty(tokens, heads * dim)
    if plan.shape.items:
        _attend_short(q, out, store, layer, plan, scale, window)
    if plan.shape.blocks:
        _attend_long(q, out, store, layer, plan, scale, window)
    return out


def _attend_short(
    q: Tensor, out: Tensor, store: KvStore, layer: int, plan: AttentionPlan, scale: float, window: int | None
) -> None:
    heads, dim = q.shape[1:]
    kv_heads, shape, (keys, values) = store.kv_heads, plan.shape, store.layers[layer]
    share, width = heads // kv_heads, max(16, triton.next_power_of_2(dim))
    sums = torch.empty(shape.partials, heads, dim, dtype=torch.float32, device=q.device)
    logs = torch.empty(2, shape.partials, heads, dtype=torch.float32, device=q.device)
    sizes = {"K": kv_heads, "G": share, "D": dim, "DP": width, "WINDOW": window is not None}
    chosen = _tile("attend_short", q, width)
    _short[(min(shape.items, _programs(q.device, kv_heads)), kv_heads)](
        q, keys, values, sums, logs[0], logs[1],
        plan.counts, plan.items, plan.members, plan.partials, plan.positions, plan.ancestors, plan.pages,
        scale * LOG2E, window or 0, q.stride(0), q.stride(1), **sizes,
        ANCESTORS=shape.tree_words, M=chosen.m, N=chosen.n, num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
    lanes = triton.next_power_of_2(share)
    _merge[(shape.short_tokens, kv_heads)](
        sums, logs[0], logs[1], out,
        plan.counts, plan.members, plan.partials, plan.keys, plan.positions, window or 0, **sizes,
        GP=lanes, S=max(1, MERGED // (lanes * width)), num_warps=tile("attend_merge", q.device).warps,
    )  # fmt: skip


def _attend_long(
    q: Tensor, out: Tensor, store: KvStore, layer: int, plan: AttentionPlan, scale: float, window: int | None
) -> None:
    heads, dim = q.shape[1:]
    keys, values = store.layers[layer]
    width = max(16, triton.next_power_of_2(dim))
    chosen = _tile("attend_long", q, width)
    assert BLOCK % chosen.m == 0, chosen
    _long[(plan.shape.blocks * (BLOCK // chosen.m), heads)](
        q, keys, values, out,
        plan.counts, plan.blocks, plan.positions, plan.ancestors, plan.pages,
        scale * LOG2E, window or 0, q.stride(0), q.stride(1),
        K=store.kv_heads, G=heads // store.kv_heads, D=dim, DP=width, WINDOW=window is not None,
        M=chosen.m, N=chosen.n, num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip


def _tile(kernel: str, q: Tensor, width: int) -> Tile:
    """Wide heads have tiles of their own, since more must lie in shared memory."""
    return tile(f"{kernel}_{max(256, width * q.element_size())}", q.device)


@cache
def _programs(device: torch.device, kv_heads: int) -> int:
    if device.type != "cuda":
        return PROGRAMS
    return max(1, torch.cuda.get_device_properties(device).multi_processor_count * PROGRAMS // kv_heads)


@triton.jit
def _short(
    q, keys, values, sums, tops, totals,
    counts, items, members, partials, positions, ancestors, pages,
    scale, window, q_token, q_head,
    K: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, WINDOW: tl.constexpr,
    ANCESTORS: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Grid (programs, K). Writes of each token, split and head the greatest score, the weights' sum and the values'."""
    head = tl.program_id(1)
    dims = tl.arange(0, DP)
    for index in range(tl.program_id(0), tl.load(counts), tl.num_programs(0)):
        item = items + index * PER_ITEM
        begin, tokens, low, end = tl.load(item), tl.load(item + 1), tl.load(item + 2), tl.load(item + 3)
        table, start, first = pages + tl.load(item + 4), tl.load(item + 5), tl.load(item + 6)
        for lane in range(0, tokens * G, M):
            lanes = lane + tl.arange(0, M)
            real = lanes < tokens * G
            token = tl.load(members + begin + lanes // G, mask=real, other=0)
            position = tl.load(positions + token, mask=real, other=NOWHERE)
            seen = tl.load(ancestors + token * ANCESTORS, mask=real, other=0)
            query_head = head * G + lanes % G
            wanted = real[:, None] & (dims < D)[None, :]
            at = token.to(tl.int64)[:, None] * q_token + query_head[:, None] * q_head + dims[None, :]
            query = tl.load(q + at, mask=wanted, other=0.0)
            nearest = low
            if WINDOW:
                nearest = tl.maximum(low, tl.maximum(tl.min(position, 0) - window + 1, 0) // N * N)
            top = tl.full([M], float("-inf"), tl.float32)
            total = tl.zeros([M], tl.float32)
            acc = tl.zeros([M, DP], tl.float32)
            for at_key in range(nearest, end, N):
                key = at_key + tl.arange(0, N)
                own = key - start
                visible = (own < 0)[None, :] | ((seen[:, None] >> tl.minimum(tl.maximum(own, 0), 31)[None, :]) & 1 == 1)
                visible = visible & (key < end)[None, :]
                if WINDOW:
                    is_own = (own >= 0) & (key < end)
                    key_position = tl.where(own < 0, key, tl.load(positions + first + own, mask=is_own, other=0))
                    visible = visible & (position[:, None] - key_position[None, :] < window)
                top, total, acc = _fold(
                    query, keys, values, table, key, end, head, visible, top, total, acc, scale, K, D
                )
            partial = tl.load(partials + token, mask=real, other=0) + low // SPLIT_KEYS
            to = partial.to(tl.int64) * (K * G) + query_head
            tl.store(tops + to, top, mask=real)
            tl.store(totals + to, total, mask=real)
            tl.store(sums + to[:, None] * D + dims[None, :], acc, mask=wanted)


@triton.jit
def _fold(
    query, keys, values, table, key, end, head, visible,
    top, total, acc, scale, K: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """One turn of the online softmax: keys `key` [N] of a page table, below `end`, folded into (top, total, acc).

    A slot that is not below `end` may hold anything, NaN too, and is not read. Keys that no query sees change no bit.
    """
    dims = tl.arange(0, query.shape[1])
    inside = key < end
    page = tl.load(table + key // PAGE_SLOTS, mask=inside, other=0).to(tl.int64)
    at = ((page * K + head) * PAGE_SLOTS + key % PAGE_SLOTS)[:, None] * D + dims[None, :]
    held = inside[:, None] & (dims < D)[None, :]
    key_tile = tl.load(keys + at, mask=held, other=0.0).to(query.dtype)
    value_tile = tl.load(values + at, mask=held, other=0.0).to(query.dtype)
    scores = tl.dot(query, tl.trans(key_tile), input_precision="ieee") * scale
    scores = tl.where(visible, scores, float("-inf"))
    new = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(new == float("-inf"), 0.0, new)  # of a query that has seen nothing yet
    weights = tl.exp2(scores - base[:, None])
    kept = tl.exp2(top - base)
    total = total * kept + tl.sum(weights, 1)
    acc = tl.dot(weights.to(query.dtype), value_tile, acc * kept[:, None], input_precision="ieee")
    return new, total, acc


@triton.jit
def _bit(words_0, words_1, words_2, words_3, index):
    """[M, N] whether bit `index` [N] of each row's 128 bits is set, the words being [M] each; none is out of reach."""
    place = index[None, :]
    low = tl.where(place < 32, words_0[:, None], words_1[:, None])
    high = tl.where(place < 96, words_2[:, None], words_3[:, None])
    word = tl.where(place < 64, low, high)
    return ((word >> (place & 31)) & 1 == 1) & (place >= 0) & (place < 128)


@triton.jit
def _merge(
    sums, tops, totals, out,
    counts, members, partials, keys, positions, window,
    K: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, WINDOW: tl.constexpr,
    GP: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """Grid (short tokens, K). S splits at once, from multiples of S on, so that a token's bits depend on it alone."""
    index, head = tl.program_id(0), tl.program_id(1)
    if index < tl.load(counts + 2):
        token = tl.load(members + index)
        first = tl.load(partials + token).to(tl.int64)
        last = tl.load(keys + token) // SPLIT_KEYS
        nearest = 0
        if WINDOW:
            nearest = tl.maximum(tl.load(positions + token) - window + 1, 0) // SPLIT_KEYS
        lane, dims = tl.arange(0, GP), tl.arange(0, DP)
        query_head = head * G + lane
        top = tl.full([GP], float("-inf"), tl.float32)
        total = tl.zeros([GP], tl.float32)
        acc = tl.zeros([GP, DP], tl.float32)
        for low in range(nearest // S * S, last + 1, S):
            split = low + tl.arange(0, S)
            held = ((split >= nearest) & (split <= last))[None, :] & (lane < G)[:, None]
            at = (first + split)[None, :] * (K * G) + query_head[:, None]
            part_top = tl.load(tops + at, mask=held, other=float("-inf"))
            part_total = tl.load(totals + at, mask=held, other=0.0)
            part = tl.load(
                sums + at[:, :, None] * D + dims[None, None, :],
                mask=held[:, :, None] & (dims < D)[None, None, :],
                other=0.0,
            )
            new = tl.maximum(top, tl.max(part_top, 1))
            base = tl.where(new == float("-inf"), 0.0, new)
            weights = tl.exp2(part_top - base[:, None])
            kept = tl.exp2(top - base)
            total = total * kept + tl.sum(part_total * weights, 1)
            acc = acc * kept[:, None] + tl.sum(part * weights[:, :, None], 1)
            top = new
        wanted = (lane < G)[:, None] & (dims < D)[None, :]
        at = (token.to(tl.int64) * (K * G) + query_head)[:, None] * D + dims[None, :]
        total = tl.where(lane < G, total, 1.0)
        tl.store(out + at, (acc / total[:, None]).to(out.dtype.element_ty), mask=wanted)


@triton.jit
def _long(
    q, keys, values, out,
    counts, blocks, positions, ancestors, pages,
    scale, window, q_token, q_head,
    K: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, WINDOW: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Grid (blocks · BLOCK / M, H)."""
    index, skip = tl.program_id(0) // (BLOCK_TOKENS // M), tl.program_id(0) % (BLOCK_TOKENS // M) * M
    block = blocks + index * PER_BLOCK
    tokens = tl.load(block + 1, mask=index < tl.load(counts + 1), other=0)
    if skip < tokens:
        head = tl.program_id(1)
        token, start, table = tl.load(block), tl.load(block + 2), pages + tl.load(block + 4)
        before, is_tree = tl.load(block + 3) + skip, tl.load(block + 5)
        first, row = token + skip - before, skip + tl.arange(0, M)
        dims = tl.arange(0, DP)
        real = row < tokens
        wanted = real[:, None] & (dims < D)[None, :]
        at = (token + row).to(tl.int64)[:, None]
        query = tl.load(q + at * q_token + head * q_head + dims[None, :], mask=wanted, other=0.0)
        position = tl.load(positions + token + row, mask=real, other=NOWHERE)
        query_own = before + tl.arange(0, M)
        end = start + before + tl.minimum(M, tokens - skip)
        # Keys up to `all_see` need no look at who sees whom: those before the row's own, in a chain up to the block.
        all_see = tl.where(is_tree != 0, start, start + before) // N * N
        seen = ancestors + (token + row) * 4
        of_tree = row < tl.where(is_tree != 0, tokens, 0)
        words_0, words_1 = tl.load(seen, mask=of_tree, other=0), tl.load(seen + 1, mask=of_tree, other=0)
        words_2, words_3 = tl.load(seen + 2, mask=of_tree, other=0), tl.load(seen + 3, mask=of_tree, other=0)
        nearest = 0
        if WINDOW:
            nearest = tl.maximum(tl.where(is_tree != 0, start, start + before) - window + 1, 0) // N * N
        top, total = tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32)
        acc = tl.zeros([M, DP], tl.float32)
        for low in range(nearest, all_see, N):
            key = low + tl.arange(0, N)
            visible = (row >= 0)[:, None]
            if WINDOW:
                visible = position[:, None] - key[None, :] < window
            top, total, acc = _fold(
                query, keys, values, table, key, end, head // G, visible, top, total, acc, scale, K, D
            )
        for low in range(tl.maximum(nearest, all_see), end, N):
            key = low + tl.arange(0, N)
            own = key - start
            is_own = (own >= 0) & (key < end)
            chain = own[None, :] <= query_own[:, None]
            related = _bit(words_0, words_1, words_2, words_3, own)
            visible = (own < 0)[None, :] | tl.where(is_tree != 0, related, chain)
            visible = visible & (key < end)[None, :]
            if WINDOW:
                key_position = tl.where(own < 0, key, tl.load(positions + first + own, mask=is_own, other=0))
                visible = visible & (position[:, None] - key_position[None, :] < window)
            top, total, acc = _fold(
                query, keys, values, table, key, end, head // G, visible, top, total, acc, scale, K, D
            )
        total = tl.where(real, total, 1.0)
        to = at * (K * G * D) + head * D + dims[None, :]
        tl.store(out + to, (acc / total[:, None]).to(out.dtype.element_ty), mask=wanted)
