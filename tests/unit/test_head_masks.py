"""What a mask spares the head changes no draw: against the whole head with the mask put over it afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from op_cases import back_end, back_ends
from sampler_reference import bit_rows
from torch import Tensor

from bosquet.grammar.matcher import only_bit
from bosquet.kernels.table import Masks
from bosquet.runtime.head_masks import spare
from bosquet.runtime.models.base import ModelShape
from bosquet.runtime.plan import Sampled, SampleRow, ScoreRow
from bosquet.runtime.runner import TorchHandle, TorchRunner
from bosquet.runtime.sampler import Sampler
from bosquet.types import SamplingParams

WIDTH, HIDDEN, ROWS = 700, 48, 6
NAMES = pytest.mark.parametrize("name", back_ends())
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 300, "temperature": 1.5},
    {"top_p": 0.8},
    {"min_p": 0.1, "top_p": 0.95},
    {"temperature": 0.0, "repetition_penalty": 1.4},
    {"frequency_penalty": 0.9, "presence_penalty": -0.5, "repetition_penalty": 0.7},
    {"temperature": 0.0, "logit_bias": {5: 3.0, 6: -100.0, 699: float("inf")}},
    {"top_k": 20, "logit_bias": {3: float("-inf"), 4: 9.0}},
    {"temperature": 0.0, "logprobs": 2},
    {"top_p": 0.9, "logprobs": 0},
]


class Head:
    """A model that is nothing but its head; what it was asked for is kept."""

    shape = ModelShape(1, HIDDEN, 1, 1, 16, WIDTH, 64, (0,))
    dtype = torch.float32

    def __init__(self, name: str) -> None:
        self.ops = back_end(name)
        weight = torch.randn(WIDTH, HIDDEN, generator=torch.Generator().manual_seed(1)) * 0.4
        self.weight = self.ops.as_head(self.ops.pack_embedding(weight))
        self.calls: list[Masks | None] = []

    def forward(self, batch: Any, kv: Any) -> Tensor:
        raise AssertionError("nothing is computed here")

    def logits(self, hidden: Tensor, masks: Masks | None = None) -> Tensor:
        self.calls.append(masks)
        return self.ops.head(hidden, self.weight) if masks is None else self.ops.masked_head(hidden, self.weight, masks)

    def profile(self) -> dict[str, float]:
        return {}


def through_the_runner(
    model: Head, hidden: Tensor, draws: list[SampleRow], scores: list[ScoreRow]
) -> tuple[list[Sampled], list[Any]]:
    handle = TorchHandle(TorchRunner(model, 1), hidden)
    handle.sample(draws, scores)
    return handle.result()


def random_draw(rng: np.random.Generator, row: int) -> SampleRow:
    allowed = int(rng.choice([0, 1, 2, 17, WIDTH // 2, WIDTH]))
    mask = bit_rows(rng.choice(WIDTH, allowed, replace=False), WIDTH) if rng.random() < 0.8 else None
    params = SamplingParams(**PARAMS[int(rng.integers(len(PARAMS)))])
    return SampleRow(
        row, params, int(rng.integers(2**63)), row % 3, int(rng.integers(1000)),
        {int(t): int(c) for t, c in zip(rng.integers(0, WIDTH, 30), rng.integers(1, 4, 30), strict=True)},
        np.unique(rng.integers(0, WIDTH, 90)),
        (0, int(rng.integers(WIDTH))) if rng.random() < 0.3 else (),
        mask,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(back_ends()), seed=st.integers(0, 100_000))
def test_tokens_and_scores_are_those_of_the_whole_head(name: str, seed: int) -> None:
    rng, model = np.random.default_rng(seed), Head(name)
    hidden = torch.tensor(rng.standard_normal((ROWS, HIDDEN)), dtype=torch.float32)
    draws = [random_draw(rng, int(rng.integers(1, ROWS))) for _ in range(int(rng.integers(1, 9)))]
    scores = [ScoreRow(int(rng.integers(ROWS - 1)), [3, WIDTH - 1], 2)] if rng.random() < 0.3 else []
    sampler = Sampler(WIDTH)
    whole = model.ops.head(hidden, model.weight).clone()
    want = sampler.sample(whole, draws, model.ops.apply_mask), sampler.score(whole, scores)
    assert through_the_runner(model, hidden, draws, scores) == want


@NAMES
def test_where_a_grammar_leaves_one_token_there_is_no_head(name: str) -> None:
    model = Head(name)
    draws = [
        SampleRow(0, SamplingParams(temperature=1.0), 1, 0, 4, mask=bit_rows([at], WIDTH)) for at in (0, 31, 32, 699)
    ]
    found, _ = through_the_runner(model, torch.randn(4, HIDDEN), draws, [])
    assert [sampled.token for sampled in found] == [0, 31, 32, 699]
    assert not model.calls


def test_a_banned_token_or_one_with_a_bias_is_not_settled() -> None:
    mask = bit_rows([5], WIDTH)
    banned = SampleRow(0, SamplingParams(), 1, 0, 4, banned=(5,), mask=mask)
    biased = SampleRow(1, SamplingParams(logit_bias={5: float("-inf")}), 1, 0, 4, mask=mask)
    found, _ = through_the_runner(Head("reference"), torch.randn(2, HIDDEN), [banned, biased], [])
    assert [sampled.token for sampled in found] == [-1, -1]


def test_a_row_that_others_read_or_that_wants_logprobs_keeps_its_logits() -> None:
    few = bit_rows([5, 9], WIDTH)
    draws = [
        SampleRow(0, SamplingParams(), 1, 0, 4, mask=few),
        SampleRow(1, SamplingParams(logprobs=0), 1, 0, 4, mask=few),
        SampleRow(2, SamplingParams(), 1, 0, 4, mask=few),
        SampleRow(2, SamplingParams(), 1, 1, 4, mask=few),
        SampleRow(3, SamplingParams(), 1, 0, 4, mask=few),
        SampleRow(4, SamplingParams(), 1, 0, 4),
    ]
    spared = spare(draws, [ScoreRow(3, [1], 0)])
    assert spared.masks is not None
    assert spared.masks.rows.tolist() == [0]
    assert [draw.mask is None for draw in spared.draws] == [True, False, False, False, False, True]


def test_nothing_is_computed_of_a_row_that_is_settled() -> None:
    one, few = bit_rows([5], WIDTH), bit_rows([5, 9], WIDTH)
    draws = [
        SampleRow(0, SamplingParams(), 1, 0, 4, mask=one),
        SampleRow(1, SamplingParams(), 1, 0, 4, mask=few),
        SampleRow(2, SamplingParams(), 1, 0, 4, mask=one),
        SampleRow(2, SamplingParams(), 1, 1, 4, mask=one),
        SampleRow(3, SamplingParams(), 1, 0, 4, mask=one),
        SampleRow(4, SamplingParams(), 1, 0, 4, mask=one),
        SampleRow(4, SamplingParams(), 1, 1, 4, mask=few),
    ]
    spared = spare(draws, [ScoreRow(3, [1], 0)])
    assert spared.settled == {0: 5, 2: 5, 3: 5, 4: 5, 5: 5}
    assert spared.masks is not None
    read = {
        int(row): int(np.count_nonzero(bits)) for row, bits in zip(spared.masks.rows, spared.masks.bits, strict=True)
    }
    assert read == {0: 0, 1: 1, 2: 0, 4: 1}, "row 3 is scored, row 4 read by one draw that is left"


@pytest.mark.parametrize(("tokens", "only"), [([], None), ([7], 7), ([7, 8], None), ([7, 400], None), ([31], 31)])
def test_only_bit(tokens: list[int], only: int | None) -> None:
    assert only_bit(bit_rows(tokens, WIDTH)) == only
