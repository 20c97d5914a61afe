"""Rejection sampling keeps the target's distribution, whatever a draft model proposes: chi-square and KL of 20,000
draws a setting against float64, and the plain draw where the outcome is settled by a seed."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from sampler_reference import bit_rows, reference

from bosquet.runtime.plan import SampleRow
from bosquet.runtime.sampler import NOTHING_ALLOWED, Sampler
from bosquet.speculative.draft import Guess
from bosquet.types import SamplingParams

WIDTH, DRAWS = 24, 20_000
SETTINGS = [
    {"temperature": temperature, **filters, **shape}
    for temperature, filters, shape in product(
        (0.7, 1.6),
        ({}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.08}, {"top_k": 9, "top_p": 0.9, "min_p": 0.02}),
        (
            {},
            {"presence_penalty": 0.8, "frequency_penalty": 0.4, "repetition_penalty": 1.3},
            {"logit_bias": {3: 2.0, 7: -3.0}, "masked": True},
        ),
    )
]


def apply_mask(logits, bits, rows):
    """The op's definition, token by token."""
    for mask, row in zip(bits.numpy(), rows.tolist(), strict=True):
        allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[: logits.shape[1]]
        logits[row, torch.from_numpy(allowed == 0)] = -torch.inf


def rows_of(setting, seed=None, count=DRAWS, first=0):
    """One request asked `count` times, each with a number of its own."""
    setting = dict(setting)
    mask = bit_rows(np.arange(0, WIDTH, 2), WIDTH) if setting.pop("masked", False) else None
    params = SamplingParams(seed=seed, **setting)
    penalised = params.repetition_penalty != 1
    extra = {"output_counts": {1: 2, 4: 1}, "prompt_set": np.array([4, 6])} if penalised else {}
    return [SampleRow(i, params, first + i, 0, 5, mask=mask, **extra) for i in range(count)]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_what_is_drawn_has_the_targets_distribution(setting):
    rng = np.random.default_rng(7)
    target = torch.tensor(rng.normal(0, 2, WIDTH), dtype=torch.float32)
    draft = target + torch.tensor(rng.normal(0, 1.2, WIDTH), dtype=torch.float32)
    sampler, rows = Sampler(WIDTH), rows_of(setting)
    guesses = sampler.propose(draft.expand(DRAWS, -1).contiguous(), rows, apply_mask)
    asked = [row._replace(guess=guess) for row, guess in zip(rows, guesses, strict=True)]
    drawn = [s.token for s in sampler.sample(target.expand(DRAWS, -1).contiguous(), asked, apply_mask)]
    want = reference(target.double().numpy(), rows[0]).probabilities
    seen = np.bincount(drawn, minlength=WIDTH)
    assert not seen[want == 0].any(), "a token that filters or mask rule out"
    expected = want[want > 0] * DRAWS
    square = float(((seen[want > 0] - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    # Wilson and Hilferty: the cube root of a chi-square is nearly normal. One in 10^5 fails by chance.
    z = ((square / max(freedom, 1)) ** (1 / 3) - 1 + 2 / (9 * max(freedom, 1))) / math.sqrt(2 / (9 * max(freedom, 1)))
    assert z < 4.3, (square, freedom)
    share = seen[seen > 0] / DRAWS
    assert float((share * np.log(share / want[seen > 0])).sum()) < 0.002
    stood = np.mean([token == guess.token for token, guess in zip(drawn, guesses, strict=True)])
    odds = np.minimum(want, reference(draft.double().numpy(), rows[0]).probabilities).sum()
    assert stood == pytest.approx(odds, abs=0.02), "as many stand as the two distributions have in common"


@pytest.mark.parametrize(
    "setting", [{"temperature": 0.0}, {"temperature": 1.0, "top_k": 1}, {"temperature": 0.9}], ids=str
)
def test_greedy_and_seeded_draws_take_no_notice_of_a_guess(setting):
    """They are the plain ones: the proposal is a token, which is compared."""
    rng = np.random.default_rng(1)
    logits = torch.tensor(rng.normal(0, 2, (200, WIDTH)), dtype=torch.float32)
    sampler, rows = Sampler(WIDTH), rows_of(setting, seed=3, count=200)
    proposed = sampler.propose(logits, rows, apply_mask)
    assert all(isinstance(token, int) for token in proposed)
    assert proposed == [s.token for s in sampler.sample(logits, rows, apply_mask)]


@pytest.mark.parametrize("seed", [None, 3])
def test_nothing_is_proposed_where_nothing_is_allowed(seed):
    row = SampleRow(0, SamplingParams(seed=seed), 1, 0, 5, mask=bit_rows([], WIDTH))
    sampler = Sampler(WIDTH)
    assert sampler.propose(torch.zeros(1, WIDTH), [row], apply_mask) == [NOTHING_ALLOWED]
    odds = np.zeros(WIDTH, np.float32)
    odds[2] = 1
    (drawn,) = sampler.sample(torch.zeros(1, WIDTH), [row._replace(guess=Guess(2, odds))], apply_mask)
    assert drawn.token == NOTHING_ALLOWED


def test_rows_do_not_depend_on_their_neighbours():
    rng = np.random.default_rng(2)
    logits = torch.tensor(rng.normal(0, 2, (len(SETTINGS), WIDTH)), dtype=torch.float32)
    rows = [rows_of(setting, count=1, first=i)[0]._replace(row=i) for i, setting in enumerate(SETTINGS)]
    sampler = Sampler(WIDTH)
    together = sampler.propose(logits, rows, apply_mask)
    drawn = sampler.sample(
        logits.flip(1), [r._replace(guess=g) for r, g in zip(rows, together, strict=True)], apply_mask
    )
    for i, row in enumerate(rows):
        (alone,) = sampler.propose(logits, [row], apply_mask)
        assert alone.token == together[i].token
        assert np.array_equal(alone.odds, together[i].odds)
        (one,) = sampler.sample(logits.flip(1), [row._replace(guess=alone)], apply_mask)
        assert one.token == drawn[i].token
