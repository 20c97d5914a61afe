"""What `bench structured` measures when no file is given, and what it makes up: new schemas, and many tools.

All names and descriptions are drawn from a seed, so that every run sees the same schemas and no engine has seen one of
them before. Knows nothing of compilers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from ...types import ToolSpec
from .maskbench import Case, Instance
from .words import WORDS, text

Schema = dict[str, Any]

SEED = "bosquet bench structured 1"
"""Another number when a change makes figures incomparable."""


def _object(properties: Schema, *, required: Sequence[str] | None = None, closed: bool = False) -> Schema:
    names = list(properties) if required is None else list(required)
    schema: Schema = {"type": "object", "properties": properties, "required": names}
    return {**schema, "additionalProperties": False} if closed else schema


_PERSON = _object({"name": {"type": "string", "minLength": 1}, "born": {"type": "integer", "minimum": 1800}})
_TREE = {"$ref": "#/$defs/node", "$defs": {"node": _object({"v": {"type": "integer"}, "next": {"anyOf": [
    {"type": "null"}, {"$ref": "#/$defs/node"}]}}, closed=True)}}  # fmt: skip
_SHAPES = {"oneOf": [
    _object({"kind": {"const": "circle"}, "radius": {"type": "number", "exclusiveMinimum": 0}}, closed=True),
    _object({"kind": {"const": "square"}, "side": {"type": "number", "exclusiveMinimum": 0}}, closed=True),
]}  # fmt: skip

_BUILT_IN: tuple[tuple[str, Schema, list[Any], list[Any]], ...] = (
    ("objects", _PERSON, [{"name": "Ada", "born": 1815}], [{"name": "", "born": 1815}, {"name": "Ada"}]),
    ("objects", _object({"a": {"type": "boolean"}}, required=[], closed=True), [{}, {"a": True}], [{"b": 1}, {"a": 0}]),
    ("objects", {"type": "object", "additionalProperties": {"type": "integer"}}, [{"x": 1}], [{"x": "1"}, []]),
    ("objects", {"type": "object", "patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False},
     [{"x-a": "1"}], [{"x-a": 1}, {"y": "1"}]),
    ("scalars", {"type": "integer", "minimum": -5, "maximum": 17}, [-5, 17], [-6, 18, 1.5]),
    ("scalars", {"type": "number", "multipleOf": 0.25}, [0.5, 3], [0.3]),
    ("scalars", {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"}, ["AB1234"], ["AB123", "ab1234"]),
    ("scalars", {"type": "string", "format": "date"}, ["2024-02-28"], ["2024-02-30", "today"]),
    ("scalars", {"enum": ["red", "green", 3, None]}, ["red", None], ["blue", "3"]),
    ("arrays", {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3}, [["a"]], [[], [1]]),
    ("arrays", {"prefixItems": [{"type": "integer"}, {"type": "string"}], "type": "array", "items": False},
     [[1, "a"]], [["a", 1], [1, "a", 2]]),
    ("arrays", {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True}, [[2, 1]], [[1, 1]]),
    ("combinations", _SHAPES, [{"kind": "circle", "radius": 1}], [{"kind": "circle", "side": 1}]),
    ("combinations", {"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 4}]}, [2, 4], [1, 5]),
    ("combinations", _TREE, [{"v": 1, "next": {"v": 2, "next": None}}], [{"v": 1, "next": {"v": 2}}]),
    ("combinations", {"type": "string", "not": {"enum": ["no"]}}, ["yes"], ["no"]),
    ("hard", {"type": "array", "items": {"type": "string"}, "uniqueItems": True}, [["a", "b"]], [["a", "a"]]),
    ("hard", {"$ref": "https://example.com/person.json"}, [], []),
    ("hard", {"type": "string", "pattern": "^(?=.*[0-9])[a-z0-9]+$"}, ["a1"], ["a"]),
)  # fmt: skip


def built_in() -> list[Case]:
    """A small set with what most schemas have in them, and a few that no engine enforces."""
    cases = []
    for number, (subset, schema, valid, invalid) in enumerate(_BUILT_IN):
        instances = [Instance(value, True, json.dumps(value)) for value in valid]
        instances += [Instance(value, False, json.dumps(value)) for value in invalid]
        cases.append(Case(f"{subset}_{number}", subset, schema, tuple(instances)))
    return cases


def fresh_schemas(count: int, size: int = 2048) -> list[Schema]:
    """Schemas of at least `size` bytes and little more, as people write them: records with records and lists in them,
    some properties optional, every second one closed."""
    random = Random(f"{SEED}/fresh")
    return [_fresh(random, size, closed=number % 2 == 0) for number in range(count)]


def _fresh(random: Random, size: int, closed: bool) -> Schema:
    properties: Schema = {}
    while True:
        schema = _object(properties, required=list(properties)[: len(properties) * 3 // 4], closed=closed)
        if len(json.dumps(schema)) >= size:
            return schema
        properties[_name(random)] = _property(random, closed)


def _name(random: Random) -> str:
    return f"{'_'.join(random.sample(WORDS, 2))}_{random.randrange(100)}"


def _property(random: Random, closed: bool) -> Schema:
    if random.random() < 0.25:
        inner = _object({_name(random): _scalar(random) for _ in range(random.randint(2, 4))}, closed=closed)
        return inner if random.random() < 0.5 else {"type": "array", "items": inner, "maxItems": random.randint(3, 9)}
    return {**_scalar(random), "description": text(random, 6)}


def _scalar(random: Random) -> Schema:
    kinds: tuple[Callable[[], Schema], ...] = (
        lambda: {"type": "string"},
        lambda: {"type": "string", "maxLength": random.randint(20, 80)},
        lambda: {"type": "integer", "minimum": random.randint(0, 9), "maximum": random.randint(10, 9999)},
        lambda: {"type": "number"},
        lambda: {"type": "boolean"},
        lambda: {"enum": random.sample(WORDS, random.randint(3, 8))},
        lambda: {"type": "string", "format": random.choice(("date", "date-time", "uuid"))},
        lambda: {"type": ["string", "null"]},
        lambda: {"type": "array", "items": {"type": "string"}},
    )
    return random.choice(kinds)()


def many_tools(count: int = 128, *, strict: bool) -> tuple[ToolSpec, ...]:
    """Different tools of two to six parameters each; closed where they are strict, as clients send them."""
    random = Random(f"{SEED}/tools/{strict}")
    tools = []
    for number in range(count):
        properties = {_name(random): _property(random, strict) for _ in range(random.randint(2, 6))}
        required = None if strict else list(properties)[:2]
        schema = _object(properties, required=required, closed=strict)
        name = f"{random.choice(WORDS)}_{random.choice(WORDS)}_{number}"
        tools.append(ToolSpec(name, text(random, 8), json.dumps(schema), strict))
    return tuple(tools)
