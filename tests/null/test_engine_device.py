"""An engine on a device that runs on its own and sometimes has no room: passes planned ahead, or taken back."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from by_path import module_at
from fakes import HashHandle, HashRunner

from bosquet.errors import OutOfDeviceMemory
from bosquet.runtime.budget import RECOVERS, TRIES, PassBudget
from bosquet.runtime.overlap import BLOCK, STAYS, Overlap
from bosquet.runtime.plan import Plan, SampleRow, ScoreRow
from bosquet.types import Request, SamplingParams

fuzz = module_at(Path(__file__).with_name("test_engine_fuzz.py"), "engine_fuzz")


class Crowded(HashRunner):
    """Has no room for passes of more than `most` tokens, and now and then for none; what a pass has written until it
    fails is garbage."""

    def __init__(self, pages: int, rng: random.Random, most: int, fails: float) -> None:
        super().__init__(pages)
        self.rng, self.most, self.fails = rng, most, fails
        self.failed = 0

    def crowded(self, tokens: int) -> bool:
        full = tokens > self.most or self.rng.random() < self.fails
        self.failed += full
        return full

    def submit(self, plan: Plan) -> HashHandle:
        if self.crowded(plan.tokens):
            for copy in plan.copies:
                self.memory.slots[copy.dst * 16] = -99
            for row in plan.rows:
                self.memory.slots[self.memory.slot(row.pages, row.start)] = -99
            raise OutOfDeviceMemory("no room")
        handle = super().submit(plan)
        return Late(self, handle.contexts, plan.tokens)


class Late(HashHandle):
    def __init__(self, runner: Crowded, contexts: list[list[int]], tokens: int) -> None:
        super().__init__(runner, contexts)
        self.crowd, self.tokens = runner, tokens

    def sample(self, draws: Sequence[SampleRow], scores: Sequence[ScoreRow]) -> None:
        if self.tokens > 1 and self.crowd.crowded(0):
            raise OutOfDeviceMemory("no room for the logits")
        super().sample(draws, scores)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("pages", [6, 12, 40, 200])
@pytest.mark.parametrize("seed", range(6))
def test_a_device_without_room_changes_no_answer(seed: int, pages: int, lag: int) -> None:
    rng = random.Random(f"{seed}-{pages}-{lag}")
    world = fuzz.World(pages=pages, lag=lag, rng=rng)
    crowded = Crowded(pages, rng, most=rng.choice([5, 20, 1000]), fails=0.0)
    world.engine.runner = crowded
    crowded.fails = 0.15
    world.traffic(30, cancels=0.1)
    crowded.fails = 0.05
    world.finish()
    assert crowded.failed
    for outputs in world.outputs.values():  # a single token may have met a moment without room
        if outputs[-1].error is not None and outputs[-1].error[0] == "out_of_memory":
            world.cancelled.add(outputs[-1].request)
    assert len(world.cancelled) < len(world.requests)
    world.check_answers()
    world.check_runs()
    fuzz.check_prompt_scores(world)


@pytest.mark.parametrize("lag", [0, 1])
def test_where_no_pass_fits_requests_end_with_the_reason(lag: int) -> None:
    world = fuzz.World(pages=40, lag=lag, rng=random.Random(0))
    world.engine.runner = Crowded(40, random.Random(0), most=0, fails=0.0)
    for name in ("a", "b"):
        world.ask(Request(id=name, ids=[1, 2, 3] * 20, sampling=SamplingParams(max_tokens=5)))
    world.finish()
    for name in ("a", "b"):
        (output,) = world.outputs[name, 0]
        assert output.finish == "error"
        assert output.error is not None
        assert output.error[0] == "out_of_memory"
    assert world.cache.pool.free == world.cache.pool.total - world.cache.cached


def test_a_pass_budget_shrinks_and_recovers() -> None:
    budget = PassBudget(512)
    assert budget.shrink(300)
    assert budget.tokens == 150
    assert budget.shrink(2)
    assert budget.tokens == 1
    assert [budget.shrink(1) for _ in range(TRIES)] == [True] * (TRIES - 1) + [False]
    for doubled in (2, 4, 8, 16, 32, 64, 128, 256, 512, 512):
        for _ in range(RECOVERS):
            budget.fitted()
        assert budget.tokens == doubled


@pytest.mark.parametrize("better", [True, False])
def test_the_faster_manner_is_kept_and_the_other_tried_now_and_then(better: bool) -> None:
    now = 0.0
    overlap = Overlap(lambda: now)
    manners = []
    for _ in range(BLOCK * STAYS * 4):
        manners.append(overlap.ahead)
        now += 1.0 if overlap.ahead is better else 1.5
        overlap.passed(tokens=4)
    share = sum(manner is better for manner in manners) / len(manners)
    assert 0.85 < share < 1.0


def test_a_pause_is_no_pace() -> None:
    """The slower manner does not win by a pause in the work of the faster one."""
    now = 0.0
    overlap = Overlap(lambda: now)
    for at in range(BLOCK * 6):
        if at % BLOCK == BLOCK // 2 and overlap.ahead:
            now += 1000
            overlap.restart()
        now += 1.0 if overlap.ahead else 1.2
        overlap.passed(tokens=1)
    assert overlap.ahead
