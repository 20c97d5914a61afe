"""Runs that are started and left alone, programs inside programs, and what an error carries."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import re
import threading
import traceback
from typing import Any

import pytest
from fakes_lang import FakeBackend, aecho, echo, until

import bosquet.lang as bosquet
from bosquet.errors import BosquetError, Overloaded, ProgramError

# -- handles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [echo, aecho])
def test_a_started_run_is_waited_for_or_awaited(program: bosquet.Program[Any]) -> None:
    backend = FakeBackend(script={"reply": "ab"}, held=True)
    running = program.start("hi", backend=backend)
    assert not running.done()
    assert "under way" in repr(running)
    with pytest.raises(TimeoutError):
        running.result(timeout=0.001)
    backend.held = False
    assert running.result()["reply"] == "ab"
    assert (running.done(), running.cancel()) == (True, False)
    assert running.run_id == running.result().run_id

    async def main() -> None:
        backend.held = True
        started = program.start("hi", backend=backend)
        with pytest.raises(RuntimeError, match="waiting would block the loop: await it"):
            started.result()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(started, 0.001)
        backend.held = False
        first, second = await asyncio.gather(started, started)  # a reader that gave up has stopped nothing
        assert first is second is started.result()

    asyncio.run(main())


@pytest.mark.parametrize("program", [echo, aecho])
def test_a_started_run_is_cancelled_from_outside(program: bosquet.Program[Any]) -> None:
    backend = FakeBackend(pause=3600.0)
    running = program.start("hi", backend=backend)
    until(lambda: backend.active == 1)
    other = threading.Thread(target=running.cancel)
    other.start()
    other.join()
    with pytest.raises(concurrent.futures.CancelledError):
        running.result()
    until(lambda: backend.active == 0)
    assert backend.cancelled == 1
    assert "cancelled" in repr(running)
    assert not running.cancel()

    async def main() -> None:
        started = program.start("hi", backend=backend)
        while backend.active == 0:
            await asyncio.sleep(0.001)
        started.cancel()
        with pytest.raises(asyncio.CancelledError):
            await started

    asyncio.run(main())
    until(lambda: backend.active == 0)


def test_a_handle_that_is_dropped_changes_nothing_and_one_that_fails_says_why() -> None:
    backend = FakeBackend(script={"reply": "ab"}, pause=0.01)
    echo.start("hi", backend=backend)
    gc.collect()
    until(lambda: len(backend.calls) == 1 and backend.active == 0)
    assert backend.cancelled == 0
    failing = echo.start("hi", backend=FakeBackend(script={"reply": Overloaded("full")}))
    with pytest.raises(ProgramError, match="full"):
        failing.result()
    assert failing.done()
    with pytest.raises(TypeError, match=r"echo\(topic\): missing a required argument"):
        echo.start(backend=backend)


def test_a_stream_that_is_closed_from_elsewhere_is_at_its_end() -> None:
    backend = FakeBackend(script={"reply": "abab"}, pause=5.0)
    stream = echo.stream("hi", backend=backend)
    until(lambda: backend.active == 1)
    closing = threading.Timer(0.02, stream.close)
    closing.start()
    assert list(stream) == []
    closing.join()

    async def main() -> None:
        streamed = aecho.astream("hi", backend=backend)
        asyncio.get_running_loop().call_later(0.02, lambda: asyncio.ensure_future(streamed.aclose()))
        assert [piece async for piece in streamed] == []

    asyncio.run(main())
    until(lambda: backend.active == 0)


# -- programs inside programs -----------------------------------------------------------------------------------------


@bosquet.program(temperature=0, stop="x")
def inner(s: bosquet.State, name: str) -> None:
    s.user(name)
    s.assistant(bosquet.gen(name, max_tokens=7))
    for branch in s.fork(2):
        branch.assistant(bosquet.gen("deep"))


@bosquet.program(temperature=0.5, top_p=0.9)
async def outer(s: bosquet.State) -> None:
    s.user("Go.")
    s.assistant(bosquet.gen("before"))
    inner(s, "in")
    s.user("On.")
    s.assistant(bosquet.gen("after"))


def test_a_program_inside_another_one_keeps_its_own_defaults() -> None:
    backend = FakeBackend(script=dict.fromkeys(("before", "in", "deep", "after"), "a"))
    assert outer.run(backend=backend).error is None
    said = {call.origin.step: call.sampling for call in backend.calls}
    assert {name: (p.temperature, p.top_p, p.max_tokens, p.stop) for name, p in said.items()} == {
        "before": (0.5, 0.9, 128, ()),
        "in": (0, 0.9, 7, (b"x",)),
        "deep": (0, 0.9, 128, (b"x",)),
        "after": (0.5, 0.9, 128, ()),
    }


def test_programs_inside_forks_run_side_by_side() -> None:
    @bosquet.program
    def step(s: bosquet.State, place: int) -> None:
        s.user(str(place))
        s.assistant(bosquet.gen("x"))
        for branch in s.fork(2):
            branch.assistant(bosquet.gen("y"))

    @bosquet.program
    def both(s: bosquet.State) -> Any:
        s.user("Go.")
        branches = s.fork(3)
        for place, branch in enumerate(branches):
            step(branch, place)
        s.join(branches)
        return s["x"]

    @bosquet.program
    async def aboth(s: bosquet.State) -> Any:
        s.user("Go.")
        branches = s.fork(3)
        for place, branch in enumerate(branches):
            step(branch, place)
        s.join(branches)
        return await s.get("x")

    for program in (both, aboth):
        backend = FakeBackend(script={"x": "a", "y": "b"}, pause=0.01)
        assert program.run(backend=backend).value == ["a", "a", "a"]
        assert backend.most_active == 6


def test_one_variable_is_streamed_from_wherever_it_is_written_on_the_main_branch() -> None:
    backend = FakeBackend(script={"before": "abc", "in": "the ab", "deep": "b", "after": "ca"})

    async def main(var: str) -> str:
        return "".join([piece async for piece in outer.astream(var=var, backend=backend)])

    for var, said in (("in", "the ab"), ("after", "ca")):
        assert "".join(outer.stream(var=var, backend=backend)) == said
        assert asyncio.run(main(var)) == said
    with pytest.raises(KeyError, match="outer generated no 'deep' on its main branch"):
        list(outer.stream(var="deep", backend=backend))


# -- what an error carries --------------------------------------------------------------------------------------------


def test_an_error_carries_the_end_of_the_prompt_and_shows_it() -> None:
    @bosquet.program
    def failing(s: bosquet.State) -> None:
        s.user("Word " * 100 + "last one.")
        s.assistant("So: " + bosquet.gen("x") + bosquet.gen("y"))

    result = failing.run(backend=FakeBackend(script={"x": "ab", "y": Overloaded("full")}))
    with pytest.raises(ProgramError) as caught:
        result["y"]
    assert caught.value.prompt.endswith("last one.\nassistant: So: ab")
    assert caught.value.prompt.startswith("…")
    assert len(caught.value.prompt) == 201
    assert str(caught.value) == "failing: step 'y': full"
    shown = "".join(traceback.format_exception(caught.value))
    assert re.search(r"the prompt of 'y' ended with '….*So: ab'", shown)
    early = failing.run(backend=FakeBackend(script={"x": Overloaded("full")}))
    with pytest.raises(ProgramError) as caught:
        early["y"]
    assert caught.value.prompt == "", "it was not reached"
    assert isinstance(caught.value.__cause__, ProgramError)
    assert "last one." in caught.value.__cause__.prompt


@pytest.mark.parametrize("calls", [0, 1])
def test_the_end_of_the_prompt_shows_turns_whether_they_were_encoded_or_not(calls: int) -> None:
    @bosquet.program
    def typed(s: bosquet.State) -> None:
        s.user("aaa")
        s.assistant(bosquet.gen("x") if calls else "ab")
        s.user("bbb")
        s.assistant("well, " + bosquet.gen("y", schema=dict))

    result = typed.run(backend=FakeBackend(script={"x": "ab", "y": "no"}))
    with pytest.raises(ProgramError) as caught:
        result["y"]
    assert caught.value.prompt == "user: aaa\nassistant: ab\nuser: bbb\nassistant: well, "


def test_turns_that_no_call_has_needed_are_told_apart_in_the_text() -> None:
    @bosquet.program
    def parting(s: bosquet.State) -> None:
        s.user("aaa")
        s.assistant(bosquet.gen("x"))
        s.user("bye")

    said = parting.run(backend=FakeBackend(script={"x": "ab"})).text
    assert said == "<|im_start|>user\naaa<|im_end|>\n<|im_start|>assistant\nab\nuser: bye"


def test_a_value_that_is_wrong_carries_its_prompt_too() -> None:
    @bosquet.program
    def typed(s: bosquet.State) -> Any:
        s.user("How many?")
        s.assistant(bosquet.gen("x", schema=int))
        return s["x"]

    with pytest.raises(ProgramError) as caught:
        typed.run(backend=FakeBackend(script={"x": "many"}))
    assert "How many?" in caught.value.prompt
    assert not isinstance(caught.value.__cause__, BosquetError)
