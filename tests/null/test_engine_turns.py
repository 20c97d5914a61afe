"""What is learnt of runs, and how a long prompt shares its passes with those who come after it."""

from __future__ import annotations

import pytest
from run_world import STEP_S, World, text

from bosquet.runtime.run_records import ENOUGH, LEAST_S, PATIENCE_S, PROGRAMS, Program, RunRecords
from bosquet.runtime.runs import REMEMBERED
from bosquet.types import Ahead

# ---- what is learnt ------------------------------------------------------------------------------------------------

PROGRAM = Program("", "agent")


def test_patience_is_that_of_95_of_100_silences_within_bounds() -> None:
    records = RunRecords()
    assert records.patience(PROGRAM) == PATIENCE_S
    for i in range(100):
        records.came_back(PROGRAM, float(i))
    assert records.patience(PROGRAM) == 95.0
    assert records.usual_silence(PROGRAM) == 50.0
    for _ in range(300):
        records.came_back(PROGRAM, 0.0)
    assert records.patience(PROGRAM) == LEAST_S


def test_runs_are_expected_back_once_most_came_back() -> None:
    records = RunRecords()
    assert not records.returns(PROGRAM)
    records.came_back(PROGRAM, 1.0)
    assert records.returns(PROGRAM)
    records.was_over(PROGRAM)
    assert not records.returns(PROGRAM)


def test_a_return_is_noticed_after_the_run_was_given_up() -> None:
    world = World(400)
    for turn in range(ENOUGH + 1):
        world.ask(str(turn), text("a", 1), "a", ahead=Ahead(returns=True))
        world.finish()
        world.now += 20.0  # longer than the first patience
        world.ask(f"other{turn}", text("b", 1))  # a round in which the silence is noticed
        world.finish()
    assert world.runs.records.patience(PROGRAM) > 19.0


def test_what_is_remembered_is_bounded() -> None:
    world = World(8)
    for i in range(REMEMBERED + 50):
        world.ask(str(i), text(0, 1), f"run{i}", program=f"program{i}")
        world.finish()
    assert world.runs.live == 0
    assert len(world.runs._silent) <= REMEMBERED
    assert len(world.runs._given_up) <= REMEMBERED
    assert len(world.runs.records._records) <= PROGRAMS
    assert not world.runs._residents


# ---- a long prompt and those who come after it ---------------------------------------------------------------------


def test_short_prompts_pass_a_long_one_and_it_keeps_half_of_every_pass() -> None:
    world = World(400)
    long = text("long", 100)
    world.ask("long", long)
    world.step()
    for i in range(40):
        world.ask(f"short{i}", text(i, 1))
    came = world.now
    world.finish(*(f"short{i}" for i in range(40)))
    assert world.now - came == pytest.approx(20 * STEP_S, abs=1.5 * STEP_S), "two of 16 tokens fit in half a pass of 64"
    world.finish("long")
    assert world.now == pytest.approx((20 + (1600 - 64 - 20 * 32) / 64 + 1) * STEP_S, abs=2 * STEP_S)


def test_a_second_long_prompt_waits_for_the_first() -> None:
    """Two that share every pass would both be late."""
    world = World(400)
    for name in ("first", "second"):
        world.ask(name, text(name, 40))
    world.finish()
    assert world.ended["second"] - world.ended["first"] == pytest.approx(10 * STEP_S, abs=1.5 * STEP_S)
