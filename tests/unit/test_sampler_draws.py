"""The sampler against a slow float64 one: exact draws, statistics, extremes, independence of the batch."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampler_reference import bit_rows, reference, token_at

from bosquet.runtime import sampler as sampler_module
from bosquet.runtime.distributions import Filters, draw_sorted, draw_wide, scale
from bosquet.runtime.plan import SampleRow
from bosquet.runtime.sampler import NOTHING_ALLOWED, Sampler
from bosquet.types import SamplingParams


def apply_mask(logits, bits, rows):
    """The op's definition, token by token."""
    for at, row in enumerate(rows.tolist()):
        unpacked = np.unpackbits(bits[at].numpy().view(np.uint8), bitorder="little")[: logits.shape[1]]
        logits[row, torch.from_numpy(unpacked == 0)] = -torch.inf


def draw(row=0, seed=0, choice=0, position=0, **kwargs):
    extra = {name: kwargs.pop(name) for name in ("output_counts", "prompt_set", "banned", "mask") if name in kwargs}
    return SampleRow(row, SamplingParams(**kwargs), seed, choice, position, **extra)


def sample_at(logits, row, numbers):
    """Tokens of `row` for each given number u in one batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler_module, "uniforms", lambda *_: np.asarray(numbers, dtype=np.float64))
        sampled = Sampler(logits.shape[1]).sample(logits, [row] * len(numbers), apply_mask)
    return [s.token for s in sampled]


def rough_logits(width, seed, ties):
    values = np.random.default_rng(seed).normal(0, 3, width)
    if ties:
        values = np.round(values * 2) / 2
    return torch.tensor(values, dtype=torch.float32)[None]


params_strategy = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-6, 0.3, 1.0, 1.7, 100.0]),
        "top_k": st.sampled_from([0, 1, 2, 5, 33, 10_000]),
        "top_p": st.sampled_from([0.0, 1e-9, 0.2, 0.71, 0.95, 1.0]),
        "min_p": st.sampled_from([0.0, 0.01, 0.3, 1.0]),
        "presence_penalty": st.sampled_from([0.0, 1.5, -2.0]),
        "frequency_penalty": st.sampled_from([0.0, 0.7, -2.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.5]),
    }
)


@settings(max_examples=250, deadline=None)
@given(
    params_strategy,
    st.sampled_from([1, 7, 64, 65, 700, 1500]),
    st.integers(0, 10_000),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_every_kept_token_is_drawn_for_its_numbers_and_no_other(params, width, seed, ties, masked, history):
    rng = np.random.default_rng(seed)
    logits = rough_logits(width, seed, ties)
    extra = {}
    if masked:
        extra["mask"] = bit_rows(rng.choice(width, max(1, width // 3), replace=False), width)
        extra["banned"] = (int(rng.integers(width)),)
        params = params | {"logit_bias": {int(rng.integers(width)): 4.0, int(rng.integers(width)): -100.0}}
    if history:
        extra["output_counts"] = {
            int(t): int(c) for t, c in zip(rng.integers(0, width, 9), rng.integers(1, 4, 9), strict=True)
        }
        extra["prompt_set"] = np.unique(rng.integers(0, width, 20))
    row = draw(**params, **extra)
    expected = reference(logits[0].tolist(), row)
    if expected.margin < 1e-5 or (params["temperature"] == 1e-6 and history):
        return  # a float32 cut may fall on the other side
    support = np.nonzero(expected.probabilities > 1e-6)[0]
    if not len(support):
        assert sample_at(logits, row, [0.5]) == [NOTHING_ALLOWED]
        return
    edges = np.concatenate(([0.0], np.cumsum(expected.probabilities)))
    numbers = [(edges[token] + edges[token + 1]) / 2 for token in support] + [0.0, 1 - 2.0**-53]
    ends = np.nonzero(expected.probabilities > 0)[0]
    tokens = sample_at(logits, row, numbers)
    assert tokens[:-2] == support.tolist()
    if expected.probabilities[ends[0]] > 1e-30 and expected.probabilities[ends[-1]] > 1e-5:
        assert tokens[-2:] == [ends[0], ends[-1]]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 40},
        {"top_k": 700},
        {"top_k": 5000},
        {"top_p": 0.9},
        {"top_p": 0.9999},
        {"temperature": 100.0, "top_p": 0.5},
        {"min_p": 0.05},
        {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.02},
    ],
)
def test_wide_heads_agree_with_the_reference_for_many_numbers(params):
    """A full-size vocabulary takes the block-maxima, candidate-list and full-sort paths that a small one does not."""
    width = 20_011
    rng = np.random.default_rng(5)
    logits = torch.tensor(rng.normal(0, 2.5, (1, width)), dtype=torch.float32)
    row = draw(**params)
    expected = reference(logits[0].tolist(), row)
    assert expected.margin > 1e-8
    numbers = rng.random(160)
    outcomes = [token_at(expected.probabilities, u) for u in numbers]
    tokens = sample_at(logits, row, numbers)
    clear = [(token, want) for token, (want, distance) in zip(tokens, outcomes, strict=True) if distance > 1e-6]
    assert len(clear) > 120
    assert [token for token, _ in clear] == [want for _, want in clear]


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"), [(0, 0.97, 0.0), (3000, 1.0, 0.0), (2500, 0.9, 1e-4), (0, 0.99, 1e-3)]
)
@pytest.mark.parametrize("ties", [False, True])
def test_the_two_ways_to_look_at_every_token_agree_with_the_reference(top_k, top_p, min_p, ties):
    width = 6007
    logits = rough_logits(width, 21, ties)
    row = draw(top_k=top_k, top_p=top_p, min_p=min_p)
    expected = reference(logits[0].tolist(), row)
    support = np.nonzero(expected.probabilities)[0]
    edges = np.concatenate(([0.0], np.cumsum(expected.probabilities)))
    numbers = torch.tensor((edges[support] + edges[support + 1]) / 2)[::13]
    scaled = scale(logits.clone(), torch.ones(1))
    filters = Filters(*(torch.tensor([value]) for value in (top_k or width, top_p, min_p)))
    many = Filters(*(part.expand(len(numbers)).to(part.dtype) for part in filters))
    assert len(numbers) > 20
    slow = draw_sorted(scaled.expand(len(numbers), -1), many, numbers).tolist()
    fast = [draw_wide(scaled[0].numpy(), top_k or width, top_p, min_p, u) for u in numbers.tolist()]
    assert slow == fast == support[::13].tolist()


COMBINATIONS = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.5, "top_k": 8},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"temperature": 1.2, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
    {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"logit_bias": {0: 2.0, 5: -3.0}, "temperature": 0.9},
]


@pytest.mark.parametrize("params", COMBINATIONS)
def test_frequencies_match_the_float64_distribution(params):
    n, width = 20_480, 24
    logits = rough_logits(width, 11, ties=False)
    history = {"output_counts": {3: 2, 4: 1, 20: 5}, "prompt_set": np.array([1, 4, 7])}
    rows = [draw(position=position, seed=99, **params, **history) for position in range(n)]
    engine = Sampler(width)
    counts = np.zeros(width)
    for start in range(0, n, 512):
        for sampled in engine.sample(logits, rows[start : start + 512], apply_mask):
            counts[sampled.token] += 1
    probabilities = reference(logits[0].tolist(), rows[0]).probabilities
    assert counts[probabilities == 0].sum() == 0
    big = probabilities * n >= 5
    observed = np.append(counts[big], counts[~big].sum())
    expected = np.append(probabilities[big], probabilities[~big].sum()) * n
    used = expected > 0
    degrees = int(used.sum()) - 1
    chi_square = float(((observed - expected)[used] ** 2 / expected[used]).sum())
    assert chi_square < degrees + 5 * math.sqrt(2 * degrees) + 5


def random_rows(rng, count, rows, width):
    kinds = [
        {"temperature": 0.0},
        {"temperature": 0.8},
        {"top_k": 40},
        {"top_k": 900},
        {"top_p": 0.9},
        {"top_p": 0.99, "temperature": 3.0},
        {"min_p": 0.1},
        {"temperature": 0.0, "repetition_penalty": 1.2},
        {"temperature": 0.9, "frequency_penalty": 0.4, "top_p": 0.8},
    ]
    made = []
    for i in range(count):
        mask = bit_rows(rng.choice(width, width // 2, replace=False), width) if i % 3 == 0 else None
        history = {int(t): 1 for t in rng.integers(0, width, 10)}
        made.append(
            draw(
                row=int(rng.integers(rows)), seed=int(rng.integers(2**63)), position=i, choice=i % 3, mask=mask,
                output_counts=history, prompt_set=np.arange(5), logprobs=2, **kinds[i % len(kinds)],
            )
        )  # fmt: skip
    return made


def test_a_draw_does_not_depend_on_its_batch():
    width, rng = 5003, np.random.default_rng(3)
    logits = torch.tensor(rng.normal(0, 3, (40, width)), dtype=torch.float32)
    rows = random_rows(rng, 90, 40, width)
    engine = Sampler(width)
    together = engine.sample(logits, rows, apply_mask)
    alone = [engine.sample(logits[row.row : row.row + 1].clone(), [row._replace(row=0)], apply_mask)[0] for row in rows]
    assert together == alone
    order = rng.permutation(len(rows))
    shuffled = engine.sample(logits, [rows[i] for i in order], apply_mask)
    assert shuffled == [together[i] for i in order]
    assert len({s.token for s in together}) > 30


def test_logits_are_left_as_they_were():
    rng = np.random.default_rng(4)
    logits = torch.tensor(rng.normal(0, 3, (8, 300)), dtype=torch.float32)
    before = logits.clone()
    Sampler(300).sample(logits, random_rows(rng, 30, 8, 300), apply_mask)
    assert torch.equal(logits, before)


def test_greedy_takes_the_lowest_of_equal_ids():
    logits = torch.zeros(3, 500)
    logits[0, [17, 400]] = 5.0
    logits[1, [499, 3]] = 1.0
    sampled = Sampler(500).sample(logits, [draw(row, temperature=0.0) for row in range(3)], apply_mask)
    assert [s.token for s in sampled] == [17, 3, 0]
    one = Sampler(500).sample(logits, [draw(row, top_k=1, position=row) for row in range(3)], apply_mask)
    assert [s.token for s in one] == [17, 3, 0]


@pytest.mark.parametrize("top_k", [2, 60, 3000])
def test_ties_at_the_cut_keep_the_lowest_ids(top_k):
    logits = torch.zeros(1, 4000)
    logits[0, 3999] = 1.0
    tokens = sample_at(logits, draw(top_k=top_k), np.linspace(0, 1, 500, endpoint=False))
    allowed = {3999, *range(top_k - 1)}
    assert set(tokens) <= allowed
    assert max(token for token in tokens if token != 3999) >= 0.9 * (top_k - 2)


@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.5}, {"top_k": 2000}]
)
def test_a_row_that_nothing_is_left_for_is_reported_and_others_are_not_hurt(params):
    width = 3000
    logits = torch.randn(2, width, generator=torch.Generator().manual_seed(0))
    rows = [
        draw(0, mask=bit_rows([4, 9], width), banned=(9, 4), logprobs=1, **params),
        draw(1, mask=bit_rows([8], width), banned=(9,), **params),
    ]
    nothing, something = Sampler(width).sample(logits, rows, apply_mask)
    assert nothing == (NOTHING_ALLOWED, None)
    assert something.token == 8
    infinite = torch.full((1, width), -torch.inf)
    assert Sampler(width).sample(infinite, [draw(**params)], apply_mask)[0].token == NOTHING_ALLOWED


def test_bias_cannot_lift_what_the_mask_forbids():
    logits = torch.zeros(1, 40)
    row = draw(logit_bias={3: 100.0, 4: 100.0}, mask=bit_rows([4, 5], 40), temperature=0.0)
    assert Sampler(40).sample(logits, [row], apply_mask)[0].token == 4


@pytest.mark.parametrize("bad", [{"logit_bias": {40: 1.0}}, {"banned": (-1,)}])
def test_an_id_outside_the_head_never_touches_another_row(bad):
    with pytest.raises(ValueError, match="outside"):
        Sampler(40).sample(torch.zeros(2, 40), [draw(0, **bad), draw(1)], apply_mask)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="float32"):
        Sampler(41).sample(torch.zeros(2, 40), [], apply_mask)
    with pytest.raises(ValueError, match="float32"):
        Sampler(40).score(torch.zeros(2, 40, dtype=torch.float64), [])


@pytest.mark.alone
def test_python_cost_of_plain_rows_is_small():
    """Greedy rows: at most 10 µs of Python each, measured over what one argmax of the same rows costs."""
    logits = torch.randn(32, 64)
    rows = [draw(i, temperature=0.0) for i in range(32)]
    engine = Sampler(64)
    best = min(_timed(lambda: engine.sample(logits, rows, apply_mask)) for _ in range(200))
    assert best < 32 * 10e-6


def _timed(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
