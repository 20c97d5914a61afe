"""Runs that do not fit together: those under way keep their prefixes, the others get their turn, and nobody is kept
waiting for a run that does not come back."""

from __future__ import annotations

import pytest
from run_world import World, text

from bosquet.runtime.run_records import PATIENCE_S
from bosquet.runtime.runs import TURN_S
from bosquet.types import PAGE, Ahead


class Talk:
    """A conversation: each prompt is all that was said before, and four pages of something new."""

    def __init__(self, name: str, turns: int, tenant: str = "", pause: float = 0.3) -> None:
        self.name, self.turns, self.tenant, self.pause = name, turns, tenant, pause
        self.ids: list[int] = []
        self.turn = 0
        self.due: float | None = 0.0
        self.began: float | None = None
        self.ended = 0.0
        self.lost = 0  # tokens that had been computed and were computed again

    @property
    def request(self) -> str:
        return f"{self.name}/{self.turn}"


def converse(world: World, talks: list[Talk], *, told: bool = False) -> None:
    """All of them at once, to the end, each thinking between its turns."""
    left = list(talks)
    known = {talk.name: 0 for talk in talks}
    for _ in range(200_000):
        for talk in left:
            if talk.due is not None and talk.due <= world.now:
                talk.due = None
                talk.turn += 1
                known[talk.name] = len(talk.ids)
                talk.ids += text(talk.request, 4)
                talk.began = world.now if talk.began is None else talk.began
                world.ask(talk.request, talk.ids, talk.name, tokens=8, tenant=talk.tenant)
        world.step()
        for talk in list(left):
            if talk.due is None and talk.request in world.ended:
                talk.lost += max(0, known[talk.name] - 1 - world.cached[talk.request])
                talk.ids += world.said[talk.request]
                talk.due = world.now + talk.pause
                if talk.turn == talk.turns:
                    left.remove(talk)
                    talk.ended = world.now
                    if told:
                        world.engine.end_run(talk.tenant, talk.name)
        if not left:
            return
    raise AssertionError("a conversation did not come to its end")


def talks(count: int, turns: int = 6, **more: object) -> list[Talk]:
    return [Talk(f"run{i}", turns, **more) for i in range(count)]  # type: ignore[arg-type]


# ---- what it gains -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [False, True])
def test_runs_that_do_not_fit_lose_less_and_end_sooner_than_if_all_are_let_in(told: bool) -> None:
    """A pool for two of eight, and 10 ms for 32 tokens."""
    in_turn, all_at_once = talks(8, 12), talks(8, 12)
    converse(World(120, budget=32), in_turn, told=told)
    world = World(120, budget=32)
    world.runs.may_take = lambda sequence, pages: True  # type: ignore[method-assign]
    world.runs.stand_on = lambda run, node: None  # type: ignore[method-assign]
    converse(world, all_at_once)
    assert sum(talk.lost for talk in in_turn) < 0.65 * sum(talk.lost for talk in all_at_once)
    assert sum(talk.ended for talk in in_turn) < sum(talk.ended for talk in all_at_once)


def test_runs_that_fit_run_side_by_side_and_lose_nothing() -> None:
    all_of_them = talks(6)
    converse(World(400), all_of_them)
    assert sum(talk.lost for talk in all_of_them) == 0
    first_turns = [talk.began for talk in all_of_them]
    assert first_turns == [0.0] * 6


def test_a_run_larger_than_the_pool_still_ends() -> None:
    converse(World(6 * 5 + 1), talks(2))


def test_a_lease_outlives_what_nobody_comes_back_to() -> None:
    """Other requests fill the pool twice while a run waits for its tool."""
    world = World(40)
    prompt = text("run", 10)
    world.ask("first", prompt, "run", ahead=Ahead(returns=True, pause_s=60.0))
    world.finish()
    for i in range(10):
        world.ask(f"other{i}", text(i, 8))
        world.finish()
    world.ask("second", prompt + text("more", 1), "run")
    world.finish()
    assert world.cached["second"] >= len(prompt) - 1


def test_what_a_run_said_it_will_not_go_on_from_is_not_leased() -> None:
    world = World(40)
    world.ask("first", text("run", 10), "run", ahead=Ahead(returns=False))
    world.finish()
    assert world.runs.live == 0


# ---- who waits, and for how long -----------------------------------------------------------------------------------


def test_nobody_waits_for_runs_of_one_request() -> None:
    """As many as a map has: a run that nothing is known of claims nothing, so the engine computes in every step."""
    world = World(64)
    for i in range(48):
        world.ask(f"item{i}", text(i, 10), f"run{i}", tokens=4)
    while not world.engine.idle:
        world.step()
        assert world.engine.idle or not world.engine.waits


def test_nobody_waits_for_a_run_that_has_ended() -> None:
    world = World(64)
    world.ask("first", text("a", 50), "a", ahead=Ahead(returns=True, pause_s=0.09))
    world.finish()
    world.ask("second", text("b", 50), "b")
    world.step()
    assert world.engine.waits
    world.engine.end_run("", "a")
    world.step()
    assert not world.engine.waits
    world.finish("second")


def test_a_run_that_ends_while_it_computes_leases_nothing() -> None:
    world = World(64)
    world.ask("first", text("a", 30), "a", tokens=8, ahead=Ahead(returns=True))
    world.step()
    world.engine.end_run("", "a")
    world.finish()
    assert world.runs.live == 0


def test_a_silent_run_keeps_its_place_as_long_as_its_return_is_near_and_would_cost_more() -> None:
    """A pass takes 10 ms for 64 tokens, so 50 pages cost 125 ms; the tool takes 90, or 500."""
    for pause, waits in ((0.09, True), (0.5, False)):
        world = World(64)
        world.ask("first", text("a", 50), "a", ahead=Ahead(returns=True, pause_s=pause))
        world.finish()
        world.ask("second", text("b", 50), "b")
        world.step()
        assert world.engine.waits == waits
        world.finish("second")


def test_a_run_that_does_not_come_back_is_taken_for_over() -> None:
    world = World(64)
    world.ask("first", text("a", 30), "a", ahead=Ahead(returns=True))
    world.finish()
    assert world.runs.leased_pages() == 30
    world.now += PATIENCE_S + 0.01
    world.ask("second", text("b", 2), "b")
    world.finish()
    assert world.runs.leased_pages() == 0


def test_a_stranger_gets_in_although_others_are_never_silent() -> None:
    """Three runs that come back at once, and fill the pool between them."""
    world = World(130)
    busy = [Talk(f"busy{i}", 10_000, pause=0.0) for i in range(3)]
    prompts = {talk.name: text(talk.name, 36) for talk in busy}
    for talk in busy:
        world.ask(f"{talk.name}/0", prompts[talk.name], talk.name, ahead=Ahead(returns=True))
    world.finish()
    world.ask("stranger", text("stranger", 40), "stranger")
    asked = world.now
    turn = 0
    while "stranger" not in world.ended:
        turn += 1
        for talk in busy:
            world.ask(f"{talk.name}/{turn}", [*prompts[talk.name], turn % 90], talk.name, ahead=Ahead(returns=True))
        world.finish(*(f"{talk.name}/{turn}" for talk in busy))
        assert world.now - asked < 3 * TURN_S, "its turn comes"
    assert world.now - asked > 0.5 * TURN_S, "and not before the others have had theirs"


def test_a_tenant_with_many_runs_does_not_keep_out_one_with_few() -> None:
    world = World(100)
    for i in range(20):
        world.ask(f"many{i}", text(i, 20), f"many{i}", tenant="a", tokens=4)
    world.step()
    world.ask("few", text("few", 20), "few", tenant="b", tokens=4)
    world.finish()
    before = sum(world.ended[f"many{i}"] < world.ended["few"] for i in range(20))
    assert before <= 6, "those that fitted before it came"


def test_branches_of_a_fork_stand_side_by_side_and_the_longest_path_goes_first() -> None:
    world = World(400, budget=16)
    stem = text("stem", 4)
    world.ask("stem", stem, "tree", ahead=Ahead(returns=True))
    world.finish()
    order: list[str] = []
    for i in range(3):
        world.ask(f"other{i}", stem + text(f"other{i}", 1), f"other{i}")
        world.ask(f"branch{i}", stem + text(f"branch{i}", 1), "tree", ahead=Ahead(steps=1 + i))
    while not world.engine.idle:
        world.step()
        order += [name for name in world.ended if name not in order]
    branches = [order.index(f"branch{i}") for i in range(3)]
    assert branches == [branches[2] + 2, branches[2] + 1, branches[2]]


# ---- leases --------------------------------------------------------------------------------------------------------


def test_a_newer_prefix_supersedes_the_one_before() -> None:
    world = World(400)
    ids = text("a", 10)
    for turn in range(5):
        world.ask(str(turn), ids, "a", tokens=4, ahead=Ahead(returns=True))
        world.finish()
        ids = ids + world.said[str(turn)] + text(turn, 1)
        run = next(iter(world.runs._runs.values()))
        assert len(run.leases) == 1
    dropped = ids[: 10 * PAGE] + text("elsewhere", 3)  # a template that leaves out what was said: the old end is dead
    world.ask("other", dropped, "a", ahead=Ahead(returns=True))
    world.finish()
    assert len(run.leases) == 1
    assert world.runs.leased_pages() == 13


def test_a_run_leases_as_many_prefixes_as_it_had_branches() -> None:
    world = World(400)
    stem = text("stem", 4)
    for i in range(5):
        world.ask(f"branch{i}", stem + text(i, 2), "tree", ahead=Ahead(returns=True))
    world.finish()
    assert world.runs.leased_pages() == 4 + 5 * 2, "what they share is counted once"


def test_two_runs_that_share_a_prefix_lease_it_until_both_are_over() -> None:
    world = World(400)
    for run in ("a", "b"):
        world.ask(run, text("same", 6), run, ahead=Ahead(returns=True))
        world.finish()
    assert world.runs.leased_pages() == 6
    world.engine.end_run("", "a")
    assert world.runs.leased_pages() == 6
    world.engine.end_run("", "b")
    assert world.runs.leased_pages() == 0
    assert world.runs.live == 0


def test_the_youngest_run_gives_way_to_the_growth_of_older_ones() -> None:
    world = World(66)
    for run in ("old", "young"):
        world.ask(run, text(run, 29), run, ahead=Ahead(returns=True))
        world.finish()
    world.ask("grown", text("old", 29) + text("more", 20), "old", ahead=Ahead(returns=True))
    world.finish()
    assert world.cached["grown"] >= 29 * PAGE - 1
    assert world.runs.live == 2
    world.ask("next", text("next", 1))
    world.step()
    assert [run.key.run for run in world.runs._runs.values() if run.leases] == ["old"]
