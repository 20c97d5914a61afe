"""A budget of tokens, calls or seconds: what would pass it fails where it is read, and all else ends with it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from fakes_lang import FakeBackend, aecho, echo, until, written
from hypothesis import given, settings
from hypothesis import strategies as st
from moved_clock import language_clock

import bosquet.lang as bosquet
from bosquet.errors import BudgetExceeded, ProgramError
from bosquet.lang.budget import Ledger, Spent

LONG = "abc " * 50


@bosquet.program(budget=bosquet.Budget(calls=2), temperature=0)
def three(s: bosquet.State) -> list[str]:
    s.user("Go.")
    for name in ("x", "y", "z"):
        s.assistant(bosquet.gen(name, max_tokens=5))
        s.user("On.")
    return [s[name] for name in ("x", "y")]


def test_the_call_that_would_pass_it_is_not_made() -> None:
    backend = FakeBackend(script={"x": "a", "y": "b", "z": "c"})
    result = three.run(backend=backend)
    assert result.value == ["a", "b"]
    assert len(backend.calls) == 2
    with pytest.raises(BudgetExceeded, match=r"^three: step 'z': the run's budget of 2 calls is spent") as caught:
        result["z"]
    assert isinstance(caught.value, ProgramError)
    assert (caught.value.limit, caught.value.step) == ("calls", "z")
    assert three.run(backend=FakeBackend(), budget=bosquet.Budget(calls=3)).error is None, "the run's own word counts"


def test_a_call_that_could_not_have_one_token_is_not_sent() -> None:
    prompt = echo.run("hi", backend=FakeBackend(script={"reply": "a"})).meta("reply").prompt_tokens
    for spare, sent in ((0, 0), (1, 1)):
        backend = FakeBackend(script={"reply": "aaaa aaaa"})
        with pytest.raises(BudgetExceeded):
            echo.run("hi", backend=backend, budget=bosquet.Budget(tokens=prompt + spare))
        assert len(backend.calls) == sent


def test_tokens_are_counted_while_they_come_and_the_others_end() -> None:
    @bosquet.program
    def wide(s: bosquet.State) -> None:
        s.user("Go.")
        branches = s.fork(3)
        for branch in branches:
            branch.assistant(bosquet.gen("x", max_tokens=500), bosquet.gen("later"))
        until(lambda: all(branch.ready("x") for branch in branches))
        for branch in branches:
            with pytest.raises(BudgetExceeded, match="the run's budget of 200 tokens is spent"):
                branch["x"]
            with pytest.raises(BudgetExceeded, match=r"was not reached|was cancelled"):
                branch["later"]
        s.assistant(bosquet.gen("after"))
        with pytest.raises(BudgetExceeded, match="step 'after' was cancelled: the run's budget"):
            s["after"]

    backend = FakeBackend(script={"x": LONG, "later": "a", "after": "a"}, pause=0.0005)
    wide.run(backend=backend, budget=bosquet.Budget(tokens=200))
    assert len(backend.calls) == 3
    assert (backend.active, backend.cancelled) == (0, 3)


@pytest.mark.parametrize("program", [echo, aecho])
def test_seconds_end_what_is_under_way(program: bosquet.Program[Any]) -> None:
    class Slow(FakeBackend):
        def answer(self, call: bosquet.Call) -> Any:
            clock.move(101)
            return super().answer(call)

    backend = Slow(pause=3600.0)
    with (
        language_clock() as clock,
        pytest.raises(BudgetExceeded, match=r"step 'reply': the run's budget of 100 seconds is spent") as caught,
    ):
        program.run("hi", backend=backend, budget=bosquet.Budget(seconds=100))
    assert caught.value.limit == "seconds"
    assert caught.value.prompt.endswith("hi<|im_end|>\n") or "hi" in caught.value.prompt
    until(lambda: backend.active == 0)
    assert backend.cancelled == 1


def test_seconds_count_from_the_start_of_the_run() -> None:
    @bosquet.program
    def late(s: bosquet.State) -> Any:
        time.sleep(0.03)
        s.user("Go.")
        s.assistant(bosquet.gen("x"))
        return s["x"]

    backend = FakeBackend(script={"x": "a"}, pause=0.001)
    with pytest.raises(BudgetExceeded):
        late.run(backend=backend, budget=bosquet.Budget(seconds=0.01))


def test_an_act_is_bounded_and_its_tools_end() -> None:
    stopped: list[bool] = []

    @bosquet.tool
    async def wait() -> str:
        """Wait for ever."""
        try:
            clock.move(101)
            await asyncio.sleep(3600)
        finally:
            stopped.append(True)
        return ""

    @bosquet.program
    def work(s: bosquet.State) -> Any:
        s.user("Go.")
        s.act([wait])
        return s["act"]

    backend = FakeBackend(script={"act": written("wait")})
    with language_clock() as clock, pytest.raises(BudgetExceeded):
        work.run(backend=backend, budget=bosquet.Budget(seconds=100))
    until(lambda: stopped == [True])


def test_a_backend_without_token_ids_is_counted_at_the_end_of_each_call() -> None:
    backend = FakeBackend(script={"x": LONG, "y": "b"}, capabilities=frozenset({"messages"}))

    @bosquet.program
    def two(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(bosquet.gen("x", max_tokens=500))
        s.user("On.")
        s.assistant(bosquet.gen("y"))

    result = two.run(backend=backend, budget=bosquet.Budget(tokens=100))
    with pytest.raises(BudgetExceeded):
        result["x"]
    assert len(backend.calls) == 1
    result = two.run(backend=backend, budget=bosquet.Budget(tokens=2000))
    assert result.error is None


def test_each_item_of_a_map_has_a_budget_of_its_own() -> None:
    results = echo.map(["a", "b", "c"], backend=FakeBackend(), budget=bosquet.Budget(calls=1))
    assert [result.error for result in results] == [None] * 3


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 60), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_what_goes_through_is_within_the_budget_and_the_rest_is_refused(
    lengths: list[int], tokens: int, calls: int
) -> None:
    """Against plain sums: each call's prompt is one token, and its tokens come one by one."""
    ledger = Ledger(bosquet.Budget(tokens=tokens, calls=calls))

    def call(length: int) -> None:
        ledger.begin(1)
        for _ in range(length):
            ledger.add(1)

    spent = made = 0
    for length in lengths:
        if made == calls or spent + 1 + length > tokens:
            with pytest.raises(Spent) as caught:
                call(length)
            assert caught.value.limit == ("calls" if made == calls else "tokens")
            assert ledger.over is caught.value
            return
        call(length)
        made, spent = made + 1, spent + 1 + length


def test_a_budget_belongs_to_a_run() -> None:
    @bosquet.program
    def outer(s: bosquet.State) -> None:
        three(s)

    with pytest.raises(TypeError, match="three has a budget, which is that of a whole run"):
        outer.run(backend=FakeBackend())


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (bosquet.Budget, "Budget: at least one of tokens, calls and seconds must be given"),
        (lambda: bosquet.Budget(tokens=0), "Budget: tokens must be from 1 to"),
        (lambda: bosquet.Budget(calls=1.5), "Budget: calls must be a whole number, not 1.5"),  # type: ignore[arg-type]
        (lambda: bosquet.Budget(seconds=0), "Budget: seconds must be above zero"),
        (lambda: bosquet.program(budget=5), "program: budget must be a Budget, not 5"),  # type: ignore[call-overload]
        (lambda: echo.run("a", backend=FakeBackend(), budget=5), "echo: budget must be a Budget, not 5"),  # type: ignore[arg-type]
    ],
)
def test_what_is_none_is_refused_on_its_line(make: Any, sentence: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    assert str(caught.value).startswith(sentence)


def test_a_program_that_only_writes_is_stopped_where_it_writes() -> None:
    """It reads nothing, so there is no other place."""

    @bosquet.program(budget=bosquet.Budget(calls=3))
    def endless(s: bosquet.State) -> None:
        while True:
            s.user("x")
            s.assistant(bosquet.gen("y", max_tokens=1))

    backend = FakeBackend()
    with pytest.raises(BudgetExceeded, match="the run's budget of 3 calls is spent"):
        endless.run(backend=backend)
    assert len(backend.calls) == 3
