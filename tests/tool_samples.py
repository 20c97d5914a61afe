"""What the tests of tool calls share: calls written out in every family's manner, and ways to check what comes back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from bosquet.grammar.tools import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Event,
    Format,
    Parsed,
    TextDelta,
    Tool,
)


class Made(NamedTuple):
    """A call as a test wants it."""

    name: str
    arguments: dict[str, Any]


WEATHER = Tool(
    "get_weather",
    "Weather of a place.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "metric": {"type": "boolean"},
            "unit": {"type": "string", "enum": ["C", "F"]},
        },
        "required": ["city"],
    },
)
SEARCH = Tool(
    "search",
    "Searches.",
    {
        "$defs": {"Range": {"type": "object", "properties": {"low": {"type": "number"}, "high": {"type": "number"}},
                            "required": ["low"], "additionalProperties": False}},
        "type": "object",
        "properties": {
            "limit": {"type": ["integer", "null"]},
            "terms": {"type": "array", "items": {"type": "string"}},
            "range": {"$ref": "#/$defs/Range"},
        },
    },
)  # fmt: skip
NOW = Tool("now", "The time.")
MOVE = Tool("move-to.point", "Moves.", {
    "type": "object", "properties": {"x": {"type": "number"}, "flags": {"type": "array", "items": {"type": "boolean"}}},
    "required": ["x", "flags"], "minProperties": 1,
})  # fmt: skip
TOOLS = [WEATHER, SEARCH, NOW, MOVE]

CALLS = [
    Made("get_weather", {"city": 'a "b" \\ {c} </tool_call> é😀\n[d]', "days": 3, "metric": True, "unit": "F"}),
    Made("get_weather", {"city": ""}),
    Made("search", {}),
    Made("search", {"limit": None, "terms": ["x, y", "z)"], "range": {"low": -1.5}}),
    Made("now", {}),
    Made("move-to.point", {"x": 1e-7, "flags": [True, False]}),
]


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def written(form: Format, calls: Sequence[Made], tools: Iterable[Tool] = tuple(TOOLS)) -> str:
    """The calls as the family's models write them, from the descriptions of the families."""
    known = {tool.name: tool for tool in tools}
    plain = [(call.name, compact(call.arguments)) for call in calls]
    match form.name:
        case "hermes" | "default":
            return "\n".join(f'<tool_call>\n{{"name": "{n}", "arguments": {a}}}\n</tool_call>' for n, a in plain)
        case "llama3":
            return "; ".join(f'{{"name": "{n}", "parameters": {a}}}' for n, a in plain)
        case "mistral":
            return "[TOOL_CALLS][" + ", ".join(f'{{"name": "{n}", "arguments": {a}}}' for n, a in plain) + "]"
        case "mistral_args":
            return "".join(f"[TOOL_CALLS]{n}[ARGS]{a}" for n, a in plain)
        case "pythonic":
            return "[" + ", ".join(python(call, known[call.name]) for call in calls) + "]"
        case "gemma":
            return "```tool_code\n" + "\n".join(python(call, known[call.name]) for call in calls) + "\n```"
        case "functiongemma":
            bodies = (f"call:{call.name}{gemma(call, known[call.name])}" for call in calls)
            return "".join(f"<start_function_call>{body}<end_function_call>" for body in bodies)
        case "deepseek_v3":
            opened = [
                f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{a}\n```<｜tool▁call▁end｜>"
                for n, a in plain
            ]
            return "<｜tool▁calls▁begin｜>" + "\n".join(opened) + "<｜tool▁calls▁end｜>"
        case "deepseek_v31":
            opened = [f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{a}<｜tool▁call▁end｜>" for n, a in plain]
            return "<｜tool▁calls▁begin｜>" + "".join(opened) + "<｜tool▁calls▁end｜>"
        case "harmony":
            return "".join(f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{a}" for n, a in plain)
    raise AssertionError(form.name)


_SPLAT = ("patternProperties", "minProperties", "maxProperties", "anyOf", "oneOf", "allOf", "$ref")


def _one_by_one(tool: Tool) -> bool:
    schema = tool.schema
    names = schema.get("properties")
    if names is None or any(key in schema for key in _SPLAT) or not all(name.isidentifier() for name in names):
        return False
    return bool(schema.get("required")) or len(names) <= 12


def python(call: Made, tool: Tool) -> str:
    if not _one_by_one(tool):
        return f"{call.name}(**{compact(call.arguments)})"
    properties = tool.schema["properties"]
    items = []
    for key, value in call.arguments.items():
        kind = properties[key].get("type")
        spelled = repr(value) if kind == "boolean" or value is None else compact(value)
        items.append(f"{key}={spelled}")
    return f"{call.name}({', '.join(items)})"


def gemma(call: Made, tool: Tool) -> str:
    if not _one_by_one(tool):
        return compact(call.arguments)
    return _gemma_object(call.arguments, tool.schema)


def _gemma_object(value: dict[str, Any], schema: dict[str, Any]) -> str:
    return "{" + ",".join(f"{key}:{_gemma(item, schema['properties'][key])}" for key, item in value.items()) + "}"


_NOTES = {"title", "description", "default", "examples"}


def _gemma(value: Any, schema: dict[str, Any]) -> str:
    keys = schema.keys() - _NOTES
    if isinstance(value, str) and schema.get("type") == "string" and keys <= {"type", "enum"}:
        return f"<escape>{value}<escape>"
    if schema.get("type") == "array" and keys == {"type", "items"}:
        inner = schema["items"]
        if isinstance(value, list) and inner.get("type") == "string" and inner.keys() - _NOTES == {"type"}:
            return "[" + ",".join(_gemma(item, inner) for item in value) + "]"
    if (
        isinstance(value, dict)
        and schema.get("type") == "object"
        and keys <= {"type", "properties", "required", "additionalProperties"}
        and _one_by_one(Tool("f", parameters=schema))
    ):
        return _gemma_object(value, schema)
    return compact(value)


def parse(
    form: Format, pieces: Iterable[str], tools: Sequence[Tool] = TOOLS, *, answer: bool = False, cut: bool = False
) -> list[Event]:
    parser = form.parser(tools, answer=answer)
    events: list[Event] = []
    for piece in pieces:
        events += parser.push(piece)
    return events + parser.finish(cut=cut)


def folded(events: Iterable[Event]) -> tuple[str, str, list[tuple[str, str, bool]]]:
    """Content, reasoning and calls, ids aside; what the protocol asks of the order of events is checked on the way."""
    events = list(events)
    open_: int | None = None
    started: list[str] = []
    for event in events:
        if isinstance(event, CallStart):
            assert open_ is None
            assert event.call == len(started), "calls are counted from 0"
            started.append(event.id)
            open_ = event.call
        elif isinstance(event, ArgumentsDelta):
            assert event.call == open_
            assert event.text, "an empty delta"
        elif isinstance(event, CallEnd):
            assert event.call == open_
            open_ = None
        else:
            assert open_ is None
            assert event.text, "an empty delta"
    assert open_ is None
    assert len(set(started)) == len(started), "ids are given once"
    whole = Parsed().add(events)
    return whole.content, whole.reasoning, [(call.name, call.arguments, call.complete) for call in whole.calls]


def whole(form: Format, text: str, **options: Any) -> tuple[str, str, list[tuple[str, str, bool]]]:
    return folded(parse(form, [text], **options))


def two_way_splits(text: str) -> Iterator[list[str]]:
    for at in range(len(text) + 1):
        yield [text[:at], text[at:]]


def texts_of(events: Iterable[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))
