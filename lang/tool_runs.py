"""The calls of one answer, carried out: sync tools in threads, async ones on an event loop, results in the order of the
calls.

Knows nothing of models or turns. Whatever a tool raises becomes the text that answers its call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Final, NamedTuple

from ..types import ToolCall
from .arguments import half_character
from .loop import language_loop
from .raised import said
from .tool import InvalidArguments, Tool

THREADS: Final = 16
"""Most sync tools of one answer that run at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """A call that the model made, and what came of it.

    `arguments` is JSON text as the model wrote it. `value` is what the tool returned, `error` what it raised (or why it
    was not called: `InvalidArguments`, `KeyError` for a tool that is not there), `text` what the model was told.
    `seconds` are the tool's own.
    """

    id: str
    name: str
    arguments: str
    text: str
    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0


class _Outcome(NamedTuple):
    value: Any
    error: BaseException | None
    seconds: float


class Workplace:
    """Where tools run. Made by the code that hands the tools over: async ones then run on the event loop of an async
    program, or on the language's own; all see the context variables of that moment."""

    def __init__(self) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = language_loop()
        self._context = copy_context()

    async def run(
        self, tools: Mapping[str, Tool[..., Any]], calls: Sequence[ToolCall], parallel: bool
    ) -> tuple[ToolRun, ...]:
        """Carry out the calls, side by side or one after the other. Awaited on the language's loop. Cancelled, it
        cancels the async tools; a sync tool that runs cannot be stopped, and its result is lost."""
        threads = ThreadPoolExecutor(min(THREADS, max(1, len(calls))), "bosquet-tool")  # threads start when needed
        try:
            if not parallel:
                return tuple([await self._one(tools, call, threads) for call in calls])
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(tools, call, threads)) for call in calls]
            return tuple(task.result() for task in tasks)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)  # waiting here could block the loop that they wait for

    async def _one(self, tools: Mapping[str, Tool[..., Any]], call: ToolCall, threads: ThreadPoolExecutor) -> ToolRun:
        def ended(text: str, outcome: _Outcome) -> ToolRun:
            value, error, seconds = outcome
            return ToolRun(
                id=call.id, name=call.name, arguments=call.arguments,
                text=text, value=value, error=error, seconds=seconds,
            )  # fmt: skip

        tool = tools.get(call.name)
        if tool is None:
            text = f"there is no tool {call.name!r}, only {', '.join(tools)}"
            return ended(text, _Outcome(None, KeyError(call.name), 0.0))
        try:
            arguments = tool.arguments(call.arguments)
        except InvalidArguments as error:
            return ended(f"invalid arguments: {_sayable(str(error))}", _Outcome(None, error, 0.0))
        except Exception as error:  # a check that the tool's author wrote
            return ended(_sayable(said(error)), _Outcome(None, error, 0.0))
        outcome = await self._call(tool, arguments, threads)
        if outcome.error is None:
            try:
                return ended(_as_text(outcome.value), outcome)
            except Exception as error:  # what JSON cannot say, and what a value raises that is asked what it is
                outcome = outcome._replace(error=error)
        assert outcome.error is not None
        return ended(_sayable(said(outcome.error)), outcome)

    async def _call(self, tool: Tool[..., Any], arguments: dict[str, Any], threads: ThreadPoolExecutor) -> _Outcome:
        context = self._context.copy()
        if tool.is_async:
            return await self._on_loop(lambda: _awaited(tool(**arguments)), context)
        here = asyncio.get_running_loop()
        outcome = await here.run_in_executor(threads, context.run, _called, tool, arguments)
        if outcome.error is None and isawaitable(outcome.value):  # a plain function around an async one
            waiting = outcome.value
            return await self._on_loop(lambda: _awaited(waiting), context)
        return outcome

    async def _on_loop(self, make: Callable[[], Coroutine[Any, Any, _Outcome]], context: Context) -> _Outcome:
        async def work() -> _Outcome:
            return await asyncio.get_running_loop().create_task(make(), context=context)

        try:
            if self._loop is asyncio.get_running_loop():
                return await work()
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._loop))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return _Outcome(None, error, 0.0)  # the tool has cancelled itself


def _called(tool: Tool[..., Any], arguments: dict[str, Any]) -> _Outcome:
    began = time.perf_counter()
    try:
        return _Outcome(tool(**arguments), None, time.perf_counter() - began)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # the model is told, and the caller finds it
        return _Outcome(None, error, time.perf_counter() - began)


async def _awaited(waiting: Any) -> _Outcome:
    began = time.perf_counter()
    try:
        return _Outcome(await waiting, None, time.perf_counter() - began)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # as above; the last two would end the loop
        return _Outcome(None, error, time.perf_counter() - began)


def _as_text(value: Any) -> str:
    """What the model is told of a result: a text as it is, everything else as JSON. Raises ValueError."""
    if not isinstance(value, str):
        from pydantic_core import to_json  # heavy, and loaded with the first tool

        return to_json(value).decode()
    if (fault := half_character(value)) is not None:
        raise ValueError(f"the result {fault}")
    return value


def _sayable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
