"""The engine's records: times to the hundredth on a clock of the test's own, tokens as the outputs say them."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from by_path import module_at
from run_world import STEP_S, World, text

from bosquet.runtime.trace import Trace
from bosquet.types import PAGE, Request, SamplingParams

drafts = module_at(Path(__file__).with_name("test_engine_drafts.py"), "engine_drafts")
fuzz = drafts.fuzz


def traces(world: World) -> dict[str, Trace]:
    return {trace.request: trace for trace in world.engine.take_traces()}


def test_the_times_are_those_of_the_passes() -> None:
    """A budget of 64 and a prompt of 160: three passes; then one for each token after the first."""
    world = World(100, budget=64)
    world.ask("first", text(1, 10), tokens=5)
    world.finish("first")
    (choice,) = traces(world)["first"].choices
    assert [part.tokens for part in choice.prefills] == [64, 64, 32]
    assert [part.at for part in choice.prefills] == pytest.approx([0.0, STEP_S, 2 * STEP_S])
    assert (choice.cached, choice.computed, choice.generated) == (0, 160, 5)
    assert choice.admitted == 0
    assert choice.first_token == pytest.approx(3 * STEP_S)
    assert choice.prefill_seconds == choice.prefill_cost == pytest.approx(3 * STEP_S)
    assert (choice.decodes, choice.decode_seconds) == (4, pytest.approx(4 * STEP_S))
    assert choice.ended == pytest.approx(7 * STEP_S)
    assert choice.finish == "length"


def test_who_waits_has_it_noted_and_who_hits_too() -> None:
    """Eight rows at once: the ninth waits until one has ended."""
    world = World(200, budget=64)
    world.ask("warm", text(0, 2), tokens=1)
    world.finish("warm")
    began = world.now
    for number in range(8):
        world.ask(f"long{number}", text(number + 1, 1)[: PAGE // 2], tokens=10)
    world.step()
    asked = world.now
    world.ask("late", [*text(0, 2), 1, 2, 3], tokens=2)
    world.finish()
    noted = traces(world)
    (late,) = noted["late"].choices
    assert late.admitted is not None
    until = began + min(noted[f"long{number}"].choices[0].ended for number in range(8))
    assert asked + late.admitted == pytest.approx(until)
    assert (late.cached, late.computed, late.prefills[0].tokens) == (32, 3, 3)
    assert late.first_token == pytest.approx(late.admitted + STEP_S)


def test_a_pass_that_is_shared_costs_each_its_part() -> None:
    world = World(100, budget=64)
    world.ask("a", text(1, 1), tokens=1)
    world.ask("b", [*text(2, 3)[:-1], 7], tokens=1)
    world.finish()
    noted = traces(world)
    parts = [noted[name].choices[0] for name in "ab"]
    assert [part.prefill_seconds for part in parts] == pytest.approx([STEP_S, STEP_S])
    assert [part.prefill_cost for part in parts] == pytest.approx([STEP_S / 4, STEP_S * 3 / 4])


def test_a_request_that_is_cancelled_has_a_record_of_what_it_took() -> None:
    world = World(100, budget=64)
    world.ask("gone", text(1, 3), tokens=50)
    world.ask("queued", text(1, 3), tokens=50)
    for _ in range(4):
        world.step()
    world.engine.cancel("gone")
    noted = traces(world)
    (choice,) = noted["gone"].choices
    assert (choice.finish, choice.computed, choice.generated) == ("abort", 48, len(world.said["gone"]))
    assert "queued" not in noted
    world.engine.cancel("gone")
    world.engine.cancel("nobody")
    assert traces(world) == {}


def test_one_that_never_got_room_has_waited_only() -> None:
    world = World(100, budget=64)
    for number in range(8):
        world.ask(f"long{number}", text(number + 1, 1), tokens=90)
    world.ask("waits", text(0, 2), tokens=2)
    for _ in range(3):
        world.step()
    world.engine.cancel("waits")
    (choice,) = traces(world)["waits"].choices
    assert (choice.admitted, choice.first_token, choice.computed, choice.finish) == (None, None, 0, "abort")
    assert choice.ended == pytest.approx(world.now)


def test_choices_and_their_origins_are_told_apart() -> None:
    world = World(100, budget=64)
    sampling = SamplingParams(max_tokens=3, ignore_eos=True, seed=1, n=3)
    before = time.time()
    world.engine.add(Request(id="three", ids=text(1, 4), sampling=sampling, priority=2))
    world.finish()
    found = traces(world)["three"]
    assert [choice.choice for choice in found.choices] == [0, 1, 2]
    assert [choice.cached for choice in found.choices] == [0, 63, 63]
    assert sum(choice.generated for choice in found.choices) == len(world.said["three"]) == 9
    assert (found.prompt_tokens, found.priority, found.grammar) == (64, 2, None)
    assert found.pace == world.runs.pace > 0
    assert before - 1 < found.arrival <= time.time()


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("pages", [7, 15, 60])
def test_random_workloads_are_accounted_for_to_the_token(pages: int, lag: int) -> None:
    """Prompts are cached or computed, answers drafted or sampled, whatever is preempted, cancelled and drafted."""
    rng = random.Random(f"{pages}-{lag}")
    drafter = None if lag else drafts.Told(rng, 0.7)
    world = fuzz.World(pages=pages, lag=lag, rng=rng, drafter=drafter)
    world.traffic(60, cancels=0.1)
    world.finish()
    found = {trace.request: trace for trace in world.engine.take_traces()}
    assert found.keys() == world.requests.keys()
    stats = world.engine.stats()
    assert sum(choice.preemptions for trace in found.values() for choice in trace.choices) == stats.preemptions
    assert sum(c.generated for trace in found.values() for c in trace.choices) == stats.generated_tokens
    if not lag:
        reached = [choice.drafts.get("suffix", (0, 0)) for trace in found.values() for choice in trace.choices]
        assert sum(all_ for all_, _ in reached) == stats.drafted_tokens["suffix"] > 0
        assert sum(right for _, right in reached) == stats.accepted_tokens["suffix"] > 0
    for name, trace in found.items():
        assert trace.prompt_tokens == len(world.requests[name].ids)
        for choice in trace.choices:
            if choice.finish in ("stop", "length") and not choice.preemptions:
                assert choice.cached + choice.computed == trace.prompt_tokens
            assert sum(right for _, right in choice.drafts.values()) <= choice.generated
            moments = [0.0, choice.admitted, choice.first_token, choice.ended]
            known = [moment for moment in moments if moment is not None]
            assert known == sorted(known)
            assert sum(part.tokens for part in choice.prefills) == choice.computed
