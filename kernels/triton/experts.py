"""A layer of experts without the host: tokens are sorted by expert, and each expert multiplies what is its own. Knows
no models.

A choice is one of a token's `top_k` experts; choice j of token t has the number t·top_k + j. Choices are laid out
expert after expert, each expert's beginning at a multiple of BM places, so that a block of BM places reads one expert's
weights. Where an expert begins is counted on the device: how many blocks there can be at most depends on the number of
tokens alone, and blocks that are not needed return at once. So the launches are the same whatever the tokens choose.

A token's sum is over its own choices, from the largest share to the smallest, so it depends on no other token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .linear import stages_of, step_of, tile_product
from .quantize import Packed, Storage
from .quantize import pack_experts as pack_matrices
from .tiles import Tile, tile

_ROUTED = 16  # tokens a program routes at once
_MANY = 32  # choices an expert has, on average, where large tiles pay
_PARTS = 32  # programs of `_route` whose counts are added up at once


class PackedExperts(NamedTuple):
    """Matrices of E experts: gate_up [E, 2·F, D] and down [E, D, F]."""

    gate_up: Packed
    down: Packed


class Routing(NamedTuple):
    """What the products of one layer share.

    `shares` [T, k] float32, among all experts. `places` holds the number of the choice in each place; expert e has
    `counts[e]` of them, from block `ends[e - 1]` on, and its last block is the one before `ends[e]`: [E]
    int32.
    """

    shares: Tensor
    places: Tensor
    counts: Tensor
    ends: Tensor


def pack_experts(gate_up: Sequence[Tensor], down: Sequence[Tensor], storage: Storage) -> PackedExperts:
    """gate_up [2·F, D] each, gates first; down [D, F] each; see `quantize.pack` for their errors."""
    return PackedExperts(pack_matrices(gate_up, storage), pack_matrices(down, storage))


@triton.jit(do_not_specialize=["tokens"])
def _route(
    logits, stride, shares, chosen, ranks, counts, tokens, EXPERTS: tl.constexpr, TOP: tl.constexpr,
    BT: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Softmax and choices of BT tokens; how many of them chose each expert, and each choice's rank among those."""
    program = tl.program_id(0)
    token = program * BT + tl.arange(0, BT)
    expert = tl.arange(0, BE)
    ok = token < tokens
    seen = ok[:, None] & (expert < EXPERTS)[None, :]
    row = tl.load(logits + token.to(tl.int64)[:, None] * stride + expert[None, :], mask=seen, other=-float("inf"))
    row = row.to(tl.float32)
    # Rows past the last one hold -inf throughout: 0 for them, or their softmax would be NaN.
    row = tl.exp(row - tl.where(ok, tl.max(row, 1), 0.0)[:, None])
    row = row / tl.where(ok, tl.sum(row, 1), 1.0)[:, None]
    before = tl.zeros((BE,), tl.int32)
    row = tl.where(seen, row, -1.0)
    for choice in tl.static_range(TOP):
        share = tl.max(row, 1)
        # The lowest number of the largest share; a row of NaN has no largest, and gets the last expert.
        best = tl.minimum(tl.min(tl.where(row == share[:, None], expert[None, :], EXPERTS), 1), EXPERTS - 1)
        taken = (expert[None, :] == best[:, None]) & ok[:, None]
        row = tl.where(taken, -1.0, row)
        ones = taken.to(tl.int32)
        rank = tl.sum(ones * (tl.cumsum(ones, 0) - 1 + before[None, :]), 1)
        before += tl.sum(ones, 0)
        at = token * TOP + choice
        tl.store(chosen + at, best, mask=ok)
        tl.store(ranks + at, rank, mask=ok)
        tl.store(shares + at, share, mask=ok)
    tl.store(counts + program * EXPERTS + expert, before, mask=expert < EXPERTS)


@triton.jit(do_not_specialize=["parts"])
def _lay_out(
    part_counts, starts, counts, ends, parts, EXPERTS: tl.constexpr, BM: tl.constexpr, BP: tl.constexpr,
    BE: tl.constexpr,
):  # fmt: skip
    """Where each expert's places end, and where in them each part's choices begin: starts [parts, E]. One program."""
    expert = tl.arange(0, BE)
    ok = expert < EXPERTS
    total = tl.zeros((BE,), tl.int32)
    for first in range(0, parts, BP):
        part = first + tl.arange(0, BP)
        seen = (part < parts)[:, None] & ok[None, :]
        total += tl.sum(tl.load(part_counts + part[:, None] * EXPERTS + expert[None, :], mask=seen, other=0), 0)
    blocks = (total + BM - 1) // BM
    end = tl.cumsum(blocks, 0)
    tl.store(counts + expert, total, mask=ok)
    tl.store(ends + expert, end, mask=ok)
    start = (end - blocks) * BM
    for first in range(0, parts, BP):
        part = first + tl.arange(0, BP)
        seen = (part < parts)[:, None] & ok[None, :]
        at = part[:, None] * EXPERTS + expert[None, :]
        own = tl.load(part_counts + at, mask=seen, other=0)
        tl.store(starts + at, start[None, :] + tl.cumsum(own, 0) - own, mask=seen)
        start += tl.sum(own, 0)


@triton.jit(do_not_specialize=["choices"])
def _settle_in(
    chosen, ranks, starts, places, choices, EXPERTS: tl.constexpr, PART: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """Each choice takes its place."""
    choice = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    ok = choice < choices
    expert = tl.load(chosen + choice, mask=ok, other=0)
    start = tl.load(starts + choice // PART * EXPERTS + expert, mask=ok, other=0)
    tl.store(places + start + tl.load(ranks + choice, mask=ok, other=0), choice, mask=ok)


def route(logits: Tensor, top_k: int, rows: int) -> Routing:
    """logits [T, E], E ≤ 512 → the places of all choices, each expert's at multiples of `rows`. Of equal logits the
    lower number is chosen; shares are those of a softmax, within a few steps of float32. Own: a counting sort."""
    tokens, experts = logits.shape
    assert 1 <= top_k <= experts <= 512, (top_k, experts)
    assert logits.stride(1) == 1, logits.stride()
    choices, parts, wide = tokens * top_k, triton.cdiv(tokens, _ROUTED), triton.next_power_of_2(experts)
    device = logits.device
    shares = torch.empty(tokens, top_k, dtype=torch.float32, device=device)
    chosen, ranks = (torch.empty(tokens, top_k, dtype=torch.int32, device=device) for _ in range(2))
    part_counts, starts = (torch.empty(parts, experts, dtype=torch.int32, device=device) for _ in range(2))
    counts, ends = (torch.empty(experts, dtype=torch.int32, device=device) for _ in range(2))
    places = torch.empty(most_blocks(choices, experts, rows) * rows, dtype=torch.int32, device=device)
    _route[(parts,)](
        logits, logits.stride(0), shares, chosen, ranks, part_counts, tokens, experts, top_k, _ROUTED, wide
    )  # fmt: skip
    _lay_out[(1,)](part_counts, starts, counts, ends, parts, experts, rows, _PARTS, wide)
    size = 256
    _settle_in[(triton.cdiv(choices, size),)](
        chosen, ranks, starts, places, choices, experts, _ROUTED * top_k, size
    )  # fmt: skip
    return Routing(shares, places, counts, ends)


def most_blocks(choices: int, experts: int, rows: int) -> int:
    """How many blocks choices can need: each expert that is chosen has at most one block that is not full."""
    return choices // rows + min(experts, choices)


@triton.jit
def _own(places, counts, ends, block, EXPERTS: tl.constexpr, BE: tl.constexpr, BM: tl.constexpr):  # fmt: skip
    """A block's expert, the choices in it [BM], and which of these there are; the expert is EXPERTS past the last."""
    number = tl.arange(0, BE)
    end = tl.load(ends + number, mask=number < EXPERTS, other=2147483647)
    expert = tl.sum((end <= block).to(tl.int32), 0)
    first = tl.max(tl.where(end <= block, end, 0), 0) * BM  # ends rise: the largest of those before
    count = tl.load(counts + expert, mask=expert < EXPERTS, other=0)
    place = block * BM + tl.arange(0, BM)
    ok = place < first + count
    return expert, tl.load(places + place, mask=ok, other=0), ok


@triton.jit
def _expert_product(
    x, x_at, x_ok, w, scale, shift, expert, outs, outs_ok, OUTS, width, padded, steps, w_size, scale_size,
    KIND: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """One expert's weights times the tokens of a block: [BN, BM] float32."""
    w += expert.to(tl.int64) * w_size
    if scale is not None:
        scale += expert.to(tl.int64) * scale_size
    if shift is not None:
        shift += expert.to(tl.int64) * scale_size
    acc = tile_product(
        x, None, x_at, x_ok, w, scale, shift, outs, outs_ok, OUTS, width, padded, 0, steps, KIND, GROUP, False,
        EVEN, BN, BM, BK,
    )  # fmt: skip
    if KIND == "int8" or KIND == "fp8":
        acc *= tl.load(scale + outs, mask=outs_ok, other=0.0)[:, None]
    return acc


@triton.jit
def _gate_up(
    x, places, counts, ends, w, scale, shift, out, stride, inner, width, padded, steps, w_size, scale_size,
    EXPERTS: tl.constexpr, TOP: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr,
    BE: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out [choices, F] = silu(gate) · up of each choice's token."""
    expert, choice, ok = _own(places, counts, ends, tl.program_id(0), EXPERTS, BE, BM)
    if expert >= EXPERTS:
        return
    x_at = (choice // TOP).to(tl.int64) * stride
    outs = tl.program_id(1) * BN + tl.arange(0, BN)
    outs_ok = outs < inner
    gate = _expert_product(
        x, x_at, ok, w, scale, shift, expert, outs, outs_ok, 2 * inner, width, padded, steps, w_size, scale_size,
        KIND, GROUP, EVEN, BN, BM, BK,
    )  # fmt: skip
    up = _expert_product(
        x, x_at, ok, w, scale, shift, expert, outs + inner, outs_ok, 2 * inner, width, padded, steps, w_size,
        scale_size, KIND, GROUP, EVEN, BN, BM, BK,
    )  # fmt: skip
    done = gate / (1.0 + tl.exp(-gate)) * up
    where = choice.to(tl.int64)[None, :] * inner + outs[:, None]
    tl.store(out + where, done.to(out.dtype.element_ty), mask=outs_ok[:, None] & ok[None, :])


@triton.jit
def _down(
    x, places, counts, ends, w, scale, shift, out, outs_count, width, padded, steps, w_size, scale_size,
    EXPERTS: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr, BE: tl.constexpr,
    BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out [choices, D] of x [choices, F]."""
    expert, choice, ok = _own(places, counts, ends, tl.program_id(0), EXPERTS, BE, BM)
    if expert >= EXPERTS:
        return
    outs = tl.program_id(1) * BN + tl.arange(0, BN)
    outs_ok = outs < outs_count
    acc = _expert_product(
        x, choice.to(tl.int64) * width, ok, w, scale, shift, expert, outs, outs_ok, outs_count, width, padded,
        steps, w_size, scale_size, KIND, GROUP, EVEN, BN, BM, BK,
    )  # fmt: skip
    where = choice.to(tl.int64)[None, :] * outs_count + outs[:, None]
    tl.store(out + where, acc.to(out.dtype.element_ty), mask=outs_ok[:, None] & ok[None, :])


@triton.jit
def _mix(parts, shares, out, width, TOP: tl.constexpr, NORMALIZE: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """out [T, D] = the sum over a token's choices, in their order, of share · part."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    total = tl.zeros((SIZE,), tl.float32)
    whole = 0.0
    for choice in tl.static_range(TOP):
        number = token * TOP + choice
        part = tl.load(parts + number * width + at, mask=at < width, other=0.0).to(tl.float32)
        share = tl.load(shares + number)
        total += share * part
        whole += share
    if NORMALIZE:
        total /= whole
    tl.store(out + token * width + at, total.to(out.dtype.element_ty), mask=at < width)


def experts(
    x: Tensor, router_logits: Tensor, weights: PackedExperts, top_k: int, normalize: bool, invariant: bool = False
) -> Tensor:
    """See `table.Ops.experts`; x [T, D], rows strided. `invariant` keeps the tile the same for all numbers of tokens.

    Against float64 on the same quantized weights, errors are those of float32 sums and of roundings to x's type after
    the gate, after each expert, and at the end. Own; blocks of one expert as in fused_moe of vLLM (2024).
    """
    tokens, width = x.shape
    gate_up, down = weights
    inner = down.width
    assert width == gate_up.width == down.outs, (width, gate_up.width, down.outs)
    out = torch.empty(tokens, width, dtype=x.dtype, device=x.device)
    if not tokens:
        return out
    assert len(router_logits) == tokens, router_logits.shape
    assert x.stride(1) == 1, x.stride()
    count, choices = router_logits.shape[1], tokens * top_k
    many = choices >= _MANY * count and not invariant and x.dtype != torch.float32
    shape = tile("experts_many" if many else "experts_few", x.device)
    routing = route(router_logits, top_k, shape.m)
    grid = most_blocks(choices, count, shape.m)
    hidden = torch.empty(choices, inner, dtype=x.dtype, device=x.device)
    parts = torch.empty(choices, width, dtype=x.dtype, device=x.device)
    wide, how = triton.next_power_of_2(count), {"num_warps": shape.warps, "num_stages": stages_of(x, shape)}
    _gate_up[grid, triton.cdiv(inner, shape.n)](
        x, *routing[1:], *_tensors(gate_up), hidden, x.stride(0), inner, *_sizes(gate_up, shape),
        count, top_k, *_options(gate_up, shape), wide, shape.n, shape.m, step_of(gate_up, shape), **how,
    )  # fmt: skip
    _down[grid, triton.cdiv(width, shape.n)](
        hidden, *routing[1:], *_tensors(down), parts, width, *_sizes(down, shape),
        count, *_options(down, shape), wide, shape.n, shape.m, step_of(down, shape), **how,
    )  # fmt: skip
    size = min(1024, triton.next_power_of_2(width))
    _mix[tokens, triton.cdiv(width, size)](parts, routing.shares, out, width, top_k, normalize, size)
    return out


def _tensors(packed: Packed) -> tuple[Tensor, Tensor | None, Tensor | None]:
    return packed.weight, packed.scale, packed.shift


def _sizes(packed: Packed, shape: Tile) -> tuple[int, int, int, int, int]:
    """in, in as stored, turns of the loop, and numbers from one expert to the next in the weight and in the scales."""
    pairs = packed.kind == "int4"
    padded = packed.weight.shape[1] * 2 * packed.group if pairs else packed.weight.shape[-1]
    apart = 0 if packed.scale is None else packed.scale.stride(0)
    return packed.width, padded, triton.cdiv(packed.width, step_of(packed, shape)), packed.weight.stride(0), apart


def _options(packed: Packed, shape: Tile) -> tuple[str, int, bool]:
    return packed.kind, packed.group, packed.width % step_of(packed, shape) == 0
