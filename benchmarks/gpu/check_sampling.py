"""Draws and verification on the device: token by token against float64, and by chi-square."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bosquet.kernels.triton.philox import Counters, uniforms
from bosquet.kernels.triton.sampling import DrawRows, draw, propose
from bosquet.kernels.triton.verify import accept, accept_tree, settle
from bosquet.runtime.random_numbers import Purpose
from bosquet.runtime.random_numbers import uniforms as host_uniforms

from .bed import Bed
from .check_attention import tree
from .floors import chi_square, deviation
from .report import Finding, exact

Filters = tuple[float, int, float, float]  # temperature, top-k, top-p, min-p

FILTERS: tuple[Filters, ...] = (
    (0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.7, 0, 0.9, 0.0), (1.0, 40, 1.0, 0.0), (1.5, 900, 0.97, 0.0),
    (1.0, 0, 1.0, 0.05), (1.2, 50, 0.9, 0.02), (3.0, 0, 0.999, 0.0),
)  # fmt: skip
NEAR = 2e-6  # of an edge, at which rounding to float32 may give the neighbour
DEVIATIONS = 4.5


def run(bed: Bed) -> None:
    width = bed.pick(bed.sizes.vocabulary, 100)
    for filters in FILTERS if not bed.tiny else FILTERS[6:7]:
        name = "draws, T {}, top-k {}, top-p {}, min-p {}".format(*filters)
        bed.case(name, partial(_exact, bed, width, filters))
        if filters[0]:
            bed.case(f"chi-square of {name}", partial(_frequencies, bed, filters))
    bed.case("random numbers of the host's", partial(_numbers, bed))
    bed.case("chi-square of rejection sampling", partial(_settled, bed))
    bed.case("accepted chains", partial(_chains, bed))
    bed.case("accepted trees", partial(_trees, bed))


def rows_of(bed: Bed, rows: Any, filters: Filters, u: Any, bits: Tensor | None = None) -> DrawRows:
    """Every draw with the same filters; every other one under the first mask, where there is one."""
    count = len(rows)
    mask = [-1 if bits is None or i % 2 else 0 for i in range(count)]
    temperature, top_k, top_p, min_p = filters
    return DrawRows(
        bed.numbers(rows, torch.int32),
        torch.full((count,), temperature, dtype=torch.float32, device=bed.device),
        torch.full((count,), top_k, dtype=torch.int32, device=bed.device),
        torch.full((count,), top_p, dtype=torch.float64, device=bed.device),
        torch.full((count,), min_p, dtype=torch.float64, device=bed.device),
        u if isinstance(u, Counters) else bed.numbers(u, torch.float64),
        bed.numbers(mask, torch.int32),
        bits,
    )


def expected(logits: Tensor, filters: Filters) -> tuple[Tensor, float]:
    """(probabilities [V] float64 of one row, the share of tokens so near a filter's edge that rounding decides)."""
    temperature, top_k, top_p, min_p = filters
    wide = logits.double()
    ranked, ids = wide.sort(descending=True, stable=True)  # of equal ones the lowest id comes first
    kept, open_ = torch.zeros_like(wide), 0.0
    if temperature <= 0 or top_k == 1:
        kept[ids[0]] = 1.0
        return kept, open_
    weights = ((ranked - ranked[0]) / temperature).exp()
    if top_k:
        weights = weights[:top_k]
    if top_p < 1:
        shares = weights / weights.sum()
        before = shares.cumsum(0) - shares
        open_ += float(shares[(before - top_p).abs() < NEAR].sum())
        weights = weights[before < top_p]
    if min_p:
        open_ += float((weights / weights.sum())[(weights - min_p).abs() < NEAR].sum())
        weights = weights[weights >= min_p]
    kept[ids[: len(weights)]] = weights / weights.sum()
    return kept, open_


def _exact(bed: Bed, width: int, filters: Filters) -> Finding:
    """Tokens, and the distributions that they are drawn from."""
    count = bed.pick(24, 4)
    logits = bed.noise(count // 2, width, dtype=torch.float32) * 3
    logits[0] = logits[0].round()  # full of ties
    bits = torch.randint(-(2**31), 2**31, (1, -(-width // 32)), device=bed.device).to(torch.int32)
    tokens_at = torch.arange(width, device=bed.device)
    free = (bits[0, tokens_at // 32] >> (tokens_at % 32).to(torch.int32)) & 1 == 1
    rows, u = [i // 2 for i in range(count)], np.random.default_rng(7).random(count)
    tokens, odds = propose(logits, rows_of(bed, rows, filters, u, bits))
    wrong, near, worst = [], 0, 0.0
    for i, row in enumerate(rows):
        own = logits[row] if i % 2 else logits[row].masked_fill(~free, -torch.inf)
        want, open_ = expected(own, filters)
        edges = want.cumsum(0)
        token = int(torch.searchsorted(edges, torch.tensor(u[i], dtype=torch.float64, device=bed.device), right=True))
        token = min(token, int(want.nonzero()[-1]))
        distance = float((edges - u[i]).abs().min()) if filters[0] else 1.0
        if open_ == 0:
            worst = max(worst, float(((odds[i].double() - want).abs() / (want * 2.0**-18 + 2.0**-43)).max()))
        if distance < NEAR + 2 * open_:
            near += 1
            continue
        if int(tokens[i]) != token:
            wrong.append([i, int(tokens[i]), token])
    right = not wrong and worst <= 1 and near < count
    said = f"{count - near - len(wrong)} of {count - near}"
    return exact(right, said, wrong=wrong, near=near, odds=worst)


def _frequencies(bed: Bed, filters: Filters) -> Finding:
    width, count = 40, bed.pick(100_000, 300)
    logits = bed.noise(1, width, dtype=torch.float32) * 2
    seeds = bed.numbers(np.random.default_rng(5).integers(-(2**63), 2**63, count), torch.int64)
    zero = torch.zeros(count, dtype=torch.int32, device=bed.device)
    asked = Counters(seeds, zero, zero.to(torch.int64), int(Purpose.SAMPLE))
    tokens = draw(logits, rows_of(bed, np.zeros(count, np.int32), filters, asked))
    return _chi(tokens, expected(logits[0], filters)[0])


def _chi(tokens: Tensor, chances: Tensor) -> Finding:
    counts = torch.bincount(tokens.clamp(min=0), minlength=len(chances)).tolist()
    statistic, freedom = chi_square(counts, chances.tolist())
    far = deviation(statistic, freedom) if int(tokens.min()) >= 0 else float("inf")
    right = far < DEVIATIONS
    facts = {"right": right, "statistic": statistic, "freedom": freedom}
    return Finding(f"{far:+.1f} sigma", f"below {DEVIATIONS} sigma", "", "ok" if right else "WRONG", facts)


def _numbers(bed: Bed) -> Finding:
    rng, count = np.random.default_rng(0), bed.pick(5000, 20)
    seeds, positions = rng.integers(-(2**63), 2**63, count), rng.integers(0, 2**62, count)
    choices = rng.integers(0, 2**31, count)
    right = True
    kinds = ((seeds, torch.int64), (choices, torch.int32), (positions, torch.int64))
    numbers = [bed.numbers(x, kind) for x, kind in kinds]
    for purpose in Purpose:
        asked = Counters(numbers[0], numbers[1], numbers[2], int(purpose))
        want = host_uniforms(seeds.tolist(), choices.tolist(), positions.tolist(), purpose)
        right = right and bool((uniforms(asked).cpu().numpy() == want).all())
    return exact(right, f"{count} of each purpose")


def _settled(bed: Bed) -> Finding:
    """Guesses of another distribution become draws of the target's."""
    width, count = 40, bed.pick(100_000, 300)
    target, draft = ((bed.noise(width, seed=s, dtype=torch.float32) * 1.5).softmax(0) for s in (1, 2))
    rng = np.random.default_rng(3)
    cumulated = draft.double().cumsum(0)
    u = bed.numbers(rng.random((3, count)), torch.float64)
    guesses = torch.searchsorted(cumulated / cumulated[-1], u[0], right=True).clamp(max=width - 1)
    targets, drafts = (one.expand(count, width).contiguous() for one in (target, draft))
    tokens = settle(targets, drafts, guesses, u[1], u[2])
    return _chi(tokens, target.double() / target.double().sum())


def _chains(bed: Bed) -> Finding:
    rng, windows = np.random.default_rng(4), bed.pick(500, 20)
    longest = 7
    lengths = rng.integers(0, longest + 1, windows)
    first = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])
    drafted = rng.integers(0, 3, int((lengths + 1).sum()))
    drafted[first + lengths] = -1
    sampled = rng.integers(0, 3, len(drafted))
    want_counts, want_tokens = [], []
    for begin, length in zip(first.tolist(), lengths.tolist(), strict=True):
        stood = 0
        while stood < length and sampled[begin + stood] == drafted[begin + stood]:
            stood += 1
        want_counts.append(stood)
        want_tokens.append(int(sampled[begin + stood]))
    got = accept(
        bed.numbers(sampled, torch.int64), bed.numbers(drafted, torch.int64), bed.numbers(first, torch.int32), longest
    )  # fmt: skip
    return exact(got.counts.tolist() == want_counts and got.tokens.tolist() == want_tokens, f"{windows} windows")


def _trees(bed: Bed) -> Finding:
    rng, windows = np.random.default_rng(6), bed.pick(300, 4)
    longest = 15
    sampled: list[int] = []
    tokens: list[int] = []
    parents: list[int] = []
    first, lengths, want = [], [], []
    for window in range(windows):
        count = int(rng.integers(0, longest + 1))
        above = [-1, *(max(0, parent) for parent in tree(count + 1, window)[1:])]
        own, said = rng.integers(0, 2, count + 1).tolist(), rng.integers(0, 2, count + 1).tolist()
        depth = [0] + [-1] * count
        for node in range(1, count + 1):
            parent = above[node]
            if depth[parent] >= 0 and said[parent] == own[node]:
                depth[node] = depth[parent] + 1
        best = depth.index(max(depth))
        path: list[int] = []
        at = best
        while at > 0:
            path.insert(0, at)
            at = above[at]
        want.append((max(depth), said[best], path + [-1] * (longest - len(path))))
        first.append(len(tokens))
        lengths.append(count)
        sampled += said
        tokens += own
        parents += above
    drawn, drafted = (bed.numbers(x, torch.int64) for x in (sampled, tokens))
    shape = [bed.numbers(x, torch.int32) for x in (parents, first, lengths)]
    got = accept_tree(drawn, drafted, shape[0], shape[1], shape[2], longest)
    found = list(zip(got.counts.tolist(), got.tokens.tolist(), got.paths.tolist(), strict=True))
    return exact(found == want, f"{windows} trees")
