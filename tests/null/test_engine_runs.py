"""Runs that do not fit together: those under way keep their prefixes, the others get their turn, and nobody spins."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from fakes import END, VOCABULARY, HashRunner

from bosquet.radix_cache.pool import PagePool
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime.engine import Bounds, Engine
from bosquet.runtime.residency import ENOUGH, LEAST_S, PATIENCE_S, Claim, Program, Residency
from bosquet.runtime.scheduler import Limits, Vocabulary
from bosquet.runtime.sequence import Sequence as EngineSequence
from bosquet.types import PAGE, Origin, Request, SamplingParams

PIECES = [bytes([32 + i]) for i in range(VOCABULARY)]
THINKS_S = 0.3


def sequence(ids: Sequence[int], order: int, run: str = "run", tenant: str = "") -> EngineSequence:
    made = EngineSequence(
        Request(id=str(order), ids=list(ids), sampling=SamplingParams(), origin=Origin(tenant, "agent", run)),
        0,
        0,
        10_000,
        None,
    )
    made.order = order
    return made


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Talk:
    """A conversation: each prompt is all that was said before, and something new."""

    def __init__(self, name: str, tenant: str, rng: random.Random) -> None:
        self.name, self.tenant, self.rng = name, tenant, rng
        self.ids: list[int] = []
        self.turn = 0
        self.due = 0.0
        self.reused: list[tuple[int, int]] = []  # cached tokens, and those that were there before

    def ask(self) -> Request:
        before = len(self.ids)
        self.ids += [self.rng.randrange(END) for _ in range(4 * PAGE)]
        self.reused.append((0, before))
        self.turn += 1
        self.due = float("inf")
        origin = Origin(self.tenant, "agent", self.name)
        sampling = SamplingParams(max_tokens=8, ignore_eos=True, seed=0)
        return Request(id=f"{self.name}/{self.turn}", ids=list(self.ids), sampling=sampling, origin=origin)


def converse(talks: list[Talk], pages: int, turns: int = 6, resident: int | None = None) -> Engine:
    """All of them at once, to the end, each thinking between its turns. `resident`: pages for which runs are admitted,
    if not those of the pool."""
    clock = Clock()
    engine = Engine(
        HashRunner(pages),
        RadixCache(PagePool(pages), clock=clock),
        Limits(64, 8, ageing_s=5.0),
        Bounds(VOCABULARY, pages * PAGE, max_waiting=100),
        Vocabulary(PIECES, frozenset({END}), (END,)),
        clock=clock,
    )
    if resident is not None:
        engine.scheduler.residency = Residency(resident, clock)
    by_name = {talk.name: talk for talk in talks}
    for _ in range(100_000):
        for talk in talks:
            if talk.due <= clock.now and talk.turn < turns:
                engine.add(talk.ask())
        for output in engine.step():
            talk = by_name[output.request.partition("/")[0]]
            talk.ids += output.tokens
            if output.finish is not None:
                talk.reused[-1] = (output.cached_tokens, talk.reused[-1][1])
                talk.due = clock.now + THINKS_S
        engine.check_integrity()
        clock.now += 0.01
        if engine.idle and all(talk.turn == turns for talk in talks):
            return engine
    raise AssertionError("a conversation did not come to its end")


def lost(talks: list[Talk]) -> int:
    """Tokens that were computed before and computed again; the last token of an answer never was."""
    return sum(max(0, before - 1 - cached) for talk in talks for cached, before in talk.reused)


def test_few_at_a_time_lose_less_than_all_at_once() -> None:
    """A pool for two of six. What is lost at all is lost while they still fit and grow."""
    few, all_at_once = ([Talk(f"run{i}", "", random.Random(i)) for i in range(6)] for _ in range(2))
    converse(few, pages=64)
    converse(all_at_once, pages=64, resident=10_000)
    assert lost(few) < 0.4 * lost(all_at_once)


def test_all_that_fit_run_side_by_side() -> None:
    talks = [Talk(f"run{i}", "", random.Random(i)) for i in range(6)]
    engine = converse(talks, pages=400)
    assert lost(talks) == 0
    assert engine.scheduler.residency.admits()(sequence([1], 1000, "new"))


def test_a_run_larger_than_the_pool_still_ends() -> None:
    big = [Talk(f"run{i}", "", random.Random(i)) for i in range(2)]
    converse(big, pages=6 * 5 + 1)


def test_a_tenant_with_many_runs_does_not_keep_out_one_with_few() -> None:
    clock = Clock()
    residency = Residency(100, clock)
    for i in range(10):
        residency.enter(sequence([i] * 40 * PAGE, i, f"many{i}", "a"))
    few = sequence([99] * 40 * PAGE, 10, "one", "b")
    residency.enter(few)
    admits = residency.admits()
    assert [admits(sequence([], 0, f"many{i}", "a")) for i in range(10)] == [True] + [False] * 9
    assert admits(few)
    assert admits(sequence([1], 11, run="")), "without a run nobody waits for others"


def test_a_silent_run_gives_way_and_the_engine_sleeps_until_then() -> None:
    clock = Clock()
    residency = Residency(100, clock)
    first, second = sequence([1] * 80 * PAGE, 0, "first"), sequence([2] * 80 * PAGE, 1, "second")
    residency.enter(first)
    residency.enter(second)
    clock.now = 7.0
    residency.leave(first)
    assert not residency.admits()(second)
    assert residency.next_lapse == 7.0 + PATIENCE_S
    clock.now = residency.next_lapse
    assert residency.admits()(second)


def test_an_engine_that_waits_for_a_run_to_be_over_has_no_work_until_then() -> None:
    clock = Clock()
    engine = Engine(
        HashRunner(20),
        RadixCache(PagePool(20), clock=clock),
        Limits(640, 8, ageing_s=5.0),
        Bounds(VOCABULARY, 320, max_waiting=100),
        Vocabulary(PIECES, frozenset({END}), (END,)),
        clock=clock,
    )
    one = SamplingParams(max_tokens=1, ignore_eos=True)
    for run in ("first", "second"):
        engine.add(Request(id=run, ids=[len(run)] * 14 * PAGE, sampling=one, origin=Origin(run=run)))
    assert engine.seconds_to_work == 0
    while engine.has("first"):
        engine.step()
    clock.now += 1
    engine.step()
    assert engine.has("second")
    assert engine.seconds_to_work == pytest.approx(PATIENCE_S - 1)
    clock.now += PATIENCE_S
    assert engine.seconds_to_work == 0
    while engine.has("second"):
        engine.step()
    assert engine.seconds_to_work is None


def test_patience_is_learnt_also_from_runs_that_were_given_up_too_early() -> None:
    clock = Clock()
    residency = Residency(100, clock)
    for turn in range(2 * ENOUGH):
        asked = sequence([1] * PAGE, turn)
        residency.enter(asked)
        residency.leave(asked)
        clock.now += 20.0  # longer than the first patience
        residency.admits()
    asked = sequence([1] * PAGE, 1000)
    residency.enter(asked)
    residency.leave(asked)
    assert residency.next_lapse == clock.now + 20.0


def test_patience_has_a_least() -> None:
    clock = Clock()
    residency = Residency(100, clock)
    for turn in range(2 * ENOUGH):
        asked = sequence([1] * PAGE, turn)
        residency.enter(asked)
        residency.leave(asked)
    assert residency.next_lapse == LEAST_S


def test_an_ended_run_claims_nothing() -> None:
    clock = Clock()
    residency = Residency(100, clock)
    first, second = sequence([1] * 80 * PAGE, 0, "first"), sequence([2] * 80 * PAGE, 1, "second")
    residency.enter(first)
    residency.enter(second)
    residency.leave(first)
    residency.end("", "first")
    assert residency.admits()(second)


def test_a_claim_is_the_pages_of_the_conversation_and_its_open_branches() -> None:
    """Against a count of distinct prefixes in whole pages."""
    for seed in range(200):
        rng = random.Random(seed)
        claim = Claim(Program("", ""))
        stem = [rng.randrange(90) for _ in range(rng.randrange(1, 6) * PAGE)]
        branches = [stem + [1000 + 100 * i + j for j in range(rng.randrange(0, 4) * PAGE)] for i in range(4)]
        for order, ids in enumerate(branches):
            claim.enter(sequence(ids, order))
        longest = max(branches, key=len)
        whole = {tuple(ids[:end]) for ids in branches for end in range(PAGE, len(ids) + 1, PAGE)}
        assert claim.pages == len(whole)
        for order, ids in enumerate(branches):
            claim.leave(sequence(ids, order))
        assert not claim.open
        assert claim.pages == len(longest) // PAGE
