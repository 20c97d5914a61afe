"""The schema linter: what is made of a schema that can be enforced, and for which engine."""

from __future__ import annotations

import json

import pytest

from bosquet.errors import GrammarInvalid
from bosquet.grammar.lint import lint

S, N = {"type": "string"}, {"type": "integer"}


def linted(schema, *, strict=True, **more):
    return lint(json.dumps(schema), strict=strict, max_depth=64, **more)


def written(schema, **more):
    done = json.loads(linted(schema, **more).schema)
    done.pop("x-guidance", None)
    return done


def prop(schema):
    return {"type": "object", "properties": {"a": schema}}


def test_required_names_are_added_to_properties():
    done = written({"type": "object", "required": ["x", "a"], "properties": {"a": N}})
    assert list(done["properties"]) == ["a", "x"]
    assert done["properties"]["x"] == {}
    assert (done["required"], done["additionalProperties"]) == (["x", "a"], False)


def test_types_are_inferred_and_property_order_is_kept():
    done = written({"properties": {"steps": {"items": S}, "final_answer": {"minLength": 2}, "a": {"minimum": 1}}})
    assert done["type"] == "object"
    assert list(done["properties"]) == ["steps", "final_answer", "a"]
    assert [done["properties"][name]["type"] for name in done["properties"]] == ["array", "string", "number"]


def test_types_are_not_inferred_over_a_type_that_stands_elsewhere():
    done = written({"type": ["object", "null"], "allOf": [{"properties": {"a": N}}]})
    assert [branch["type"] for branch in done["anyOf"]] == ["null", "object"]


def test_order_of_merged_properties_is_that_of_the_text():
    base = {"properties": {"z": N, "y": N}}
    assert list(written({"allOf": [base], "properties": {"b": N, "y": N}})["properties"]) == ["z", "y", "b"]
    assert list(written({"properties": {"b": N, "y": N}, "allOf": [base]})["properties"]) == ["b", "y", "z"]


def test_all_of_is_the_intersection():
    parts = [{"type": ["integer", "string"], "minimum": 2, "maxLength": 5}, {"type": ["integer", "null"], "maximum": 9}]
    assert written({"allOf": parts, "minimum": 3}) == {"type": "integer", "minimum": 3, "maximum": 9}
    objects = [{"properties": {"a": {"minimum": 1}}}, {"properties": {"a": {"maximum": 4}}, "required": ["a"]}]
    assert written({"type": "object", "allOf": objects})["properties"] == {
        "a": {"type": "number", "minimum": 1, "maximum": 4}
    }
    closed = {"allOf": [{"properties": {"a": N}, "additionalProperties": False}, {"properties": {"b": N}}]}
    assert written(closed) == {"type": "object", "properties": {"a": N}, "additionalProperties": False}


def test_siblings_of_a_reference_hold_from_2019_and_not_before():
    schema = {"$ref": "#/definitions/x", "maxLength": 3, "definitions": {"x": S}}
    assert written(schema) == {**S, "maxLength": 3}
    assert written({**schema, "$schema": "http://json-schema.org/draft-07/schema#"}) == S


def test_definitions_are_hoisted_wherever_they_stand():
    done = written(
        {
            "type": "object",
            "properties": {
                "a": {"$ref": "#/properties/b~1c/items/0"},
                "b/c": {"type": "array", "items": [{"type": "object", "properties": {"n": N}}]},
            },
        }
    )
    assert done["properties"]["a"] == {"$ref": "#/$defs/d0"} == done["properties"]["b/c"]["prefixItems"][0]
    assert done["$defs"]["d0"]["properties"] == {"n": N}


def test_recursion_stays_a_reference_also_where_two_schemas_meet():
    tree = {"type": "object", "properties": {"v": N, "next": {"$ref": "#/$defs/t"}}}
    small = {"properties": {"v": {"maximum": 5}, "next": {"$ref": "#/$defs/s"}}}
    done = written({"allOf": [{"$ref": "#/$defs/t"}, {"$ref": "#/$defs/s"}], "$defs": {"t": tree, "s": small}})
    inner = done["$defs"][done["properties"]["next"]["$ref"].rsplit("/", 1)[1]] if "properties" in done else None
    whole = inner or next(iter(done["$defs"].values()))
    assert whole["properties"]["v"] == {"type": "integer", "maximum": 5}
    assert "$ref" in whole["properties"]["next"]


@pytest.mark.parametrize(
    "ref", ["#x", "#/$defs/n", "https://example.com/root.json#x", "part.json#/items", "part.json#i"]
)
def test_references_by_anchor_and_by_id(ref):
    part = {"$id": "part.json", "items": {"$anchor": "i", "type": "boolean"}}
    schema = {
        "$id": "https://example.com/root.json",
        **prop({"$ref": ref}),
        "$defs": {"n": {"$anchor": "x", "type": "boolean"}, "part": part},
    }
    assert written(schema)["properties"]["a"] == {"type": "boolean"}


def test_dynamic_references_with_one_target_are_followed():
    node = {"$dynamicAnchor": "node", "type": "object", "properties": {"next": {"$dynamicRef": "#node"}}}
    done = written(node)
    assert done["properties"]["next"] == {"$ref": "#/$defs/d0"} == done["$defs"]["d0"]["properties"]["next"]
    assert "$defs" in written({"type": "object", "properties": {"a": {"$recursiveRef": "#"}}})


def test_keywords_of_older_drafts():
    assert written({"type": "integer", "minimum": 3, "exclusiveMinimum": True}) == {"type": "integer", "minimum": 4}
    assert written({"type": "number", "maximum": 3.5, "exclusiveMaximum": False}) == {"type": "number", "maximum": 3.5}
    done = written({"type": "array", "items": [S, N], "additionalItems": False})
    assert (done["prefixItems"], done["items"]) == ([S, N], False)
    old = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "id": "http://x.org/s",
        "definitions": {"x": {"id": "#x", **N}},
        **prop({"$ref": "#x"}),
    }
    assert written(old)["properties"]["a"] == N
    both = {"type": "object", "properties": {"a": N, "b": N}, "dependencies": {"a": ["b"], "b": {"required": ["a"]}}}
    names = [sorted(branch.get("properties", {})) for branch in written(both)["anyOf"]]
    assert sorted(names) == [[], ["a", "b"]]


def test_objects_without_word_on_other_names_are_closed_as_strict_says():
    schema = prop(N)
    assert written(schema)["additionalProperties"] is False
    assert written(schema, strict=False)["additionalProperties"] is True
    assert written(schema, strict=False, closed=True)["additionalProperties"] is False
    assert written({**schema, "additionalProperties": True})["additionalProperties"] is True
    assert written({"type": "array", "prefixItems": [N]})["items"] is False
    assert written({"type": "array", "prefixItems": [N]}, strict=False)["items"] == {}


def test_annotations_and_unknown_keywords_say_nothing():
    words = {
        "title": "t",
        "description": "d",
        "default": 3,
        "examples": [1],
        "x-order": 1,
        "$comment": "c",
        "deprecated": True,
    }
    assert written({**words, "type": "boolean"}) == {"type": "boolean"}
    assert written({"$id": "https://example.com/s", "$schema": "x", **words}) == {}
    assert written({"x-guidance": {"lenient": True}, "type": "array", "uniqueItems": False}) == {
        "type": "array",
        "items": {},
    }


def test_bounds_of_numbers():
    assert written({"type": "integer", "minimum": 1.5, "exclusiveMaximum": 9}) == {
        "type": "integer",
        "minimum": 2,
        "maximum": 8,
    }
    assert written({"type": "integer", "maximum": 2e30})["maximum"] == 10**18
    assert written({"type": "integer", "maximum": 2e10})["maximum"] == 20_000_000_000
    assert written({"type": "number", "maximum": 1.7e308})["maximum"] == 10**15
    assert written({"type": "number", "minimum": 0.12345678901})["minimum"] == 0.123456790
    assert written({"type": "integer", "format": "int32"})["maximum"] == 2**31 - 1
    assert written({"type": "integer", "not": {"enum": [3, 5]}, "minimum": 3, "maximum": 6}) == {
        "anyOf": [{"type": "integer", "minimum": 4, "maximum": 4}, {"type": "integer", "minimum": 6, "maximum": 6}]
    }


# ---- engines ---------------------------------------------------------------------------------------------------------

ENGINES = [
    ({"type": "string", "maxLength": 9}, "xgrammar"),
    ({"type": "string", "pattern": "^[0-9]{5}$", "minLength": 5, "maxLength": 9}, "xgrammar"),
    ({"type": "string", "pattern": "[0-9]", "maxLength": 9}, "llguidance"),
    ({"type": "string", "format": "email", "maxLength": 30}, "llguidance"),
    ({"type": "string", "pattern": "a", "format": "uri"}, "llguidance"),
    ({"type": "string", "pattern": '^"+$'}, "llguidance"),
    ({"type": "integer", "multipleOf": 7}, "xgrammar"),
    ({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 70}, "xgrammar"),
    ({"type": "integer", "multipleOf": 7, "minimum": 0}, "llguidance"),
    ({"type": "number", "multipleOf": 0.01}, "llguidance"),
    ({"patternProperties": {"^x": N}, "additionalProperties": False}, "xgrammar"),
    ({"patternProperties": {"^x": N}, "properties": {"b": N}}, "llguidance"),
    ({"patternProperties": {"^x": N, "^y": S}}, "llguidance"),
    ({"patternProperties": {"^x": N, "y$": {"minimum": 3}}}, "llguidance"),
    ({"patternProperties": {"^(x|y)$": N}, "properties": {"b": N}}, "xgrammar"),
    ({"propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": N}, "xgrammar"),
]


@pytest.mark.parametrize(("schema", "engine"), ENGINES, ids=str)
def test_the_first_engine_that_enforces_all_is_taken(schema, engine):
    assert linted(schema).engine == engine
    if engine == "llguidance":
        with pytest.raises(GrammarInvalid, match="cannot be enforced"):
            linted(schema, engines=("xgrammar",))
