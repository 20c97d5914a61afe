"""A run that is stopped at any point, in any way, leaves nothing behind: no generation, no task, no thread, no run."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from fakes_lang import FakeBackend, until, written

import bosquet.lang as bosquet
from bosquet.errors import BosquetError, Overloaded
from bosquet.lang.loop import language_loop, submit

Blow = Callable[[], None]


class Wired(FakeBackend):
    """Strikes at the `at`-th place where it could be left alone for a moment."""

    def __init__(self, at: int) -> None:
        calls = written("slow", n=1) + written("plain", n=2)
        super().__init__(script={"act": [calls, "Done."], "t": [Overloaded("full", 0.0001), "1", "2"]})
        self.at = at
        self.passed = 0
        self.strike: Blow = lambda: None

    async def _pass(self) -> None:
        self.passed += 1
        if self.passed == self.at:
            self.strike()
        await asyncio.sleep(0)

    async def encode(self, segments: Any) -> list[int]:
        await self._pass()
        return await super().encode(segments)

    async def render(self, messages: Any, **more: Any) -> Any:
        await self._pass()
        return await super().render(messages, **more)

    async def score(self, *args: Any) -> Any:
        await self._pass()
        return await super().score(*args)

    async def generate(self, call: bosquet.Call) -> Any:
        await self._pass()
        async for chunk in super().generate(call):
            yield chunk
            await self._pass()


@bosquet.tool
async def slow(n: int) -> int:
    """Take a moment."""
    await asyncio.sleep(0.0001)
    return n


@bosquet.tool
def plain(n: int) -> int:
    """Take none."""
    return n


@bosquet.program(max_tokens=3)
def part(s: bosquet.State) -> None:
    s.user("Part.")
    s.assistant(bosquet.gen("p", n=2))


def write(s: bosquet.State) -> None:
    s.user("Go.")
    s.act([slow, plain])
    branches = s.fork(2)
    for branch in branches:
        part(branch)
        branch.user("Which?")
        branch.assistant(bosquet.select("c", ["a", "bb"]))
    s.join(branches)
    s.user("On.")
    s.assistant(bosquet.gen("t", schema=int, retry=2) + bosquet.gen("end", stop="b"))


@bosquet.program(max_tokens=20)
def everything(s: bosquet.State) -> Any:
    write(s)
    return s["act"], s["c"], s["t"]


@bosquet.program(max_tokens=20)
async def aeverything(s: bosquet.State) -> Any:
    write(s)
    return await s.get("act"), await s.get("c"), await s.get("t")


def places() -> int:
    backend = Wired(0)
    assert everything.run(backend=backend).error is None
    return backend.passed


def by_error(program: bosquet.Program[Any], backend: Wired) -> None:
    def strike() -> None:
        raise ConnectionResetError("gone")

    backend.strike = strike
    with suppress(BosquetError):
        program.run(backend=backend)


def by_handle(program: bosquet.Program[Any], backend: Wired) -> None:
    running = program.start(backend=backend)
    backend.strike = lambda: running.cancel() and None
    with suppress(BaseException):
        running.result()


def by_stream(program: bosquet.Program[Any], backend: Wired) -> None:
    stream = program.stream(backend=backend)
    backend.strike = stream.close
    with suppress(BosquetError):
        list(stream)


def by_task(program: bosquet.Program[Any], backend: Wired) -> None:
    async def main() -> None:
        here = asyncio.get_running_loop()
        task = asyncio.create_task(program.arun(backend=backend))
        backend.strike = lambda: here.call_soon_threadsafe(task.cancel) and None
        with suppress(BosquetError, asyncio.CancelledError):
            await task

    asyncio.run(main())


def by_budget(program: bosquet.Program[Any], backend: Wired) -> None:
    with suppress(BosquetError):
        program.run(backend=backend, budget=bosquet.Budget(tokens=max(1, backend.at * 20)))


KILLS = [by_error, by_handle, by_stream, by_task, by_budget]
STRIDE = 4  # each way of stopping takes other places, so that the test stays short


async def tasks() -> int:
    return len(asyncio.all_tasks()) - 1


@pytest.mark.parametrize("program", [everything, aeverything], ids=["sync", "async"])
@pytest.mark.parametrize("kill", KILLS)
def test_whatever_stops_a_run_wherever_nothing_is_left(
    program: bosquet.Program[Any], kill: Callable[[Any, Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    total = places()
    assert total > 40
    threads = threading.active_count()
    backends = []
    for at in range(1 + KILLS.index(kill) % STRIDE, total + 1, STRIDE):
        backend = Wired(at)
        kill(program, backend)
        backends.append(backend)
    assert sum(backend.passed >= backend.at for backend in backends) > len(backends) * 0.8 or kill is by_budget
    until(lambda: all(backend.active == 0 for backend in backends))
    until(lambda: submit(tasks()).result() == 0)
    until(lambda: not any("bosquet-tool" in thread.name for thread in threading.enumerate()))
    until(lambda: threading.active_count() <= threads + 2)
    gc.collect()
    assert not [record for record in caplog.records if "never retrieved" in record.message]
    # A run of which any call was sent has been told to be over, and once only.
    until(lambda: all({call.origin.run for call in backend.calls} <= set(backend.ended) for backend in backends))
    assert all(len(backend.ended) <= 1 for backend in backends)


def test_a_run_that_was_stopped_is_forgotten() -> None:
    backend = Wired(30)
    stream = everything.stream(backend=backend)
    backend.strike = stream.close
    with suppress(BosquetError):
        list(stream)
    run = weakref.ref(stream._job.run)
    del stream
    backend.strike = lambda: None
    until(lambda: submit(tasks()).result() == 0)
    until(lambda: gc.collect() >= 0 and run() is None)
    assert language_loop().is_running()
