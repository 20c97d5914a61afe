"""What backends are told: of a run's future, as its plan has it, and of its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes_lang import FakeBackend, aecho, echo, until
from lang_plans import told, tree

import bosquet.lang as bosquet
from bosquet.errors import Unavailable
from bosquet.lang import State, gen
from bosquet.types import Ahead


def test_a_compiled_run_tells_what_its_plan_says() -> None:
    tree.compile("bees")
    backend = FakeBackend()
    tree.run("wasps", backend=backend)  # the same plan: of texts only that they are some
    assert told(backend) == {
        ("", "plan"): Ahead(returns=True, steps=4),
        **{(branch, "more"): Ahead(returns=True, steps=3) for branch in "01"},
        **{(branch, "most"): Ahead(returns=False, steps=2) for branch in "01"},
        ("", "end"): Ahead(returns=False, steps=1),
    }


def test_other_arguments_have_no_plan_until_they_are_compiled() -> None:
    tree.compile("bees", width=3)
    backend = FakeBackend()
    tree.run("bees", 4, backend=backend)
    assert set(told(backend).values()) == {Ahead()}
    tree.compile("bees", 4)
    backend = FakeBackend()
    tree.run("bees", width=4, backend=backend)
    assert told(backend)["3", "more"] == Ahead(returns=True, steps=3)


def test_a_run_that_leaves_its_plan_does_without_it() -> None:
    @bosquet.program(max_tokens=3)
    def moody(s: State, word: str) -> None:
        s.user(word)
        if word == "short":
            s.assistant(gen("brief"))
        else:
            s.assistant(gen("a"))
            s.user("?")
            s.assistant(gen("b"))

    moody.compile("long")
    backend = FakeBackend()
    moody.run("short", backend=backend)
    assert told(backend) == {("", "brief"): Ahead()}


def test_a_program_that_is_static_in_part_says_so() -> None:
    @bosquet.program(max_tokens=3)
    def decides(s: State) -> None:
        s.user("One.")
        s.assistant(gen("x"))
        s.user("Two.")
        s.assistant(gen("y"))
        if s["y"] == "never":
            s.user("Three.")

    decides.compile()
    backend = FakeBackend()
    decides.run(backend=backend)
    assert told(backend) == {("", "x"): Ahead(True, steps=2), ("", "y"): Ahead(None, steps=1)}


# -- the end of a run -------------------------------------------------------------------------------------------------


def test_the_backend_hears_once_of_every_end() -> None:
    backend = FakeBackend()
    result = echo.run("ab", backend=backend)
    until(lambda: backend.ended == [result.run_id])
    results = echo.map(["a", "b", "c"], backend=backend)
    until(lambda: len(backend.ended) == 4)
    assert sorted(backend.ended[1:]) == sorted(one.run_id for one in results)
    asyncio.run(aecho.arun("ab", backend=backend))
    until(lambda: len(backend.ended) == 5)
    with pytest.raises(ZeroDivisionError):
        failing.run(backend=backend)
    until(lambda: len(backend.ended) == 6)
    assert len(set(backend.ended)) == 6
    assert {call.origin.run for call in backend.calls} >= set(backend.ended[:5])


@bosquet.program
def failing(s: State) -> None:
    s.user("ab")
    s.assistant(gen("x"))
    _ = 1 / 0


@bosquet.program(max_tokens=6)
def waiting(s: State) -> Any:
    s.user("ab")
    s.assistant(gen("reply"))
    return s["reply"]


def test_a_run_that_is_cancelled_or_left_ends_too() -> None:
    backend = FakeBackend(held=True, script={"reply": "abcabcabc"})

    async def cancelled() -> None:
        task = asyncio.ensure_future(waiting.arun(backend=backend))
        while not backend.calls:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    until(lambda: len(backend.ended) == 1)
    backend.held = False
    with waiting.stream(backend=backend) as stream:
        next(stream)
    until(lambda: len(backend.ended) == 2)
    assert backend.active == 0  # the end is told once the calls are over

    async def left() -> None:
        async with waiting.astream(backend=backend) as pieces:
            async for _ in pieces:
                break

    asyncio.run(left())
    until(lambda: len(backend.ended) == 3)
    assert backend.ended == list(dict.fromkeys(call.origin.run for call in backend.calls))


def test_nobody_waits_for_the_end_and_nobody_minds_if_it_fails() -> None:
    class Stuck(FakeBackend):
        async def end(self, run: str) -> None:
            await super().end(run)
            if len(self.ended) == 1:
                await asyncio.sleep(0.2)
            raise Unavailable("gone")

    backend = Stuck()
    echo.run("ab", backend=backend)
    echo.run("ab", backend=backend)
    until(lambda: len(backend.ended) == 2)


def test_a_run_that_asked_nothing_has_no_end_to_tell() -> None:
    backend = FakeBackend()

    @bosquet.program
    def silent(s: State) -> None:
        s += "ab"

    silent.run(backend=backend)
    echo.run("ab", backend=backend)
    until(lambda: len(backend.ended) == 1)
    assert len(backend.calls) == 1
