"""Log-probabilities against torch's float64 log_softmax."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bosquet.runtime.plan import SampleRow, ScoreRow
from bosquet.runtime.sampler import Sampler
from bosquet.types import SamplingParams


def no_mask(logits, bits, rows):
    raise AssertionError("no row has a mask")


@pytest.fixture(scope="module")
def logits():
    return torch.tensor(np.random.default_rng(8).normal(0, 4, (150, 3001)), dtype=torch.float32)


def test_scores_are_log_softmax(logits):
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 3001, 140).tolist()
    rows = [ScoreRow(2, tokens, 5), ScoreRow(149, [7], 0), ScoreRow(4, [], 3)]
    exact = torch.log_softmax(logits.double(), dim=-1)
    first, second, third = Sampler(3001).score(logits, rows)
    assert third == []
    assert [entry.token for entry in first] == tokens
    for at, entry in enumerate(first):
        assert entry.logprob == pytest.approx(float(exact[2 + at, entry.token]), abs=2e-5)
        best = exact[2 + at].topk(5)
        assert [token for token, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=2e-5)
    assert second[0].logprob == pytest.approx(float(exact[149, 7]), abs=2e-5)
    assert second[0].top == []


def test_drawn_tokens_carry_raw_log_probabilities_when_asked(logits):
    exact = torch.log_softmax(logits.double(), dim=-1)
    rows = [
        SampleRow(3, SamplingParams(temperature=0.2, top_k=2, logprobs=4, logit_bias={9: 50.0}), 0, 0, 0),
        SampleRow(5, SamplingParams(temperature=0.0, logprobs=0), 0, 0, 0),
        SampleRow(5, SamplingParams(temperature=0.0), 0, 0, 0),
    ]
    biased, plain, unasked = Sampler(3001).sample(logits, rows, no_mask)
    assert biased.token == 9
    assert biased.logprob.token == 9
    assert biased.logprob.logprob == pytest.approx(float(exact[3, 9]), abs=2e-5)
    assert [token for token, _ in biased.logprob.top] == exact[3].topk(4).indices.tolist()
    assert plain.token == int(exact[5].argmax())
    assert plain.logprob.logprob == pytest.approx(float(exact[5].max()), abs=2e-5)
    assert plain.logprob.top == []
    assert unasked.logprob is None


def test_minus_infinity_becomes_a_number_json_can_carry():
    logits = torch.zeros(1, 50)
    logits[0, 10:] = -torch.inf
    (entries,) = Sampler(50).score(logits, [ScoreRow(0, [20], 12)])
    assert entries[0].logprob == -9999.0
    assert entries[0].top[:10] == [(token, pytest.approx(-np.log(10), abs=1e-6)) for token in range(10)]
    assert [value for _, value in entries[0].top[10:]] == [-9999.0, -9999.0]


def test_equal_alternatives_come_in_the_order_of_their_ids():
    logits = torch.zeros(1, 2000)
    logits[0, 1500] = 1.0
    (entries,) = Sampler(2000).score(logits, [ScoreRow(0, [3], 4)])
    assert [token for token, _ in entries[0].top] == [1500, 0, 1, 2]


def test_more_alternatives_than_tokens_gives_them_all():
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    (entries,) = Sampler(3).score(logits, [ScoreRow(0, [0], 20)])
    assert [token for token, _ in entries[0].top] == [1, 2, 0]


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[3e38, 1e38, -3e38]])
    (entries,) = Sampler(3).score(logits, [ScoreRow(0, [0], 1)])
    assert entries[0].logprob == 0.0
