"""Calls of a public benchmark: the expected ones are let through in every manner, and come back as they were."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
from grammar_vocabulary import fits
from tool_grammars import compiled
from tool_samples import Made, whole, written

from bosquet.grammar.tools import KNOWN, Tool, ToolChoice, check_tools

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "bfcl"
FILES = ("simple_python", "multiple", "parallel", "parallel_multiple", "live_simple")

pytestmark = pytest.mark.skipif(
    not FOLDER.exists() and not os.environ.get("CI"), reason="the benchmark's files are not here"
)


class Item(NamedTuple):
    id: str
    tools: list[Tool]
    calls: list[Made]


@cache
def items() -> tuple[Item, ...]:
    """Every item whose expected calls fit the schemas."""
    found = []
    for name in FILES:
        for line in (FOLDER / f"{name}.jsonl").read_text().splitlines():
            raw = json.loads(line)
            functions = [tool["function"] for tool in raw["tools"]]
            tools = [Tool(f["name"], f["description"], f["parameters"]) for f in functions]
            schemas = {tool.name: tool.schema for tool in tools}
            calls = [call for answer in raw["answer"] for call in _calls(answer, schemas)]
            if all(_closed(call, schemas[call.name]) for call in calls):
                found.append(Item(raw["id"], tools, calls))
    return tuple(found)


def _calls(answer: dict[str, Any], schemas: dict[str, Any]) -> Iterator[Made]:
    for name, accepted in answer.items():
        chosen = {key: values[0] for key, values in accepted.items() if values and values[0] not in ("", None)}
        yield Made(name, _ordered({key: _unwrapped(value) for key, value in chosen.items()}, schemas[name]))


def _unwrapped(value: Any) -> Any:
    """Inside an object, too, each member lists its accepted values."""
    if isinstance(value, dict):
        return {
            key: _unwrapped(item[0]) for key, item in value.items() if isinstance(item, list) and item and item[0] != ""
        }
    return [_unwrapped(item) for item in value] if isinstance(value, list) else value


def _ordered(value: Any, schema: Any) -> Any:
    """Members in the order of the schema, as a grammar wants them."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        names = [name for name in properties if name in value] + [name for name in value if name not in properties]
        return {name: _ordered(value[name], properties.get(name, {})) for name in names}
    return [_ordered(item, schema.get("items", {})) for item in value] if isinstance(value, list) else value


def _closed(call: Made, schema: dict[str, Any]) -> bool:
    declared = schema.get("properties", {})
    return call.arguments.keys() <= declared.keys() and jsonschema.Draft202012Validator(schema).is_valid(call.arguments)


def test_nearly_all_items_are_here() -> None:
    assert len(items()) >= 725
    for item in items():
        check_tools(item.tools)


@pytest.mark.parametrize("form", [pytest.param(form, id=name) for name, form in KNOWN.items()])
def test_expected_calls_come_back(form: Any) -> None:
    for item in items():
        rows = [[call] for call in item.calls] if form.channels else [item.calls]
        for calls in rows:
            content, _, found = whole(form, written(form, calls, item.tools), tools=item.tools)
            assert content == ""
            assert [(name, json.loads(text), done) for name, text, done in found] == [(*call, True) for call in calls]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_expected_calls_are_let_through(mode: Any) -> None:
    """The families take turns; each gets items of every file."""
    turns = cycle(KNOWN.values())
    for item, form in zip(items(), turns, strict=False):
        held = compiled(form.grammar(item.tools, ToolChoice(mode)))
        for calls in [[call] for call in item.calls] if form.channels else [item.calls]:
            text = written(form, calls, item.tools)
            assert fits(held.matcher(), text), (item.id, text)
