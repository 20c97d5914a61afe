"""Streams of a program's text, and programs mapped over many inputs."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from contextvars import ContextVar
from typing import Any

import pytest
from fakes_lang import FakeBackend, aecho, echo, until

import bosquet.lang as bosquet
from bosquet.errors import Overloaded, ProgramError


@bosquet.program
def two_steps(s: bosquet.State) -> str:
    s.user("Go.")
    s.assistant(bosquet.gen("plan"))
    s.user("On.")
    branches = s.fork(2)
    for branch in branches:
        branch.assistant(bosquet.gen("detail"))
    s.join(branches)
    s.assistant(bosquet.gen("answer", stop="x"), bosquet.select("sure", ["yes", "no"]))
    return "done"


@bosquet.program
async def two_async_steps(s: bosquet.State) -> str:
    s.user("Go.")
    s.assistant(bosquet.gen("plan"), bosquet.gen("answer"))
    return str(await s.get("answer"))


SCRIPT = {"plan": "the abc", "detail": "aa", "answer": "日本 is xx"}


@pytest.mark.parametrize(
    ("var", "pieces"),
    [("plan", ["the", " ", "abc"]), ("answer", ["日", "本", " ", "is "]), ("sure", None)],
)
def test_a_stream_is_the_text_of_one_variable_of_the_main_branch(var: str, pieces: list[str] | None) -> None:
    with two_steps.stream(var=var, backend=FakeBackend(script=SCRIPT)) as stream:
        heard = [piece for piece in stream if piece]
    assert "".join(heard) == stream.result[var]
    if pieces is not None:
        assert heard == pieces
    assert stream.result.value == "done"
    assert list(stream) == []


def test_a_stream_of_all_is_every_generation_of_the_main_branch_in_order() -> None:
    stream = two_steps.stream(backend=FakeBackend(script=SCRIPT))
    text = "".join(stream)
    assert text == "the abc日本 is " + stream.result["sure"]


def test_pieces_come_while_the_program_runs() -> None:
    backend = FakeBackend(pause=0.05, script={"reply": "abcabc"})
    stream = echo.stream("hi", backend=backend)
    assert next(stream) == "abc"
    assert backend.active == 1
    assert list(stream) == ["abc", ""] or list(stream) == []


def test_an_async_stream() -> None:
    async def main() -> None:
        stream = two_async_steps.astream(var="answer", backend=FakeBackend(script=SCRIPT))
        assert "".join([piece async for piece in stream]) == SCRIPT["answer"]
        assert (await stream.result()).value == SCRIPT["answer"]
        sync = two_steps.astream(var="plan", backend=FakeBackend(script=SCRIPT))
        assert "".join([piece async for piece in sync]) == "the abc"

    asyncio.run(main())


def test_a_stream_raises_where_its_call_fails() -> None:
    backend = FakeBackend(script={"plan": "a", "answer": Overloaded("full")})
    for var in (None, "plan"):  # in the second, what the function raises comes at the end
        stream = two_async_steps.stream(var=var, backend=backend)
        assert next(stream) == "a"
        with pytest.raises(ProgramError, match="step 'answer': full"):
            list(stream)
        assert list(stream) == []

    async def main() -> None:
        with pytest.raises(ProgramError, match="step 'answer': full"):
            async for _ in two_async_steps.astream(var="answer", backend=backend):
                pass

    asyncio.run(main())


def test_a_variable_that_never_comes_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"two_steps generated no 'detail' on its main branch"):
        list(two_steps.stream(var="detail", backend=FakeBackend(script=SCRIPT)))


class Stuck(FakeBackend):
    """After its first token nothing comes any more."""

    async def generate(self, call: bosquet.Call) -> Any:
        async for chunk in super().generate(call):
            self.held = True
            yield chunk


@pytest.mark.parametrize("program", [echo, aecho])
@pytest.mark.parametrize("how", ["close", "drop", "with"])
def test_a_stream_that_is_closed_or_dropped_cancels_its_calls(program: bosquet.Program[Any], how: str) -> None:
    backend = Stuck()
    stream = program.stream("hi", backend=backend)
    next(stream)
    if how == "close":
        stream.close()
        assert list(stream) == []
    elif how == "with":
        with stream:
            pass
    else:
        del stream
        gc.collect()
    until(lambda: backend.active == 0)
    assert backend.cancelled == 1


@pytest.mark.parametrize("program", [echo, aecho])
def test_an_async_stream_that_is_left_cancels_its_calls(program: bosquet.Program[Any]) -> None:
    async def gone(backend: FakeBackend) -> None:
        while backend.active:
            await asyncio.sleep(0.001)
        assert backend.cancelled == 1

    async def main() -> None:
        backend: FakeBackend = Stuck()
        async for _ in program.astream("hi", backend=backend):
            break
        gc.collect()
        await gone(backend)

        backend = Stuck()
        async with program.astream("hi", backend=backend) as stream:
            await anext(stream)
        await gone(backend)

        backend = FakeBackend(held=True)
        task = asyncio.ensure_future(anext(program.astream("hi", backend=backend)))
        while not backend.active:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone(backend)

    asyncio.run(main())


# -- map ---------------------------------------------------------------------------------------------------------------


@bosquet.program
def fragile(s: bosquet.State, n: int) -> int:
    s.user(f"{n}")
    if n == 3:
        raise LookupError("three")
    s.assistant(bosquet.gen("bad" if n == 5 else "good"))
    return n * n


@bosquet.program
async def afragile(s: bosquet.State, n: int) -> int:
    return await asyncio.sleep(0, fragile.function(s, n))


@pytest.mark.parametrize("program", [fragile, afragile])
def test_map_keeps_the_order_and_one_failure_leaves_the_others_alone(program: bosquet.Program[int]) -> None:
    backend = FakeBackend(script={"bad": Overloaded("full")}, pause=0.001)
    results = program.map([*range(6), {"n": 6}], backend=backend, concurrency=3)
    assert [None if result.error else result.value for result in results] == [0, 1, 4, None, 16, None, 36]
    assert isinstance(results[3].error, LookupError)
    for read in (lambda: results[3].value, lambda: results[3]["good"]):
        with pytest.raises(LookupError, match="three"):
            read()
    with pytest.raises(ProgramError, match="step 'bad': full"):
        results[5]["bad"]
    assert results[5].value == 25
    assert "error=LookupError('three')" in repr(results[3])
    assert len({result.run_id for result in results}) == 7


@pytest.mark.parametrize("program", [echo, aecho])
@pytest.mark.parametrize("concurrency", [1, 5, 32])
def test_map_runs_so_many_at_a_time(program: bosquet.Program[Any], concurrency: int) -> None:
    class Full(FakeBackend):
        def answer(self, call: bosquet.Call) -> Any:
            self.held = self.most_active < concurrency  # nothing goes on before so many are there
            return super().answer(call)

    backend = Full(pause=0.001)
    results = program.map([f"q{i}" for i in range(40)], backend=backend, concurrency=concurrency)
    assert len(results) == 40
    assert backend.most_active == concurrency
    assert program.map([], backend=backend) == []


def test_amap() -> None:
    async def main() -> None:
        results = await echo.amap(["a", "b"], backend=FakeBackend(script={"reply": "abc"}))
        assert [result.value for result in results] == ["abc", "abc"]
        results = await aecho.amap(["a", "b"], backend=FakeBackend(script={"reply": "abc"}))
        assert [result.value for result in results] == ["abc", "abc"]

    asyncio.run(main())


@pytest.mark.parametrize("program", [echo, aecho])
def test_cancelling_a_map_cancels_all_of_it(program: bosquet.Program[Any]) -> None:
    async def main() -> None:
        backend = FakeBackend(held=True)
        task = asyncio.create_task(program.amap([f"q{i}" for i in range(50)], backend=backend, concurrency=8))
        while backend.active < 8:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while backend.active:
            await asyncio.sleep(0.001)
        assert backend.cancelled == len(backend.calls) == 8

    asyncio.run(main())


def test_map_shows_its_progress_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    fragile.map(range(7), backend=FakeBackend(script={"bad": Overloaded("full")}), progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    for word in ("fragile", "7/7", "tok/s", "cached", "2 failed"):
        assert word in shown.err
    fragile.map(range(2), backend=FakeBackend())
    assert capsys.readouterr().err == ""


def test_what_map_cannot_do_is_refused_before_anything_runs() -> None:
    backend = FakeBackend()
    with pytest.raises(ValueError, match="concurrency must be at least 1"):
        echo.map(["a"], backend=backend, concurrency=0)
    with pytest.raises(TypeError, match="missing a required argument"):
        fragile.map([1, {}], backend=backend)
    assert not backend.calls


def test_a_program_may_map_another_in_its_own_threads() -> None:
    @bosquet.program
    def outer(s: bosquet.State, n: int) -> list[Any]:
        return [result.value for result in echo.map([f"{n}{i}" for i in range(3)], concurrency=3)]

    results = outer.map(range(8), backend=FakeBackend(script={"reply": "abc"}), concurrency=8)
    assert [result.value for result in results] == [["abc"] * 3] * 8


def test_a_sync_program_sees_its_callers_context_variables_in_its_thread() -> None:
    user = ContextVar("user", default="nobody")

    @bosquet.program
    def who(s: bosquet.State) -> tuple[str, bool]:
        return user.get(), threading.current_thread() is threading.main_thread()

    async def main() -> None:
        user.set("Ada")
        assert (await who.arun(backend=FakeBackend())).value == ("Ada", False)
        assert [result.value for result in await who.amap([{}], backend=FakeBackend())] == [("Ada", False)]

    asyncio.run(main())
    user.set("Bob")
    assert who.run(backend=FakeBackend()).value == ("Bob", True)
    assert who.map([{}], backend=FakeBackend())[0].value == ("Bob", False)


def test_a_call_costs_little() -> None:
    """Dispatch, encoding and bookkeeping of a call, without the backend's own time. The bound is loose: it is to catch
    a thread or a full copy a call, not a slow machine."""

    @bosquet.program
    def many(s: bosquet.State) -> None:
        s.user("Go.")
        branches = s.fork(500)
        for branch in branches:
            branch.assistant(bosquet.gen("x", max_tokens=1))
        s.join(branches)

    class Instant(FakeBackend):
        async def generate(self, call: bosquet.Call) -> Any:
            yield bosquet.Chunk("ab", [256], "length")

    backend = Instant()
    many.run(backend=backend)
    began = time.process_time()
    many.run(backend=backend)["x"]
    assert (time.process_time() - began) / 500 < 0.005
