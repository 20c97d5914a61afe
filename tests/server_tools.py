"""Requests with two tools, for the tests of the server, and calls of them in the default manner."""

from __future__ import annotations

from typing import Any

import httpx
from fakes_engine import FakeEngine, text_services
from live_server import post

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
TEXT = text_services(context_length=4096)


def tool(name: str, strict: bool | None = None, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    function = {"name": name, "description": f"Does {name}.", "parameters": schema}
    return {"type": "function", "function": function if strict is None else {**function, "strict": strict}}


WEATHER = tool("weather", city={"type": "string"}, days={"type": "integer"})
TIME = tool("time", zone={"enum": ["utc", "local"]})
TOOLS = [WEATHER, TIME]
PARIS, UTC = '{"city": "Paris", "days": 2}', '{"zone": "utc"}'


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


def ask(engine: FakeEngine, **fields: Any) -> httpx.Response:
    return post(engine, PATH, {"messages": HI, "tools": TOOLS} | fields, text=TEXT)
