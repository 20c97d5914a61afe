"""The schema linter: what is refused, and what is relaxed, by path and keyword."""

from __future__ import annotations

import json
import re

import pytest

from bosquet.errors import GrammarInvalid
from bosquet.grammar.lint import lint

S, N = {"type": "string"}, {"type": "integer"}


def linted(schema, *, strict=True, depth=64, **more):
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return lint(text, strict=strict, max_depth=depth, **more)


def written(schema, **more):
    done = json.loads(linted(schema, **more).schema)
    done.pop("x-guidance", None)
    return done


def prop(schema):
    return {"type": "object", "properties": {"a": schema}}


NOT_ENFORCED = [
    # (schema of property a, path below #/properties/a, keyword)
    ({"type": "array", "items": S, "uniqueItems": True}, "", "uniqueItems"),
    ({"type": "string", "pattern": "(?=a)b"}, "", "pattern"),
    ({"type": "string", "pattern": "(a)\\1"}, "", "pattern"),
    ({"type": "string", "pattern": "a\\b"}, "", "pattern"),
    ({"type": "string", "not": {"format": "email"}}, "", "not"),
    ({"type": "array", "not": {"uniqueItems": True}}, "", "not"),
    ({"oneOf": [{"type": "string", "format": "email"}, S]}, "/oneOf", "oneOf"),
    ({"if": {"format": "ipv4"}, "then": {"maxLength": 9}}, "", "if"),
    ({"type": "number", "not": {"multipleOf": 3}}, "/not", "multipleOf"),
    ({"type": "number", "not": {"type": "integer"}}, "/not", "type"),
    ({"type": "integer", "multipleOf": 99_991}, "", "multipleOf"),
    ({"type": "number", "minimum": 1e300}, "", "minimum"),
    ({"type": "object", "minProperties": 2}, "", "minProperties"),
    ({"type": "object", "additionalProperties": N, "minProperties": 3}, "", "minProperties"),
    ({"enum": [2**60]}, "", "enum"),
    ({"const": [2**60]}, "", "const"),
    ({"type": "object", "not": {"const": {}}, "additionalProperties": True}, "/not", "const"),
    ({"$ref": "https://example.com/x.json"}, "", "$ref"),
    ({"$ref": "other.json#/a"}, "", "$ref"),
    ({"$dynamicRef": "#n"}, "", "$dynamicRef"),
    ({"type": "object", "extends": {}}, "", "extends"),
    ({"disallow": "string"}, "", "disallow"),
    ({"type": "number", "divisibleBy": 2}, "", "divisibleBy"),
]
_DEFS = {"n": {"$dynamicAnchor": "n"}, "m": {"$dynamicAnchor": "n", "$id": "m"}}


@pytest.mark.parametrize(("schema", "below", "keyword"), NOT_ENFORCED)
def test_what_no_engine_enforces_is_refused_or_relaxed_by_path_and_keyword(schema, below, keyword):
    whole = {**prop(schema), "$defs": _DEFS}
    path = f"#/properties/a{below}"
    with pytest.raises(GrammarInvalid, match=re.escape(f"{path}: `{keyword}` ")):
        linted(whole)
    relaxed = linted(whole, strict=False).relaxed
    assert (path, keyword) in [(item.path, item.keyword) for item in relaxed]
    assert all(item.reason for item in relaxed)


def test_relaxing_drops_only_the_one_keyword():
    schema = {"type": "array", "items": {**S, "maxLength": 3}, "maxItems": 2, "uniqueItems": True}
    done = linted(schema, strict=False)
    assert json.loads(done.schema) == {"type": "array", "items": {**S, "maxLength": 3}, "maxItems": 2}
    assert [item.keyword for item in done.relaxed] == ["uniqueItems"]
    both = {**prop({**S, "pattern": "(?=a)b", "maxLength": 4}), "required": ["a"]}
    assert written(both, strict=False)["properties"]["a"] == {**S, "maxLength": 4}


def test_unknown_formats_are_annotations_and_reported_in_both_modes():
    for strict in (True, False):
        done = linted(prop({**S, "format": "colour"}), strict=strict)
        assert [(item.path, item.keyword) for item in done.relaxed] == [("#/properties/a", "format")]
        assert json.loads(done.schema)["properties"]["a"] == S
    assert linted(prop({**S, "format": "date"})).relaxed == ()


INVALID = [
    "bar",
    3,
    None,
    [],
    {"type": "strin"},
    {"type": []},
    {"type": None},
    {"type": "any"},
    {"enum": "a"},
    {"anyOf": []},
    {"anyOf": "a"},
    {"anyOf": ["bar"]},
    {"oneOf": {}},
    {"allOf": [3]},
    {"items": 3},
    {"prefixItems": {}},
    {"not": 3},
    {"properties": []},
    {"properties": {"b": "bar"}},
    {"required": True},
    {"required": [1]},
    {"patternProperties": 1},
    {"patternProperties": {"[": {}}},
    {"additionalProperties": "x"},
    {"propertyNames": 1},
    {"contains": 1},
    {"type": "string", "minLength": -1},
    {"type": "string", "maxLength": "3"},
    {"type": "string", "maxLength": 2.5},
    {"type": "string", "pattern": None},
    {"type": "string", "pattern": "["},
    {"type": "string", "pattern": "a)"},
    {"type": "string", "format": 3},
    {"type": "number", "minimum": "3"},
    {"type": "number", "exclusiveMinimum": None},
    {"type": "integer", "multipleOf": 0},
    {"uniqueItems": 1},
    {"$ref": 3},
    {"$ref": "#/$defs/missing"},
    {"$ref": "#anchor"},
    {"$defs": {"x": 3}},
    {"definitions": []},
    {"dependentRequired": {"a": [1]}},
    {"dependentSchemas": {"a": 1}},
    {"unevaluatedProperties": 3},
    {"if": 3, "then": {}},
    {"$dynamicRef": 1},
]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("schema", INVALID, ids=str)
def test_an_invalid_schema_inside_another_is_always_refused(schema, strict):
    with pytest.raises(GrammarInvalid, match="#/properties/a"):
        linted(prop(schema), strict=strict)


@pytest.mark.parametrize("text", ["{", "", "nul", '{"minimum": NaN}', '{"a": Infinity}', "[" * 100_000, "\ud800"])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(GrammarInvalid, match=r"JSON|deep"):
        linted(text)


IMPOSSIBLE = [
    False,
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "integer", "minimum": 3, "exclusiveMaximum": 4, "exclusiveMinimum": 3},
    {"type": "number", "minimum": 3, "exclusiveMaximum": 3},
    {"type": "array", "items": False, "minItems": 1},
    {"type": "array", "items": {}, "minItems": 3, "maxItems": 2},
    {"enum": ["a"], "type": "integer"},
    {"enum": []},
    {"required": ["a"], "properties": {"a": False}},
    {"required": ["a"], "additionalProperties": False},
    {"type": "object", "required": ["a", "b"], "maxProperties": 1},
    {"anyOf": [False, {"enum": []}]},
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}]},
    {"not": {"$ref": "#"}},
    {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    {"allOf": [S, N]},
    {"oneOf": [S, S]},
    {"not": {}},
    {"type": "string", "const": "ab", "maxLength": 1},
    {"type": "string", "pattern": "^a$", "enum": ["b"]},
    {"type": "string", "pattern": "^.{3}$", "maxLength": 2},
    {"if": True, "then": False},
    {"type": "object", "propertyNames": False, "minProperties": 1},
    {"type": "array", "contains": False},
]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("schema", IMPOSSIBLE, ids=str)
def test_a_schema_that_nothing_satisfies_is_refused(schema, strict):
    with pytest.raises(GrammarInvalid, match=r"#.*(no value|leads back)"):
        linted(schema, strict=strict)


def test_a_property_that_nothing_satisfies_is_left_out_if_it_may_be():
    done = written(
        {
            "type": "object",
            "properties": {"a": {"allOf": [S, N]}, "b": N, "c": {"$ref": "#/$defs/x"}},
            "$defs": {"x": {"type": "object", "properties": {"x": {"$ref": "#/$defs/x"}}, "required": ["x"]}},
        }
    )
    assert done == {"type": "object", "properties": {"b": N}, "additionalProperties": False}
