"""Tools and an agent that several tests of `s.act` use."""

from __future__ import annotations

import asyncio
from typing import Any

from fakes_lang import FakeBackend

import bosquet.lang as bosquet

MESSAGES = frozenset({"messages", "tools", "json_schema", "seed"})


@bosquet.tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b


@bosquet.tool
async def shout(text: str) -> str:
    "Shout."
    await asyncio.sleep(0)
    return text.upper()


@bosquet.tool
def fail(how: str) -> None:
    "Fail."
    raise {"value": ValueError, "key": KeyError, "exit": SystemExit, "stop": StopIteration}[how](how)


@bosquet.program(max_tokens=500)
def agent(s: bosquet.State, *tools: Any, **options: Any) -> bosquet.Acted:
    s.user("Go.")
    s.act(tools, **options)
    return s["act"]  # type: ignore[no-any-return]


@bosquet.program(max_tokens=500)
async def aagent(s: bosquet.State, *tools: Any, **options: Any) -> bosquet.Acted:
    s.user("Go.")
    s.act(tools, **options)
    return await s.get("act")  # type: ignore[no-any-return]


def scripted(*said: str, **more: Any) -> FakeBackend:
    return FakeBackend(script={"act": list(said)}, **more)
