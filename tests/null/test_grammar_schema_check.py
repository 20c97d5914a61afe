"""The schema check: what is refused, with path and keyword, and what is made of the rest."""

from __future__ import annotations

import json
import re

import pytest

from bosquet.errors import GrammarInvalid
from bosquet.grammar.schema_check import check_schema
from bosquet.grammar.schema_keywords import ENFORCED, REFUSED


def checked(schema, depth=64):
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return json.loads(check_schema(text, max_depth=depth))


def prop(schema):
    return {"type": "object", "properties": {"a": schema}}


S, N = {"type": "string"}, {"type": "integer"}

REFUSALS = [
    # (schema of property a, JSON path below #/properties/a, what the message names)
    ({"allOf": [S, {"maxLength": 3}]}, "/allOf", "`allOf`"),
    ({"not": S}, "", "`not`"),
    ({"if": S, "then": S}, "", "`if`"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "", "`dependentRequired`"),
    ({"type": "object", "dependencies": {"a": ["b"]}}, "", "`dependencies`"),
    ({"type": "object", "dependentSchemas": {"a": {}}}, "", "`dependentSchemas`"),
    ({"type": "array", "items": {}, "uniqueItems": True}, "", "`uniqueItems`"),
    ({"type": "array", "contains": N}, "", "`contains`"),
    ({"type": "array", "unevaluatedItems": False}, "", "`unevaluatedItems`"),
    ({"anyOf": [S, N], "unevaluatedProperties": False}, "", "`unevaluatedProperties`"),
    ({"type": "number", "multipleOf": 0.5}, "", "`multipleOf`"),
    ({"type": "integer", "multipleOf": 3, "minimum": 0}, "", "`multipleOf`"),
    ({"type": "integer", "multipleOf": 5000}, "", "`multipleOf`"),
    ({"$ref": "#/$defs/x", "maxLength": 3}, "", "`maxLength` beside `$ref`"),
    ({"anyOf": [S, N], "maxLength": 3}, "", "`maxLength` beside `anyOf`"),
    ({"oneOf": [S, N], "properties": {}}, "", "`properties` beside `oneOf`"),
    ({"enum": ["a"], "maxLength": 3}, "", "`maxLength` beside `enum`"),
    ({"const": "a", "pattern": "b"}, "", "`pattern` beside `const`"),
    ({"anyOf": [S, N], "type": "string"}, "", "`type` beside `anyOf`"),
    ({"oneOf": [{"minimum": 3}, {"maximum": 5}]}, "/oneOf", "branches 0 and 1"),
    ({"oneOf": [N, {"type": "number"}]}, "/oneOf", "branches 0 and 1"),
    ({"type": "string", "pattern": "a", "maxLength": 3}, "", "`minLength` or `maxLength`"),
    ({"type": "string", "format": "email", "maxLength": 5}, "", "`minLength` or `maxLength`"),
    ({"type": "string", "pattern": "a", "format": "date"}, "", "`pattern` together with `format`"),
    ({"type": "string", "format": "colour"}, "", '"colour"'),
    ({"type": "string", "pattern": "(?=a)b"}, "", "look-ahead"),
    ({"type": "string", "pattern": "(a)\\1"}, "", "back-reference"),
    ({"type": "string", "pattern": "["}, "", "not closed"),
    ({"type": "string", "pattern": '^"$'}, "", "a quote"),
    ({"patternProperties": {"^x": N}, "properties": {"b": N}}, "", "`patternProperties`"),
    ({"patternProperties": {"^x": N, "^y": N}}, "", "more than one rule"),
    ({"patternProperties": {"^x": N}, "additionalProperties": S}, "", "more than one rule"),
    ({"type": "object", "propertyNames": {"maxLength": 3}}, "", "`propertyNames`"),
    ({"type": "object", "propertyNames": {"pattern": "^a"}, "required": ["a"]}, "", "`propertyNames`"),
    ({"type": "object", "minProperties": 2}, "", "`minProperties`"),
    ({"minimum": 3, "maxLength": 2}, "", "several types"),
    ({"$ref": "https://example.com/x.json"}, "", "only references into this schema"),
    ({"$ref": "#anchor"}, "", "only references into this schema"),
    ({"$ref": "#/$defs/missing"}, "", "not there"),
    ({"$dynamicRef": "#a"}, "", "`$dynamicRef`"),
    ({"enum": [2**60]}, "", "2^53"),
    ({"type": "number", "minimum": 0.12345678901}, "", "decimals"),
    ({"type": "object", "extends": {}}, "", "`extends`"),
]


@pytest.mark.parametrize(("schema", "below", "names"), REFUSALS)
def test_what_would_be_dropped_is_refused_by_path_and_keyword(schema, below, names):
    with pytest.raises(GrammarInvalid, match=re.escape(names)) as caught:
        checked({**prop(schema), "$defs": {"x": S}})
    assert f"#/properties/a{below}: " in str(caught.value)


def test_every_refused_keyword_is_refused():
    for keyword in REFUSED:
        with pytest.raises(GrammarInvalid, match=re.escape(f"`{keyword}`")):
            checked({keyword: {"type": "string"}})
    assert not REFUSED.keys() & ENFORCED.keys()


INVALID = [
    "bar",
    3,
    None,
    [],
    {"type": "strin"},
    {"type": []},
    {"type": None},
    {"enum": "a"},
    {"anyOf": []},
    {"anyOf": "a"},
    {"anyOf": ["bar"]},
    {"items": 3},
    {"prefixItems": {}},
    {"properties": []},
    {"properties": {"b": "bar"}},
    {"required": True},
    {"required": [1]},
    {"type": "string", "minLength": -1},
    {"type": "string", "maxLength": "3"},
    {"type": "string", "maxLength": 2.5},
    {"type": "string", "pattern": None},
    {"type": "number", "minimum": "3"},
    {"type": "number", "exclusiveMinimum": None},
    {"type": "integer", "multipleOf": 0},
    {"$ref": 3},
    {"$defs": {"x": 3}},
    {"definitions": []},
]


@pytest.mark.parametrize("schema", INVALID)
def test_an_invalid_schema_inside_another_is_refused(schema):
    with pytest.raises(GrammarInvalid, match="#/properties/a"):
        checked(prop(schema))


@pytest.mark.parametrize("text", ["{", "", "nul", '{"minimum": NaN}', '{"a": Infinity}', "[" * 100_000, "\ud800"])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(GrammarInvalid, match=r"JSON|deep"):
        check_schema(text, max_depth=64)


def test_depth_is_limited():
    schema = N
    for _ in range(30):
        schema = {"type": "array", "items": schema}
    assert checked(schema)
    with pytest.raises(GrammarInvalid, match="deep"):
        checked(schema, depth=20)


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
    {"required": ["a", "b"], "maxProperties": 1},
    {"anyOf": [False, {"enum": []}]},
    {"$ref": "#"},
    {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
]


@pytest.mark.parametrize("schema", IMPOSSIBLE)
def test_a_schema_that_nothing_satisfies_is_refused(schema):
    with pytest.raises(GrammarInvalid, match=r"no value|itself|without end"):
        checked(schema)


def test_required_names_are_added_to_properties():
    done = checked({"type": "object", "required": ["x", "a"], "properties": {"a": N}})
    assert list(done["properties"]) == ["a", "x"]
    assert done["properties"]["x"] == {}
    assert done["required"] == ["x", "a"]
    assert done["additionalProperties"] is False


def test_types_are_inferred_and_property_order_is_kept():
    done = checked({"properties": {"steps": {"items": S}, "final_answer": {"minLength": 2}, "a": {"minimum": 1}}})
    assert done["type"] == "object"
    assert list(done["properties"]) == ["steps", "final_answer", "a"]
    assert [done["properties"][name]["type"] for name in done["properties"]] == ["array", "string", "number"]


def test_type_lists_become_alternatives_with_their_own_keywords():
    done = checked({"type": ["string", "null", "integer"], "minLength": 2, "maximum": 4})
    assert done == {"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}, {"type": "integer", "maximum": 4}]}


def test_keywords_of_older_drafts():
    assert checked({"type": "integer", "minimum": 3, "exclusiveMinimum": True}) == {"type": "integer", "minimum": 4}
    assert checked({"type": "number", "maximum": 3.5, "exclusiveMaximum": False}) == {"type": "number", "maximum": 3.5}
    done = checked({"type": "array", "items": [S, N], "additionalItems": False})
    assert (done["prefixItems"], done["items"]) == ([S, N], False)
    assert checked({"definitions": {"x": N}, "$ref": "#/definitions/x"})["$defs"] == {"d0": N}


def test_bounds_of_integers_are_whole_and_fit_64_bits():
    assert checked({"type": "integer", "minimum": 1.5, "exclusiveMaximum": 9}) == {
        "type": "integer",
        "minimum": 2,
        "maximum": 8,
    }
    assert checked({"type": "integer", "maximum": 2e30})["maximum"] == 2**63 - 1
    assert checked({"type": "integer", "maximum": 2e10})["maximum"] == 20_000_000_000
    assert checked({"type": "number", "maximum": 1.7e308})["maximum"] == 10**15
    assert checked({"type": "integer", "format": "int32"}) == {
        "type": "integer",
        "minimum": -(2**31),
        "maximum": 2**31 - 1,
    }


def test_a_pattern_whose_length_implies_the_bounds_is_kept():
    done = checked({"type": "string", "pattern": "^[0-9]{5}$", "minLength": 5, "maxLength": 9})
    assert done.keys() == {"type", "pattern"}


def test_annotations_and_unknown_keywords_say_nothing():
    annotated = {
        "title": "t",
        "description": "d",
        "default": 3,
        "examples": [1],
        "x-order": 1,
        "$comment": "c",
        "deprecated": True,
    }
    assert checked({**annotated, "type": "boolean"}) == {"type": "boolean"}
    assert checked({"$id": "https://example.com/s", "$schema": "x", **annotated}) == {}


def test_references_are_followed_wherever_they_point():
    done = checked(
        {
            "properties": {"a": {"$ref": "#/properties/b~1c/items/0"}, "b/c": {"prefixItems": [{"$ref": "#"}]}},
            "additionalProperties": False,
        }
        | {"properties": {"b/c": {"items": [N]}, "a": {"$ref": "#/properties/b~1c/items/0"}}}
    )
    assert done["properties"]["a"] == {"$ref": "#/$defs/d0"}
    assert done["$defs"] == {"d0": N}


DISJOINT = [
    [S, N],
    [{"const": 1}, {"const": True}],
    [{"enum": ["a", "b"]}, {"enum": ["c"]}, {"type": "null"}],
    [{"type": "object", "properties": {"t": {"const": "x"}}, "required": ["t"]},
     {"type": "object", "properties": {"t": {"const": "y"}}, "required": ["t"]}],
    [{"type": "object", "properties": {"a": N}, "required": ["a"]},
     {"type": "object", "properties": {"b": N}, "additionalProperties": False}],
    [{"$ref": "#/$defs/x"}, {"type": "array"}],
]  # fmt: skip
OVERLAPPING = [
    [N, {"type": "number"}],
    [{"const": 1}, {"enum": [2, 1.0]}],
    [{}, S],
    [
        {"properties": {"t": {"const": "x"}}, "required": ["t"]},
        {"properties": {"t": {"const": "y"}}, "required": ["t"]},
    ],
    [{"type": "object", "properties": {"t": {"const": "x"}}}, {"type": "object", "properties": {"t": {"const": "y"}}}],
    [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3}],
]


@pytest.mark.parametrize("branches", DISJOINT)
def test_one_of_with_branches_that_exclude_each_other_is_any_of(branches):
    assert len(checked({"oneOf": branches, "$defs": {"x": S}})["anyOf"]) == len(branches)


@pytest.mark.parametrize("branches", OVERLAPPING)
def test_one_of_that_cannot_be_shown_to_be_exclusive_is_refused(branches):
    with pytest.raises(GrammarInvalid, match="`oneOf`"):
        checked({"oneOf": branches})


def test_type_beside_a_combination_goes_into_its_branches():
    done = checked({"type": "object", "anyOf": [{"required": ["a"]}, {"type": "object", "properties": {"b": N}}]})
    assert [branch["type"] for branch in done["anyOf"]] == ["object", "object"]
