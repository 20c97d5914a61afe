"""`s.act` beside a plain loop that carries out one call after the other: the same turns, whatever the tools take.

The loop is written here without the language: messages in, messages out.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pydantic_core
import pytest
from fakes_lang import FakeBackend, written
from hypothesis import given, settings
from hypothesis import strategies as st

import bosquet.lang as bosquet

PAUSES = {0: 0.006, 1: 0.0, 2: 0.003}
"""Seconds that a call takes, by its argument: later ones often end first."""


def _compute(x: int) -> Any:
    if x % 5 == 4:
        raise ValueError(f"not {x}")
    return {"x": x} if x % 2 else f"text {x}"


@bosquet.tool
def threaded(x: int) -> Any:
    "In a thread."
    time.sleep(PAUSES[x % 3])
    return _compute(x)


@bosquet.tool
async def awaited(x: int) -> Any:
    "On a loop."
    await asyncio.sleep(PAUSES[x % 3])
    return _compute(x)


TOOLS = {"threaded": threaded, "awaited": awaited}
CALL = st.one_of(
    st.tuples(st.sampled_from(sorted(TOOLS)), st.integers(0, 20).map(lambda x: {"x": x})),
    st.tuples(st.just("threaded"), st.sampled_from([{}, {"x": "1"}, {"x": 1, "y": 2}])),
    st.tuples(st.just("unknown"), st.just({})),
)
STEP = st.tuples(st.text("abc ", max_size=4), st.lists(CALL, min_size=1, max_size=6))
Turn = tuple[str, Any]


def reference(steps: list[tuple[str, list[tuple[str, Any]]]], answer: str, limit: int) -> tuple[list[Turn], str]:
    """The turns after the user's, and how it ended."""
    turns: list[Turn] = []
    for text, calls in steps[:limit]:
        turns.append(("assistant", (text, [(name, arguments) for name, arguments in calls])))
        for name, arguments in calls:
            if name not in TOOLS:
                turns.append(("tool", f"there is no tool {name!r}, only threaded, awaited"))
            elif set(arguments) != {"x"} or not isinstance(arguments["x"], int):
                turns.append(("tool", "invalid"))
            else:
                try:
                    value = _compute(**arguments)
                    turns.append(("tool", value if isinstance(value, str) else pydantic_core.to_json(value).decode()))
                except ValueError as error:
                    turns.append(("tool", f"ValueError: {error}"))
    if len(steps) >= limit:
        return turns, "max_steps"
    return [*turns, ("assistant", (answer, []))], "answer"


def told(message: Any) -> Turn:
    if message["role"] == "tool":
        content = message["content"]
        return "tool", "invalid" if content.startswith("invalid arguments: ") else content
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message.get("tool_calls", ())
    ]
    return "assistant", (message["content"], calls)


@bosquet.program(max_tokens=100_000)
def sync_agent(s: bosquet.State, limit: int, parallel: bool) -> None:
    s.user("Go.")
    s.act([threaded, awaited], max_steps=limit, parallel=parallel)


@bosquet.program(max_tokens=100_000)
async def async_agent(s: bosquet.State, limit: int, parallel: bool) -> None:
    s.user("Go.")
    s.act([threaded, awaited], max_steps=limit, parallel=parallel)
    await s.get("act")


WAYS: list[Callable[..., Any]] = [
    lambda backend, *args: sync_agent.run(*args, backend=backend),
    lambda backend, *args: async_agent.run(*args, backend=backend),
    lambda backend, *args: asyncio.run(async_agent.arun(*args, backend=backend)),
    lambda backend, *args: asyncio.run(sync_agent.arun(*args, backend=backend)),
    lambda backend, *args: sync_agent.map([{"limit": args[0], "parallel": args[1]}], backend=backend)[0],
]


@pytest.mark.parametrize("carried", ["tokens", "messages"])
@settings(max_examples=40, deadline=None)
@given(st.lists(STEP, max_size=3), st.text("abc ", max_size=5), st.integers(1, 4), st.booleans(), st.sampled_from(WAYS))
def test_it_says_what_a_sequential_loop_says(
    carried: str,
    steps: list[tuple[str, list[tuple[str, Any]]]],
    answer: str,
    limit: int,
    parallel: bool,
    way: Callable[..., Any],
) -> None:
    script = [text + "".join(written(name, **arguments) for name, arguments in calls) for text, calls in steps]
    backend = FakeBackend(script={"act": [*script, answer]})
    if carried == "messages":
        backend.capabilities = frozenset({"messages", "tools"})
    result = way(backend, limit, parallel)
    assert result.error is None
    turns, stopped = reference(steps, answer, limit)
    acted = result["act"]
    assert [told(message) for message in result.messages[1:]] == turns
    assert acted.stopped == stopped
    assert [run.text for run in acted.calls] == [m["content"] for m in result.messages if m["role"] == "tool"]
    ids = [run.id for run in acted.calls]
    assert ids == [m["tool_call_id"] for m in result.messages if m["role"] == "tool"]
    assert len(set(ids)) == len(ids)
    assert len(backend.calls) == len(acted.steps) == min(limit, len(steps) + 1)
