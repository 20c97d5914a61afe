"""Draws of the Triton kernels against float64 and plain Python, against the host's sampler, and by chi-square."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sampler_reference import bit_rows, reference, token_at
from triton_device import DEVICE

from bosquet.kernels.triton import tiles
from bosquet.kernels.triton.masks import apply_mask
from bosquet.kernels.triton.philox import Counters, uniforms
from bosquet.kernels.triton.sampling import DrawRows, draw, odds, propose
from bosquet.kernels.triton.tiles import Tile
from bosquet.runtime.plan import SampleRow
from bosquet.runtime.random_numbers import Purpose
from bosquet.runtime.random_numbers import uniforms as host_uniforms
from bosquet.runtime.sampler import Sampler
from bosquet.types import SamplingParams

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's of infinities, in the interpreter

COMBINATIONS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"top_k": 1},
    {},
    {"temperature": 0.5},
    {"temperature": 1.5, "top_k": 8},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"top_k": 12, "top_p": 0.9},
    {"top_k": 12, "min_p": 0.05},
    {"top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.2, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
]


def use_tile(monkeypatch: pytest.MonkeyPatch, draws: int, tokens: int, chunk: int = 16) -> None:
    """Several draws a program cost the interpreter no more than one."""
    for kernel in ("survey", "choose"):
        monkeypatch.setitem(tiles.TILES, kernel, {"any": Tile(draws, tokens, chunk)})


def put(values: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values)).to(dtype).to(DEVICE)


def draws_of(
    params: list[dict[str, Any]], rows: list[int], u: Any, mask: list[int] | None = None, bits: Any = None
) -> DrawRows:
    filled = [SamplingParams(**one) for one in params]
    return DrawRows(
        put(rows, torch.int32),
        put([one.temperature for one in filled], torch.float32),
        put([one.top_k for one in filled], torch.int32),
        put([one.top_p for one in filled], torch.float64),
        put([one.min_p for one in filled], torch.float64),
        u if isinstance(u, Counters) else put(u, torch.float64),
        put([-1] * len(rows) if mask is None else mask, torch.int32),
        None if bits is None else put(bits, torch.int32),
    )


def hard_logits(width: int) -> torch.Tensor:
    """Plain; full of ties; all equal; one token alone; nothing; partly no numbers; a few far above the rest."""
    logits = np.random.default_rng(width).normal(0, 3, (7, width))
    logits[1] = logits[1].round()
    logits[2] = 0.25
    logits[3:5] = -np.inf
    logits[3, width // 2] = -2
    logits[5, ::3] = np.nan
    logits[6, 5::17] += 40
    return torch.from_numpy(logits).float()


def check(logits: torch.Tensor, params: list[dict[str, Any]], rows: list[int], mask: list[int], bits: Any) -> None:
    """Tokens and distributions of draws against the definition in float64."""
    u = np.random.default_rng(7).random(len(rows))
    tokens, found = propose(logits.to(DEVICE), draws_of(params, rows, u, mask, bits))
    near = 0
    for i, (row, one, number) in enumerate(zip(rows, params, u, strict=True)):
        clean = logits[row].masked_fill(logits[row].isnan(), -torch.inf).tolist()
        words = bits[mask[i]] if mask[i] >= 0 else None
        want = reference(clean, SampleRow(0, SamplingParams(**one), 0, 0, 0, mask=words))
        if not want.probabilities.any():
            assert int(tokens[i]) == -1
            assert not found[i].any()
            continue
        expected, distance = token_at(want.probabilities, number)
        if min(want.margin, distance) < 1e-6 and row != 2:  # rounding may decide; of equal logits all is exact
            near += 1
            continue
        assert int(tokens[i]) == expected, (row, one, mask[i])
        error = np.abs(found[i].cpu().double().numpy() - want.probabilities)
        assert (error <= 2.0**-20 * want.probabilities + 2.0**-44).all(), (row, one, mask[i])
    assert near < 4


@pytest.mark.parametrize("width", [40, 131])
def test_draws_and_odds_are_those_of_float64(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    use_tile(monkeypatch, 128, 64)
    rng = np.random.default_rng(width)
    bits = np.stack([bit_rows(rng.choice(width, 20, replace=False).tolist(), width) for _ in range(3)])
    cases = [(row, one) for row in range(7) for one in COMBINATIONS]
    mask = [i % 4 - 1 for i in range(len(cases))]
    check(hard_logits(width), [one for _, one in cases], [row for row, _ in cases], mask, bits)


def test_wide_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of many blocks, and top-k that is larger than the number of chunks."""
    use_tile(monkeypatch, 64, 1024)
    width = 3001
    more = [{"top_k": 900, "top_p": 0.97}, {"top_k": 150}, {"top_p": 0.999, "temperature": 3.0}, {"top_k": 5000}]
    cases = [(row, one) for row in (0, 1, 6) for one in [*COMBINATIONS[4:], *more]]
    bits = bit_rows(range(0, width, 2), width)[None]
    mask = [-(i % 2) for i in range(len(cases))]
    check(hard_logits(width), [one for _, one in cases], [row for row, _ in cases], mask, bits)


def test_of_equal_logits_the_lowest_ids_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tile(monkeypatch, 64, 64)
    logits = torch.full((1, 100), -1.0, device=DEVICE)
    logits[0, 10:20] = 3.0
    params = [{"top_p": p / 10} for p in range(1, 10)] + [{"top_k": k} for k in (2, 9, 10)]
    alone = [*params, {"min_p": 1.0}, {"top_p": 1e-9}, {"top_k": 7, "top_p": 0.5}]
    found = odds(torch.where(logits > 0, logits, -torch.inf), draws_of(alone, [0] * len(alone), [0.5] * len(alone)))
    counts = [*range(1, 10), 2, 9, 10, 10, 1, 4]
    for row, count in zip(found.cpu(), counts, strict=True):
        assert row.nonzero()[:, 0].tolist() == list(range(10, 10 + count))
        assert row[10:].max() == pytest.approx(1 / count, rel=1e-6)
    found = odds(logits, draws_of([{"top_k": 13}], [0], [0.5]))
    assert found.cpu()[0].nonzero()[:, 0].tolist() == [0, 1, 2, *range(10, 20)]


def test_greedy_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tile(monkeypatch, 4, 64)
    logits = torch.zeros(5, 200, device=DEVICE)
    logits[0, [70, 64, 199]] = 2.5
    logits[1] = torch.nan
    logits[2, 130] = torch.inf
    logits[3] = -torch.inf
    rows = [0, 1, 2, 3, 4, -1, 0, 2]  # -1 is padding; the last two are not greedy
    params: list[dict[str, Any]] = [{"temperature": 0.0}] * 6 + [{"temperature": 1e-6}, {"top_p": 0.5}]
    tokens = draw(logits, draws_of(params, rows, [0.0] * 8))
    assert tokens.tolist() == [64, -1, 130, -1, 0, -1, 64, 130]
    for width in (1, 17):
        assert draw(logits[4:, :width], draws_of([{}], [0], [0.999999])).tolist() == [width - 1]
    assert draw(logits, draws_of([], [], [])).tolist() == []


def test_a_draw_depends_neither_on_its_batch_nor_on_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    logits = torch.from_numpy(rng.normal(0, 2, (4, 150))).float().to(DEVICE)
    params, rows, u = COMBINATIONS[2:], [i % 4 for i in range(9)], rng.random(9)
    use_tile(monkeypatch, 16, 128, 32)
    tokens, found = propose(logits, draws_of(params, rows, u))
    use_tile(monkeypatch, 4, 64, 16)
    order = [8, 3, 5]
    some = draws_of([params[i] for i in order], [rows[i] for i in order], u[order])
    again, part = propose(logits, some)
    assert torch.equal(again, tokens[order])
    assert torch.equal(part, found[order])


def test_the_hosts_sampler_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tile(monkeypatch, 64, 512, 64)
    width, count, rng = 700, 60, np.random.default_rng(1)
    logits = torch.from_numpy(rng.normal(0, 3, (20, width))).float()
    params = [COMBINATIONS[i % len(COMBINATIONS)] for i in range(count)]
    rows, mask = [i % 20 for i in range(count)], [i % 3 - 1 for i in range(count)]
    bits = np.stack([bit_rows(rng.choice(width, 300, replace=False).tolist(), width) for _ in range(2)])
    seeds, choices = rng.integers(-(2**63), 2**63, count), rng.integers(0, 2**31, count)
    sample_rows = [
        SampleRow(row, SamplingParams(**one), int(seed), int(choice), at, mask=bits[which] if which >= 0 else None)
        for at, (row, one, seed, choice, which) in enumerate(zip(rows, params, seeds, choices, mask, strict=True))
    ]
    want = [sampled.token for sampled in Sampler(width).sample(logits, sample_rows, apply_mask)]
    asked = Counters(put(seeds, torch.int64), put(choices, torch.int32), put(range(count), torch.int64), 0)
    assert draw(logits.to(DEVICE), draws_of(params, rows, asked, mask, bits)).tolist() == want


def test_the_device_has_the_hosts_random_numbers() -> None:
    rng = np.random.default_rng(0)
    seeds, positions = rng.integers(-(2**63), 2**63, 200), rng.integers(0, 2**63, 200)
    choices = rng.integers(-(2**31), 2**31, 200)
    for purpose in Purpose:
        asked = Counters(put(seeds, torch.int64), put(choices, torch.int32), put(positions, torch.int64), purpose)
        want = host_uniforms(seeds.tolist(), choices.tolist(), positions.tolist(), purpose)
        assert (uniforms(asked).cpu().numpy() == want).all()


def test_frequencies_are_those_of_the_float64_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tile(monkeypatch, 1024, 64)
    each, width, params = 400, 40, COMBINATIONS[2:]
    logits = torch.from_numpy(np.random.default_rng(11).normal(0, 2, (1, width))).float()
    n = each * len(params)
    asked = Counters(
        put([99] * n, torch.int64), put([0] * n, torch.int32), put(range(n), torch.int64), int(Purpose.SAMPLE)
    )
    every = [one for one in params for _ in range(each)]
    tokens = draw(logits.to(DEVICE), draws_of(every, [0] * n, asked)).cpu().numpy().reshape(-1, each)
    for drawn, one in zip(tokens, params, strict=True):
        probabilities = reference(logits[0].tolist(), SampleRow(0, SamplingParams(**one), 0, 0, 0)).probabilities
        counts = np.bincount(drawn, minlength=width)
        assert not counts[probabilities == 0].any()
        big = probabilities * each >= 5
        observed = np.append(counts[big], counts[~big].sum())
        expected = np.append(probabilities[big], probabilities[~big].sum()) * each
        used = expected > 0
        degrees = int(used.sum()) - 1
        chi_square = float(((observed - expected)[used] ** 2 / expected[used]).sum())
        assert chi_square < degrees + 5 * math.sqrt(2 * degrees) + 5, one
