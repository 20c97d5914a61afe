"""Which drafted tokens stand, and what comes after them, without the host.

A *window* is the draws of one sequence in a pass: the one after its last token, and one after every drafted token. A
point mass (forced, suffix) stands where the target drew the same; a draft model's token by rejection sampling, which
`settle` does draw by draw. Knows nothing of where distributions and numbers come from.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .ranks import first_above, target_of
from .tiles import tile

_SCALE: tl.constexpr = tl.constexpr(1 << 60)  # of probabilities: sums are exact in int64, whatever their order


class Accepted(NamedTuple):
    """Of W windows: `counts` [W] int32 drafted tokens stand; `tokens` [W] int64 is what was drawn after them."""

    counts: Tensor
    tokens: Tensor


class AcceptedPath(NamedTuple):
    """`Accepted` in trees; `paths` [W, longest] int32: the nodes that stand, the one below the root first; then -1."""

    counts: Tensor
    tokens: Tensor
    paths: Tensor


def accept(sampled: Tensor, drafted: Tensor, first: Tensor, longest: int) -> Accepted:
    """Chains. sampled [n] int64: what each draw gave; drafted [n] int64: the token drafted after the same place, -1
    after a window's last; first [W] int32: each window's first draw (negative: padding, whose token is -1).

    No window drafts more than `longest`. Exact.
    """
    windows = len(first)
    count = torch.empty(windows, dtype=torch.int32, device=first.device)
    token = torch.empty(windows, dtype=torch.int64, device=first.device)
    if windows:
        size = tile("accept", first.device)
        _accept[(triton.cdiv(windows, size.m),)](
            sampled, drafted, first, count, token, windows, len(sampled),
            M=size.m, N=triton.next_power_of_2(max(longest, 1) + 1), num_warps=size.warps,
        )  # fmt: skip
    return Accepted(count, token)


def accept_tree(
    sampled: Tensor, tokens: Tensor, parents: Tensor, first: Tensor, lengths: Tensor, longest: int
) -> AcceptedPath:
    """Trees of lengths[w] ≤ longest ≤ 127 drafted nodes. Node 0 of window w is its sequence's last token and stands;
    node i, of `tokens[first[w] + i]` (int64), has the parent parents[first[w] + i] < i (int32). It stands where its
    parent does and the draw there, `sampled` at the parent, gave its token. The deepest node that stands is taken, of
    equal ones the first. Shapes and padding as in `accept`. Exact.
    """
    windows = len(first)
    count = torch.empty(windows, dtype=torch.int32, device=first.device)
    token = torch.empty(windows, dtype=torch.int64, device=first.device)
    path = torch.empty((windows, longest), dtype=torch.int32, device=first.device)
    if windows:
        nodes = triton.next_power_of_2(longest + 1)
        _accept_tree[(windows,)](
            sampled, tokens, parents, first, lengths, count, token, path, longest,
            N=nodes, ROUNDS=max(nodes - 1, 1).bit_length(), num_warps=tile("accept", first.device).warps,
        )  # fmt: skip
    return AcceptedPath(count, token, path)


def settle(target: Tensor, draft: Tensor, guesses: Tensor, stands: Tensor, instead: Tensor) -> Tensor:
    """`runtime/rejection.py` on the device: tokens [n] int64 distributed as `target`.

    target and draft [n, V] float32, rows that sum to 1; guesses [n] int64, drawn from `draft`, or -1 for none: that
    token is drawn from `target` alone; stands and instead [n] float64 in [0, 1), the numbers of the two draws. A row of
    zeros in `target` gives -1. Residuals count to 2⁻⁶⁰.
    """
    n, width = target.shape
    tokens = torch.empty(n, dtype=torch.int64, device=target.device)
    if not n:
        return tokens
    assert target.stride(1) == 1
    assert draft.stride(1) == 1
    size = tile("settle", target.device)
    chunks, blocks, groups = triton.cdiv(width, size.k), triton.cdiv(width, size.n), triton.cdiv(n, size.m)
    masses = torch.empty((2, n, chunks), dtype=torch.int64, device=target.device)
    given = (target, draft, target.stride(0), draft.stride(0), guesses, stands)
    _find_residuals[(groups * blocks,)](
        *given, *masses, n, width, blocks, chunks, M=size.m, N=size.n, CHUNK=size.k, num_warps=size.warps
    )
    _settle[(groups,)](
        *given, *masses, instead, tokens, n, width, chunks,
        M=size.m, CHUNK=size.k, CHUNKS=triton.next_power_of_2(chunks), num_warps=size.warps,
    )  # fmt: skip
    return tokens


def accept_random(
    target: Tensor, draft: Tensor, drafted: Tensor, stands: Tensor, instead: Tensor, first: Tensor, longest: int
) -> Accepted:
    """`settle` at every place of chains, then `accept`: a draft model's windows, with -1 drafted after the last token,
    whose number `instead` draws from the target."""
    return accept(settle(target, draft, drafted, stands, instead), drafted, first, longest)


@triton.jit(do_not_specialize=["windows", "draws"], do_not_specialize_on_alignment=["sampled", "drafted", "first"])
def _accept(sampled, drafted, first, count, token, windows, draws, M: tl.constexpr, N: tl.constexpr):
    window = tl.program_id(0) * M + tl.arange(0, M)
    there = window < windows
    start = tl.load(first + window, mask=there, other=-1)
    real = start >= 0
    step = tl.arange(0, N)[None, :]
    at = start[:, None] + step
    inside = real[:, None] & (at < draws)
    guess = tl.load(drafted + at, mask=inside, other=-1)
    drawn = tl.load(sampled + at, mask=inside, other=-1)
    stood = tl.min(tl.where((drawn == guess) & (guess >= 0), N, step), 1)
    tl.store(count + window, tl.where(real, stood, 0), mask=there)
    tl.store(
        token + window, tl.load(sampled + start + stood, mask=real & (start + stood < draws), other=-1), mask=there
    )


@triton.jit(do_not_specialize_on_alignment=["sampled", "tokens", "parents", "first", "lengths"])
def _accept_tree(
    sampled, tokens, parents, first, lengths, count, token, path, longest, N: tl.constexpr, ROUNDS: tl.constexpr
):
    """One tree. Every node looks at an ancestor that is twice as far in each round, until all look at the root."""
    window = tl.program_id(0).to(tl.int64)
    start = tl.load(first + window).to(tl.int64)
    real = start >= 0
    node = tl.arange(0, N)
    last = tl.where(real, tl.load(lengths + window), 0)
    inside = (node > 0) & (node <= last)
    ancestor = tl.load(parents + start + node, mask=inside, other=0).to(tl.int32)
    own = tl.load(tokens + start + node, mask=inside, other=-1)
    drawn = tl.load(sampled + start + ancestor, mask=inside, other=-1)
    stands = ((node == 0) | (inside & (own >= 0) & (own == drawn))).to(tl.int32)
    depth = (node > 0).to(tl.int32)
    for _ in range(ROUNDS):
        stands = tl.minimum(stands, tl.gather(stands, ancestor, 0))
        depth += tl.gather(depth, ancestor, 0)
        ancestor = tl.gather(ancestor, ancestor, 0)
    depth = tl.where(stands > 0, depth, -1)
    deepest = tl.max(depth, 0)
    best = tl.min(tl.where(depth == deepest, node, N), 0)
    tl.store(count + window, tl.where(real, deepest, 0))
    tl.store(token + window, tl.load(sampled + start + best, mask=real, other=-1))
    tl.store(path + window * longest + node, tl.full([N], -1, tl.int32), mask=(node < longest) & (node >= deepest))
    at = best
    for left in range(0, deepest):
        tl.store(path + window * longest + deepest - 1 - left, at)
        at = tl.load(parents + start + at).to(tl.int32)


@triton.jit
def _kept(target, draft, target_stride, draft_stride, guesses, stands, draw, there):
    """(guesses [M], whether each stands)."""
    guess = tl.load(guesses + draw, mask=there, other=-1)
    real = there & (guess >= 0)
    wanted = tl.load(target + draw * target_stride + guess, mask=real, other=0.0).to(tl.float64)
    offered = tl.load(draft + draw * draft_stride + guess, mask=real, other=0.0).to(tl.float64)
    return guess, real & (tl.load(stands + draw, mask=there, other=0.0) * offered < wanted)


@triton.jit
def _residual(target, draft, target_stride, draft_stride, draw, guess, column, there):
    """([M, N] residual, target), in parts of `_SCALE`."""
    wanted = tl.load(target + (draw * target_stride)[:, None] + column, mask=there, other=0.0)
    guessed = there & (guess >= 0)[:, None]
    offered = tl.load(draft + (draw * draft_stride)[:, None] + column, mask=guessed, other=0.0)
    return (tl.maximum(wanted - offered, 0.0) * _SCALE).to(tl.int64), (wanted * _SCALE).to(tl.int64)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["guesses", "stands"])
def _find_residuals(
    target, draft, target_stride, draft_stride, guesses, stands, residuals, targets, n, width, blocks, chunks,
    M: tl.constexpr, N: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """residuals and targets [n, chunks]: sums of chunks, for draws whose guess does not stand; 0 for others."""
    program = tl.program_id(0)
    block = program % blocks
    draw = (program // blocks * M + tl.arange(0, M)).to(tl.int64)
    there = draw < n
    guess, kept = _kept(target, draft, target_stride, draft_stride, guesses, stands, draw, there)
    open_ = there & (kept == 0)
    column = block * N + tl.arange(0, N)[None, :]
    residual, whole = _residual(
        target, draft, target_stride, draft_stride, draw, guess, column, open_[:, None] & (column < width)
    )
    chunk = block * (N // CHUNK) + tl.arange(0, N // CHUNK)[None, :]
    at = draw[:, None] * chunks + chunk
    those = there[:, None] & (chunk < chunks)
    tl.store(residuals + at, tl.sum(tl.reshape(residual, [M, N // CHUNK, CHUNK]), 2), mask=those)
    tl.store(targets + at, tl.sum(tl.reshape(whole, [M, N // CHUNK, CHUNK]), 2), mask=those)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["guesses", "stands", "instead"])
def _settle(
    target, draft, target_stride, draft_stride, guesses, stands, residuals, targets, instead, tokens, n, width, chunks,
    M: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """The guess, or a draw from the residual; where rounding left none, the two are equal: from the target."""
    draw = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)
    there = draw < n
    guess, kept = _kept(target, draft, target_stride, draft_stride, guesses, stands, draw, there)
    every = tl.arange(0, CHUNKS)[None, :]
    at = draw[:, None] * chunks + every
    those = there[:, None] & (every < chunks)
    mass = tl.load(residuals + at, mask=those, other=0)
    nothing = tl.sum(mass, 1) == 0
    mass = tl.where(nothing[:, None], tl.load(targets + at, mask=those, other=0), mass)
    total = tl.sum(mass, 1)
    goal = target_of(tl.load(instead + draw, mask=there, other=0.0), total)
    chunk, before = first_above(mass, goal)
    column = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    residual, whole = _residual(
        target, draft, target_stride, draft_stride, draw, guess, column, there[:, None] & (column < width)
    )
    found, _ = first_above(tl.where(nothing[:, None], whole, residual), goal - before)
    token = tl.where(total > 0, chunk * CHUNK + found, -1).to(tl.int64)
    tl.store(tokens + draw, tl.where(kept, guess, token), mask=there)
