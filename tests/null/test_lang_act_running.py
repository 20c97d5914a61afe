"""Where and when the tools of `s.act` run: side by side, on the right loop, and not for longer than the program."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest
from fakes_lang import FakeBackend, until, written
from fakes_lang_tools import aagent, add, agent, scripted

import bosquet.lang as bosquet


def test_results_come_in_the_order_of_the_calls_however_the_tools_end() -> None:
    ended: list[int] = []

    @bosquet.tool
    async def wait(place: int) -> int:
        "Wait for those that come after it."
        while len(ended) < 2 - place:
            await asyncio.sleep(0.001)
        ended.append(place)
        return place

    @bosquet.tool
    def block(place: int) -> int:
        "Block until those that come after it have ended."
        until(lambda: len(ended) == 2 - place)
        ended.append(place)
        return place

    for tool in (wait, block):
        calls = "".join(written(tool.name, place=i) for i in range(3))
        for program in (agent, aagent):
            ended.clear()
            result = program.run(tool, backend=scripted(calls, "ok"))
            assert [call.value for call in result.value.calls] == [0, 1, 2]
            assert [m["content"] for m in result.messages if m["role"] == "tool"] == ["0", "1", "2"]
            assert ended == [2, 1, 0]


def test_one_call_at_a_time_where_that_is_asked_for() -> None:
    ended: list[int] = []

    @bosquet.tool
    async def wait(place: int) -> int:
        "Wait."
        await asyncio.sleep(0.02 * (3 - place))
        ended.append(place)
        return place

    @bosquet.tool
    def block(place: int) -> int:
        "Block."
        time.sleep(0.02 * (3 - place))
        ended.append(place)
        return place

    for tool in (wait, block):
        calls = "".join(written(tool.name, place=i) for i in range(3))
        for program in (agent, aagent):
            ended.clear()
            acted = program.run(tool, parallel=False, backend=scripted(calls, "ok")).value
            assert [call.value for call in acted.calls] == ended == [0, 1, 2]
            assert all(call.seconds > 0.019 for call in acted.calls)


def test_tools_of_one_step_run_at_the_same_time() -> None:
    met = threading.Barrier(3, timeout=30)
    ready: list[str] = []

    @bosquet.tool
    def here(x: int) -> str:
        "Meet."
        met.wait()  # passes only if all three are here
        return threading.current_thread().name

    @bosquet.tool
    async def there(x: int) -> int:
        "Meet."
        ready.append("x")
        while len(ready) < 3:
            await asyncio.sleep(0.001)
        return x

    for tool in (here, there):
        calls = "".join(written(tool.name, x=i) for i in range(3))
        acted = agent.run(tool, backend=scripted(calls, "ok")).value
        assert not acted.errors
        assert len({call.value for call in acted.calls}) == 3


def test_maps_and_awaited_programs() -> None:
    @bosquet.program(max_tokens=500)
    def of(s: bosquet.State, number: int) -> Any:
        s.user(f"{number}")
        s.act([add])
        return s["act"].calls[0].value

    class Asked(FakeBackend):
        def answer(self, call: Any) -> Any:
            number = len(self.calls)
            self.script = {"act": "ok" if "<<" in self.told(call) else written("add", a=number, b=0)}
            return super().answer(call)

        def told(self, call: Any) -> str:
            from fakes_lang import decode

            return decode(call.ids)

    assert len({result.value for result in of.map(range(40), backend=Asked(), concurrency=8)}) == 40
    assert asyncio.run(of.arun(1, backend=Asked())).value == 1


def test_async_tools_run_on_the_loop_of_an_async_program_with_its_context() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")
    seen: list[Any] = []

    @bosquet.tool
    async def who() -> str:
        "Who."
        seen.append(asyncio.get_running_loop())
        return user.get()

    @bosquet.tool
    def also() -> str:
        "Who."
        seen.append(threading.current_thread())
        return user.get()

    calls = written("who") + written("also")

    async def main() -> None:
        user.set("Ada")
        acted = (await aagent.arun(who, also, backend=scripted(calls, "ok"))).value
        assert [call.value for call in acted.calls] == ["Ada", "Ada"]
        assert asyncio.get_running_loop() in seen
        assert threading.main_thread() not in seen

    asyncio.run(main())
    user.set("Bob")
    for program in (agent, aagent):
        acted = program.run(who, also, backend=scripted(calls, "ok")).value
        assert [call.value for call in acted.calls] == ["Bob", "Bob"]


def test_a_plain_function_around_an_async_one() -> None:
    @bosquet.tool
    def around(x: int) -> Any:
        "Around."

        async def inside() -> int:
            await asyncio.sleep(0)
            return x + 1

        return inside()

    for program in (agent, aagent):
        assert program.run(around, backend=scripted(written("around", x=1), "ok")).value.calls[0].value == 2


def test_a_tool_may_run_a_program_and_tools_within_tools_do_not_wait_for_one_another() -> None:
    @bosquet.tool
    def deeper(depth: int) -> str:
        "Deeper."
        if depth == 0:
            return "bottom"
        calls = written("deeper", depth=depth - 1) * 3
        return agent.run(deeper, backend=scripted(calls, f"from {depth}")).value.text  # type: ignore[no-any-return]

    calls = written("deeper", depth=2) * 3
    acted = agent.run(deeper, backend=scripted(calls, "top")).value
    assert [call.value for call in acted.calls] == ["from 2"] * 3


def test_cancelling_a_program_cancels_its_async_tools() -> None:
    begun, stopped = threading.Event(), threading.Event()

    @bosquet.tool
    async def forever() -> None:
        "Never ends."
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()

    def stream() -> None:
        with agent.stream(forever, backend=scripted(written("forever"))) as pieces:
            assert begun.wait(30)
            pieces.close()

    async def task(program: Any) -> None:
        running = asyncio.ensure_future(program.arun(forever, backend=scripted(written("forever"))))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    ways: list[Callable[[], Any]] = [stream, lambda: asyncio.run(task(agent)), lambda: asyncio.run(task(aagent))]
    for way in ways:
        way()
        assert stopped.wait(30)
        begun.clear()
        stopped.clear()


def test_cancelling_does_not_wait_for_a_sync_tool() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    @bosquet.tool
    def slow() -> None:
        "Slow."
        begun.set()
        go_on.wait(60)
        ended.set()

    backend = scripted(written("slow"), "never asked")
    with agent.stream(slow, backend=backend) as pieces:
        assert begun.wait(30)
        pieces.close()
        with pytest.raises(CancelledError):
            _ = pieces.result
        assert not ended.is_set()
    go_on.set()
    assert len(backend.calls) == 1


def test_a_tool_that_cancels_itself_has_failed() -> None:
    @bosquet.tool
    async def gives_up() -> None:
        "Gives up."
        raise asyncio.CancelledError

    for program in (agent, aagent):
        acted = program.run(gives_up, backend=scripted(written("gives_up"), "ok")).value
        assert [call.text for call in acted.calls] == ["CancelledError"]
        assert acted.finished


def test_an_act_that_was_left_alone_leaves_nothing_behind() -> None:
    @bosquet.program(max_tokens=500)
    def careless(s: bosquet.State) -> None:
        s.user("Go.")
        s.act([add])

    backend = scripted(written("add", a=1, b=2), "3")
    result = careless.run(backend=backend)
    assert result["act"].text == "3"  # a run ends when its calls have
    until(lambda: not any(thread.name.startswith("bosquet-tool") for thread in threading.enumerate()))
