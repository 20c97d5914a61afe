"""Faults that users of other engines reported, each as a test of its whole kind: every keyword of a schema holds, in
every place, or the schema is refused."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from bosquet.errors import GrammarInvalid
from bosquet.grammar.compiler import GrammarCompiler
from bosquet.runtime.bench.maskbench import byte_vocabulary
from bosquet.types import GrammarSpec

VOCABULARY = byte_vocabulary()
COMPILER = GrammarCompiler(VOCABULARY, cache_bytes=0)
S, N = {"type": "string"}, {"type": "integer"}


def compiled(schema, *, strict=True):
    return COMPILER.compile(GrammarSpec("json_schema", json.dumps(schema, ensure_ascii=False), strict=strict))


def fits(done, value):
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    matcher = done.matcher()
    data = list(text.encode())
    return matcher.try_accept(data) == len(data) and matcher.completed


WRAPPERS = {
    "root": (lambda schema: schema, lambda value: value),
    "property": (lambda s: {"type": "object", "properties": {"p": s}, "required": ["p"]}, lambda v: {"p": v}),
    "item": (lambda s: {"type": "array", "items": s, "minItems": 1}, lambda v: [v]),
    "reference": (lambda s: {"$ref": "#/$defs/x", "$defs": {"x": s}}, lambda v: v),
    "all of": (lambda s: {"allOf": [s, {}]}, lambda v: v),
    "one of": (lambda s: {"oneOf": [s, {"type": "null"}]}, lambda v: v),
    "other names": (lambda s: {"type": "object", "additionalProperties": s}, lambda v: {"k": v}),
}

ROWS = {
    "only required": ({"type": "object", "required": ["a", "b"]}, [{"a": 1, "b": "x"}], [{}, {"a": 1}, {"b": 1}]),
    "patternProperties with type": (
        {"type": "object", "patternProperties": {"^n_": N, "^s_": S}, "additionalProperties": False},
        [{}, {"n_a": 1, "s_a": "x"}],
        [{"n_a": "x"}, {"s_a": 1}, {"z": 1}],
    ),
    "patternProperties beside properties": (
        {"type": "object", "properties": {"n_0": {"maximum": 3}}, "patternProperties": {"^n_": N}, "required": ["n_0"]},
        [{"n_0": 2}, {"n_0": 2, "n_1": 9}],
        [{"n_0": 9}, {"n_0": 2.5}, {"n_0": 2, "n_1": "x"}, {"n_1": 9}],
    ),
    "keywords beside type": (
        {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": N, "minProperties": 1},
        [{"ab": 1}],
        [{}, {"AB": 1}, {"ab": "x"}],
    ),
    "a useless escape": ({"type": "string", "pattern": "^hi\\!$"}, ["hi!"], ["hi", "hi\\!", "hi?", "xhi!"]),
    "a pattern that searches": ({"type": "string", "pattern": "b|c$"}, ["abx", "xc"], ["a", "cx"]),
    "pattern and lengths": (
        {"type": "string", "pattern": "^a+$", "minLength": 2, "maxLength": 4},
        ["aa", "aaaa"],
        ["a", "aaaaa", "ab"],
    ),
    "large bounds": (
        {"type": "integer", "minimum": -2e10, "maximum": 2e10},
        [20_000_000_000, -20_000_000_000, 0],
        [20_000_000_001],
    ),
    "bounds of one": ({"type": "array", "items": S, "maxItems": 1}, [[], ["x"]], [["x", "y"], [1]]),
    "bounds of items": (
        {"type": "array", "items": N, "minItems": 2, "maxItems": 3},
        [[1, 2], [1, 2, 3]],
        [[1], [1, 2, 3, 4], []],
    ),
    "all of several": (
        {
            "allOf": [
                {"type": "object", "properties": {"a": N}, "required": ["a"]},
                {"properties": {"b": S}, "required": ["b"]},
            ]
        },
        [{"a": 1, "b": "x"}],
        [{"a": 1}, {"b": "x"}, {"a": "x", "b": "x"}, 1, "x", [], {}],
    ),
    "siblings of a reference": ({"$ref": "#/definitions/n", "maximum": 3, "definitions": {"n": N}}, [2], [4, 2.5, "x"]),
    "siblings of any of": (
        {"anyOf": [{"type": "string"}, {"type": "integer"}], "maximum": 3, "maxLength": 1},
        [3, "x"],
        [4, "xy"],
    ),
    "one of that overlaps": (
        {"oneOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 5}]},
        [2, 6],
        [3, 4, 5],
    ),
    "not": ({"type": "string", "not": {"enum": ["a", "bc"]}}, ["", "b", "bcd", "ab"], ["a", "bc"]),
    "condition": (
        {
            "type": "object",
            "properties": {"t": {"enum": ["x", "y"]}, "v": {}},
            "required": ["t", "v"],
            "if": {"properties": {"t": {"const": "x"}}},
            "then": {"properties": {"v": N}},
            "else": {"properties": {"v": S}},
        },
        [{"t": "x", "v": 1}, {"t": "y", "v": "s"}],
        [{"t": "x", "v": "s"}, {"t": "y", "v": 1}],
    ),
    "dependencies": (
        {"type": "object", "properties": {"a": N, "b": N}, "dependentRequired": {"a": ["b"]}},
        [{}, {"b": 1}, {"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    "unevaluated": (
        {"type": "object", "allOf": [{"properties": {"a": N}}], "properties": {"b": N}, "unevaluatedProperties": False},
        [{"a": 1, "b": 1}],
        [{"c": 1}, {"a": 1, "c": 1}],
    ),
    "contains": (
        {"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 2}},
        [[2], [1, 2, 1], [1, 1, 2]],
        [[], [1], [1, 1]],
    ),
    "different items": (
        {"type": "array", "items": {"enum": ["x", "y", "z"]}, "uniqueItems": True},
        [[], ["y", "x"]],
        [["x", "x"]],
    ),
    "array items of draft 7": (
        {"type": "array", "items": [N, S], "additionalItems": N},
        [[], [1, "x"], [1, "x", 3]],
        [["x"], [1, "x", "y"]],
    ),
    "object constant": ({"const": {"a": [1, "x"]}}, ['{"a":[1,"x"]}'], ['{"a":[1]}', "{}"]),
    "duplicate keys": (
        {"type": "object", "properties": {"a": N}, "additionalProperties": True},
        ['{"a": 1, "b": 2}'],
        ['{"a": 1, "a": "x"}', '{"\\u0061": "x"}', '{"b": 1, "a": "x"}', '{"b": 1, "\\u0061": "x"}'],
    ),
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("row", ROWS)
def test_each_keyword_holds_wherever_it_stands(row, wrapper, strict):
    schema, yes, no = ROWS[row]
    wrap, wrapped = WRAPPERS[wrapper]
    definitions = {key: schema[key] for key in ("definitions",) if key in schema}
    done = compiled(
        {**wrap({key: schema[key] for key in schema if key not in definitions}), **definitions}, strict=strict
    )
    if strict:
        assert done.relaxed == ()
    for values, expected in ((yes, True), (no, False)):
        for value in values:
            if isinstance(value, str) and value[:1] == "{":  # JSON text as it is
                if wrapper in ("property", "item", "other names"):
                    continue
                assert fits(done, value) is expected, value
            else:
                text = json.dumps(wrapped(value), ensure_ascii=False)
                assert fits(done, text) is expected, text


def test_property_order_is_kept_end_to_end():
    names = ["steps", "final_answer", "b", "a", "Z", "é"]
    schema = {"type": "object", "properties": dict.fromkeys(names, N), "required": names}
    done = compiled(schema)
    assert fits(done, dict.fromkeys(names, 1))
    for order in itertools.permutations(names):
        if list(order) != names:
            assert not fits(done, dict.fromkeys(order, 1))


@pytest.mark.parametrize("keyword", ["$defs", "definitions"])
def test_nested_models_of_pydantic_are_resolved(keyword):
    schema = {
        keyword: {
            "Point": {
                "type": "object",
                "properties": {"x": N, "next": {"anyOf": [{"$ref": f"#/{keyword}/Point"}, {"type": "null"}]}},
                "required": ["x"],
            }
        },
        "type": "object",
        "properties": {"p": {"$ref": f"#/{keyword}/Point", "description": "d"}},
        "required": ["p"],
    }
    done = compiled(schema)
    assert fits(done, {"p": {"x": 1, "next": {"x": 2, "next": None}}})
    assert not fits(done, {"p": {"x": 1, "next": {"next": None}}})
    assert not fits(done, {"p": {"x": "1"}})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": "bar"}},
        {"type": "string", "pattern": "["},
        {"type": "string", "pattern": "(?<=a)b"},
        {"type": "object", "properties": {"a": {"$ref": "https://example.com/x.json"}}},
        {"type": "array", "items": S, "uniqueItems": True},
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_its_place(schema):
    with pytest.raises(GrammarInvalid, match=r"#[^ ]*: "):
        compiled(schema)


def test_white_space_is_bounded_everywhere():
    """From no state can a text go on with white space alone for more than one character."""
    schemas = [
        {
            "type": "object",
            "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "array", "items": N, "maxItems": 1}},
            "required": ["a"],
        },
        {"type": "object", "properties": {"b": S}, "patternProperties": {"^x": N}},
    ]
    for schema, text in zip(schemas, ['{"a":"x","b":[1]}', '{"b":"x","x":1}'], strict=True):
        done = compiled(schema)
        for at in range(len(text) + 1):
            inside = text[:at].count('"') % 2 == 1
            matcher = done.matcher()
            assert matcher.try_accept(list(text[:at].encode())) == at
            if not inside:
                assert matcher.try_accept(list(b"  \n ")) <= 1, text[:at]


def test_an_end_is_offered_only_where_the_text_is_whole():
    done = compiled({"type": "object", "properties": {"a": N}, "required": ["a"]})
    row = np.zeros(VOCABULARY.mask_words, dtype=np.int32)
    for at, whole in ((0, False), (4, False), (7, True)):
        matcher = done.matcher()
        matcher.try_accept(list(b'{"a":1}'[:at]))
        matcher.fill_mask(row)
        assert bool(row[256 // 32] >> (256 % 32) & 1) is whole
