"""Ranking, filtering and drawing over rows of logits. Pure functions of tensors.

Every result of a row is the same whatever other rows stand beside it: each step works along the row alone, and the size
of a candidate list is chosen from that row's own parameters. Rank means (higher value first, then lower id), so that
ties have one answer.

Knows nothing of requests, seeds or penalties.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .uploads import upload

_RANK_BLOCK = 16  # ids per block when candidates are sought by block maxima
_SUM_BLOCK = 64  # ids per block of the two-level cumulative sum
_BINS, _BINS_PER_UNIT = 4096, 64  # histogram of scaled logits below their maximum
_SLACK = 8  # candidates beyond the last wanted rank, to see how far a tie reaches


class Filters(NamedTuple):
    """Filters of n rows: `top_k` [n] int64 (the width of the head: off), `top_p` [n] float64 (1: off), `min_p` [n]
    float64 (0: off)."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def take(self, rows: Tensor) -> Filters:
        return Filters(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def argmax(logits: Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
    """[R, V] and n of its rows → (ids [n], their values [n]); of equal values the lowest id."""
    if logits.device.type == "cpu":  # numpy's argmax is vectorised, torch's on a CPU is not: 7 µs against 60 µs a row
        table = logits.numpy()
        best = np.array([table[row].argmax() for row in rows], np.int64)
        return torch.from_numpy(best), torch.from_numpy(table[rows, best])
    if list(rows) != list(range(len(logits))):
        logits = logits.index_select(0, upload(np.array(rows, np.int64), logits.device))
    ids = logits.argmax(dim=-1)
    return ids, logits.gather(1, ids[:, None])[:, 0]


def log_norm(logits: Tensor) -> Tensor:
    """[R, V] → log of the sum of exponentials [R]. Through softmax, which is faster than `logsumexp` on a CPU and whose
    rows do not depend on each other."""
    top = logits.amax(dim=-1)
    return top - torch.softmax(logits, dim=-1).amax(dim=-1).log()


def scale(logits: Tensor, temperatures: Tensor) -> Tensor:
    """In place: (logits - their maximum) / temperature, rows of [R, V]. Subtracting first keeps close logits apart at a
    tiny temperature. The maximum of each row becomes 0; a row without a finite logit becomes NaN."""
    divisor = temperatures.clamp(min=torch.finfo(torch.float32).tiny)
    return logits.sub_(logits.amax(dim=-1, keepdim=True)).div_(divisor[:, None])


def ranked(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first `count` ranks of each row, if ties allow.

    Returns (values [R, n], ids [R, n], floor [R]) with n = min(count + slack, V). Ranks whose value is above `floor`
    are exact; at `floor` there may be ties beyond the list. `floor` is -inf when the list holds everything finite.
    """
    rows, width = logits.shape
    wanted = min(count + _SLACK, width)
    blocks = width // _RANK_BLOCK
    if blocks < 4 * wanted:
        values, ids = logits.topk(wanted, dim=-1)
    else:
        main = blocks * _RANK_BLOCK
        # The `wanted` blocks with the highest maxima hold `wanted` of the highest values.
        maxima = logits[:, :main].view(rows, blocks, _RANK_BLOCK).amax(dim=-1)
        first = maxima.topk(wanted, dim=-1, sorted=False).indices * _RANK_BLOCK
        inside = torch.arange(_RANK_BLOCK, device=logits.device)
        columns = (first[:, :, None] + inside).view(rows, -1)
        tail = torch.arange(main, width, device=logits.device).expand(rows, -1)
        columns = torch.cat((columns, tail), dim=1)
        values, at = logits.gather(1, columns).topk(wanted, dim=-1)
        ids = columns.gather(1, at)
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, order)
    floor = values[:, -1] if wanted < width else torch.full_like(values[:, -1], -torch.inf)
    return values, ids, floor


def best(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first `count` ranks of each row: (values [R, count], ids [R, count]); fewer where V is smaller."""
    values, ids, floor = ranked(logits, count)
    count = min(count, logits.shape[1])
    values, ids = values[:, :count], ids[:, :count]
    tied = (values[:, -1] <= floor) & (floor > -torch.inf)
    if bool(tied.any()):
        full = logits[tied].sort(dim=-1, descending=True, stable=True)
        values, ids = values.clone(), ids.clone()
        values[tied], ids[tied] = full.values[:, :count], full.indices[:, :count]
    return values, ids


def kept_ranks(weights: Tensor, filters: Filters, total: Tensor) -> Tensor:
    """How many ranks survive top-k, then top-p, then min-p: [R].

    `weights` [R, n] float64 are exponentials of scaled logits in rank order, the first being 1; `total` [R] is their
    sum after top-k. top-p keeps a rank while the mass before it is below top_p · total, so the rank that crosses the
    line stays; min-p keeps weights of at least min_p times the first. The first rank always stays, one of weight 0
    never.
    """
    n = weights.shape[1]
    rank = torch.arange(n, device=weights.device)
    before = weights.cumsum(dim=-1) - weights
    line = torch.where(filters.top_p < 1, filters.top_p * total, torch.inf)
    keep = (rank < filters.top_k[:, None]) & (before < line[:, None])
    keep &= (weights >= filters.min_p[:, None]) & (weights > 0)
    keep[:, 0] = True
    return keep.sum(dim=-1)


class Kept(NamedTuple):
    """What filters leave of n rows: `weights` [n, c] float64 and `ids` [n, c] in rank order, of which the first
    `kept` [n] stay; not to be used where `sure` [n] is false: a longer list is needed there."""

    weights: Tensor
    ids: Tensor
    kept: Tensor
    sure: Tensor


def _kept(scaled: Tensor, filters: Filters, candidates: int) -> Kept:
    """Filter scaled logits [R, V], looking at the best `candidates` tokens."""
    width = scaled.shape[1]
    values, ids, floor = ranked(scaled, candidates)
    n = values.shape[1]
    weights = values.double().exp_()
    listed = filters.top_k <= n
    within = torch.arange(n, device=scaled.device) < filters.top_k[:, None]
    total = weights.masked_fill(~within, 0.0).sum(dim=-1)
    if not bool(listed.all()):
        everything = torch.softmax(scaled, dim=-1).amax(dim=-1).double().reciprocal()
        total = torch.where(listed, total, everything)
    count = kept_ranks(weights, filters, total)
    last = values.gather(1, count[:, None] - 1)[:, 0]
    sure = (last > floor) & (listed | (filters.top_k == width))
    return Kept(weights, ids, count, sure)


def draw_ranked(scaled: Tensor, filters: Filters, u: Tensor, candidates: int) -> Tensor:
    """Filter and draw: scaled logits [R, V], u [R] float64 in [0, 1) → ids [R].

    The best `candidates` tokens are looked at; for a row that needs more, all are.
    """
    weights, ids, count, sure = _kept(scaled, filters, candidates)
    tokens = _draw_kept(weights, ids, count, u)
    if not bool(sure.all()):
        rest = (~sure).nonzero()[:, 0]
        if scaled.device.type == "cpu":
            cuts = zip(rest.tolist(), *(part[rest].tolist() for part in (*filters, u)), strict=True)
            tokens[rest] = torch.tensor([draw_wide(scaled[at].numpy(), *cut) for at, *cut in cuts])
        else:
            tokens[rest] = draw_sorted(scaled[rest], filters.take(rest), u[rest])
    return tokens


def probabilities(scaled: Tensor, filters: Filters, candidates: int) -> Tensor:
    """What the draws of this module draw from: scaled logits [R, V] → [R, V] float32, rows summing to 1."""
    odds = torch.zeros_like(scaled)
    weights, ids, count, sure = _kept(scaled, filters, candidates)
    if not bool(sure.all()):
        rest = (~sure).nonzero()[:, 0]
        odds[rest] = _probabilities_sorted(scaled[rest], filters.take(rest))
    outside = torch.arange(weights.shape[1], device=scaled.device) >= count[:, None]
    weights = weights.masked_fill(outside, 0.0)
    weights /= weights.sum(dim=-1, keepdim=True)
    taken = sure.nonzero()[:, 0]
    odds[taken] = odds[taken].scatter_(1, ids[taken], weights[taken].float())
    return odds


def _probabilities_sorted(scaled: Tensor, filters: Filters) -> Tensor:
    values, ids = scaled.sort(dim=-1, descending=True, stable=True)
    weights = values.double().exp_()
    rank = torch.arange(scaled.shape[1], device=scaled.device)
    total = weights.masked_fill(rank >= filters.top_k[:, None], 0.0).sum(dim=-1)
    weights.masked_fill_(rank >= kept_ranks(weights, filters, total)[:, None], 0.0)
    weights /= weights.sum(dim=-1, keepdim=True)
    return torch.zeros_like(scaled).scatter_(1, ids, weights.float())


def _draw_kept(weights: Tensor, ids: Tensor, count: Tensor, u: Tensor) -> Tensor:
    """Draw among the first `count` ranks of each row, in the order of ids."""
    longest = int(count.max())
    outside = torch.arange(longest, device=ids.device) >= count[:, None]
    ids, order = ids[:, :longest].masked_fill(outside, torch.iinfo(torch.int64).max).sort(dim=-1)
    weights = weights[:, :longest].masked_fill(outside, 0.0).gather(1, order)
    cumulative = weights.cumsum(dim=-1)
    target = u * cumulative[:, -1]
    at = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    return ids.gather(1, torch.minimum(at, count - 1)[:, None])[:, 0]


def draw_sorted(scaled: Tensor, filters: Filters, u: Tensor) -> Tensor:
    """`draw_ranked` for rows where a short list does not do: everything is ranked."""
    values, ids = scaled.sort(dim=-1, descending=True, stable=True)
    weights = values.double().exp_()
    within = torch.arange(scaled.shape[1], device=scaled.device) < filters.top_k[:, None]
    total = weights.masked_fill(~within, 0.0).sum(dim=-1)
    return _draw_kept(weights, ids, kept_ranks(weights, filters, total), u)


def draw_wide(scaled: npt.NDArray[np.float32], top_k: int, top_p: float, min_p: float, u: float) -> int:
    """`draw_sorted` of one row [V] on a CPU, at about a twentieth of the cost: a floor under everything that can be
    kept is found without sorting, and only what lies above it is ranked."""
    rough = np.exp(scaled)
    floor = np.float32(-np.inf)
    total = float(rough.sum(dtype=np.float64))
    if top_k < len(scaled):
        floor = np.partition(scaled, len(scaled) - top_k)[len(scaled) - top_k]
    elif top_p < 1:
        bins = np.minimum(scaled * np.float32(-_BINS_PER_UNIT), np.float32(_BINS - 1)).astype(np.int64)
        mass = np.bincount(bins, rough, _BINS).cumsum()
        # One bin further than the mass asks for, so that rounding at the edge of a bin cannot matter.
        edge = int(np.searchsorted(mass, top_p * total)) + 2
        if edge < _BINS:
            floor = np.float32(-edge / _BINS_PER_UNIT)
    ids = np.flatnonzero(scaled >= floor)  # in the order of ids
    values = scaled[ids]
    down = -np.sort(-values)
    ranked_weights = np.exp(down, dtype=np.float64)
    if top_k < len(scaled):
        total = float(ranked_weights[:top_k].sum())
    filters = Filters(torch.tensor([top_k]), torch.tensor([top_p]).double(), torch.tensor([min_p]).double())
    count = int(kept_ranks(torch.from_numpy(ranked_weights)[None], filters, torch.tensor([total]).double())[0])
    cut = down[count - 1]
    tied = values == cut
    keep = (values > cut) | (tied & (tied.cumsum() <= count - int((values > cut).sum())))
    ids = ids[keep]
    steps = np.exp(scaled[ids], dtype=np.float64).cumsum()
    at = int(np.searchsorted(steps, u * steps[-1], side="right"))
    return int(ids[min(at, len(ids) - 1)])


def draw_dense(weights: Tensor, u: Tensor) -> Tensor:
    """Inverse of the cumulative distribution in the order of ids: weights [R, V] float32, u [R] float64 → ids [R].

    Two levels: blocks of 64 weights are summed in float32 (relative error near 1e-7 of the block, far below what any
    test of the distribution can see), block sums and the chosen block are accumulated in float64. A token of weight 0
    is never drawn.
    """
    rows, width = weights.shape
    blocks = width // _SUM_BLOCK
    main = blocks * _SUM_BLOCK
    sums = weights[:, :main].view(rows, blocks, _SUM_BLOCK).sum(dim=-1)
    if main < width:
        sums = torch.cat((sums, weights[:, main:].sum(dim=-1, keepdim=True)), dim=1)
    cumulative = sums.double().cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    target = u[:, None] * total
    block = torch.searchsorted(cumulative, target, right=True)
    # Rounding may carry the target up to the total; the last block of any weight is where the total is first reached.
    block = torch.minimum(block, torch.searchsorted(cumulative, total))
    target = target - torch.where(block > 0, cumulative.gather(1, (block - 1).clamp_(min=0)), 0.0)
    columns = block * _SUM_BLOCK + torch.arange(_SUM_BLOCK, device=weights.device)
    inside = weights.gather(1, columns.clamp(max=width - 1)).masked_fill(columns >= width, 0.0)
    steps = inside.double().cumsum(dim=-1)
    at = torch.searchsorted(steps, target, right=True)
    at = torch.minimum(at, torch.searchsorted(steps, steps[:, -1:].contiguous()))
    return (block * _SUM_BLOCK + at)[:, 0]
