"""Every refusal of a schema names a path in it and a keyword there; what has no value, the keywords that leave none."""

from __future__ import annotations

import json
import re

import pytest
from grammar_vocabulary import vocabulary

from bosquet.errors import GrammarInvalid
from bosquet.grammar.compiler import GrammarCompiler
from bosquet.grammar.schema_conflict import culprits
from bosquet.types import GrammarSpec

COMPILER = GrammarCompiler(vocabulary(), cache_bytes=0)
INT, TEXT = {"type": "integer"}, {"type": "string"}
NARROW = {"type": "integer", "minimum": 3, "maximum": 2}


def refusal(schema, *, strict=True, kind="json_schema"):
    with pytest.raises(GrammarInvalid) as caught:
        COMPILER.compile(GrammarSpec(kind, schema if isinstance(schema, str) else json.dumps(schema), strict=strict))
    return str(caught.value)


def named(message):
    """(path, keyword) of a message, and all keywords that it names."""
    found = re.match(r"schema: (#[^`: ]*): `([$\w]+)` ", message)
    assert found, message
    return found[1], found[2], set(re.findall(r"`([$\w]+)`", message))


EMPTY = {
    "bounds": (NARROW, "#", {"minimum", "maximum"}),
    "bounds below": (
        {"type": "object", "properties": {"b": TEXT, "a": NARROW}, "required": ["a"]},
        "#/properties/a",
        {"minimum", "maximum", "required"},
    ),
    "a reference": (
        {"$ref": "#/$defs/d", "$defs": {"d": {"type": "string", "minLength": 5, "maxLength": 2}}},
        "#/$defs/d",
        {"minLength", "maxLength"},
    ),
    "types": ({"allOf": [TEXT, INT]}, "#/allOf/0", {"type"}),
    "two patterns": (
        {"type": "string", "pattern": "^a", "allOf": [{"pattern": "^b"}]},
        "#/allOf/0",
        {"pattern"},
    ),
    "pattern and length": (
        {"type": "string", "pattern": "^(aaa)*$", "minLength": 4, "maxLength": 5},
        "#",
        {"pattern", "minLength", "maxLength"},
    ),
    "pattern and format": (
        {"type": "string", "pattern": "^[a-z]+@$", "format": "email"},
        "#",
        {"pattern", "format"},
    ),
    "multiples": (
        {"type": "number", "multipleOf": 0.1, "minimum": 0.22, "maximum": 0.28},
        "#",
        {"multipleOf", "minimum", "maximum"},
    ),
    "a false property": (
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        "#",
        {"properties", "required"},
    ),
    "closed names": (
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False, "required": ["b"]},
        "#",
        {"additionalProperties", "required"},
    ),
    "no end": (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        "#/properties/a",
        {"$ref", "required"},
    ),
    "nothing listed": ({"enum": []}, "#", {"enum"}),
}  # fmt: skip


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", EMPTY)
def test_what_has_no_value_is_refused_by_the_keywords_that_leave_none(name, strict):
    schema, path, keywords = EMPTY[name]
    found_path, keyword, all_named = named(refusal(schema, strict=strict))
    assert (found_path, all_named) == (path, keywords)
    assert keyword in keywords


@pytest.mark.parametrize(
    ("schema", "path", "keyword"),
    [
        ({"type": "object", "properties": {"age": "integer"}}, "#/properties/age", "properties"),
        ({"$defs": {"x": 3}}, "#/$defs/x", "$defs"),
        ({"items": 3}, "#/items", "items"),
        ({"anyOf": [3]}, "#/anyOf/0", "anyOf"),
        ({"$ref": "#/nowhere"}, "#", "$ref"),
        ({"$ref": "#"}, "#", "$ref"),
        ({"properties": {"a": {"pattern": "["}}}, "#/properties/a", "pattern"),
        ({"properties": {"a": {"type": "thing"}}}, "#/properties/a", "type"),
        ({"minItems": -1}, "#", "minItems"),
    ],
    ids=str,
)
def test_what_is_no_schema_is_refused_by_path_and_keyword(schema, path, keyword):
    assert named(refusal(schema))[:2] == (path, keyword)


def test_what_is_nested_too_deep_says_where():
    schema: dict = {}
    for _ in range(300):
        schema = {"properties": {"a": schema}}
    path, keyword, _ = named(refusal(schema))
    assert path.startswith("#/properties/a/properties/a")
    assert keyword == "properties"


def test_alternatives_that_are_too_many_say_where():
    many = {"anyOf": [{"type": "object", "required": [f"n{at}"]} for at in range(199)]}
    schema = {"type": "object", "properties": {"a": {"allOf": [many, many, many]}}}
    path, keyword, _ = named(refusal(schema))
    assert path.startswith("#/properties/a")
    assert keyword in ("allOf", "anyOf")


def test_a_limit_of_an_engine_is_told_in_the_words_of_the_schema():
    """llguidance does not find out whether such a pattern has a text of that length: its own words come last."""
    inner = {"type": "string", "pattern": "^(.*,){30}.*$", "maxLength": 300}
    schema = {"type": "object", "properties": {"x": inner, "y": {"type": "integer"}}, "required": ["x", "y"]}
    message = refusal(schema)
    path, _, all_named = named(message)
    assert (path, all_named) == ("#/properties/x", {"pattern", "maxLength"})
    assert " is more than an engine takes [" in message
    assert message.endswith("]")
    relaxed = COMPILER.compile(GrammarSpec("json_schema", json.dumps(schema))).relaxed
    assert [(item.path, item.keyword) for item in relaxed] == [("#/properties/x", "maxLength")]


def test_a_limit_of_an_engine_inside_a_format_says_where():
    inner = {"type": "string", "pattern": "^(.*,){30}.*$", "maxLength": 300}
    node = {
        "type": "sequence",
        "elements": [{"type": "const_string", "value": "x"}, {"type": "json_schema", "json_schema": inner}],
    }
    message = refusal(node, kind="structural_tag")
    assert message.startswith("format: #/elements/1/json_schema: schema: #: `pattern` together with `maxLength` ")
    message = refusal(f"start: %json {json.dumps(inner)}", kind="lark")
    assert message.startswith("lark: line 1: schema: #: `pattern` together with `maxLength` ")


def test_a_schema_without_keywords_is_refused_as_a_whole():
    assert refusal("false") == "schema: #: `false` leaves no value, or none that can be enforced"
    assert refusal("3") == "schema: #: a schema is an object or a boolean, not 3"
    assert refusal("{").startswith("schema: #: not valid JSON")


def test_keywords_at_fault_are_few_and_all_needed():
    """By a fault that is easy to see: some schema has both `minimum` and `maximum`."""

    def at_fault(node):
        text = json.dumps(node)
        return '"minimum"' in text and '"maximum"' in text

    root = {
        "type": "object",
        "properties": {"a": {"minimum": 1, "title": "t"}, "b": {"maximum": 2, "pattern": "x"}, "c": {}},
    }
    assert culprits(root, at_fault) == [("#/properties/a", "minimum"), ("#/properties/b", "maximum")]
    assert root["properties"]["c"] == {}


def test_a_large_schema_without_a_value_is_refused_soon_and_by_what_holds_the_fault():
    padding = {f"p{at}": {"type": "string", "description": "x" * 400} for at in range(300)}
    schema = {"type": "object", "properties": {**padding, "a": NARROW}, "required": ["a"]}
    path, _, all_named = named(refusal(schema))
    assert path == "#"
    assert all_named <= {"type", "properties", "required"}


@pytest.mark.parametrize("strict", [True, False])
def test_formats_that_are_not_known_are_annotations_and_always_told(strict):
    """By the specification a format is an annotation unless it is asserted: those that we know are, others are not."""
    for schema, expected in [
        ({"type": "string", "format": "colour"}, ["format"]),
        ({"type": "string", "format": "regex"}, ["format"]),
        ({"type": "number", "format": "int32"}, ["format"]),
        ({"type": "string", "format": "date"}, []),
        ({"type": "integer", "format": "int32"}, []),
        ({"type": "integer", "format": "date-time"}, []),  # speaks of strings only
    ]:
        done = COMPILER.compile(GrammarSpec("json_schema", json.dumps(schema), strict=strict))
        assert [item.keyword for item in done.relaxed] == expected, schema
    assert named(refusal({"type": "string", "format": 3}))[:2] == ("#", "format")


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("schema", "path", "keyword"),
    [
        ({"$schema": 5}, "#", "$schema"),
        ({"$id": 5}, "#", "$id"),
        ({"properties": {"a": {"$anchor": 5}}}, "#/properties/a", "$anchor"),
        ({"if": 5}, "#/if", "if"),
        ({"then": []}, "#/then", "then"),
        ({"items": 5}, "#/items", "items"),
        ({"contentSchema": "a"}, "#/contentSchema", "contentSchema"),
        ({"$defs": {"d": 5}}, "#/$defs/d", "$defs"),
        ({"$defs": 5}, "#", "$defs"),
        ({"dependentRequired": {"a": "b"}}, "#/dependentRequired/a", "dependentRequired"),
        ({"allOf": [{"dependentRequired": {"a": 1}}]}, "#/allOf/0/dependentRequired/a", "dependentRequired"),
        ({"dependentSchemas": {"a": ["b"]}}, "#/dependentSchemas/a", "dependentSchemas"),
    ],
)  # fmt: skip
def test_what_is_no_schema_is_refused_where_it_stands(schema, path, keyword, strict):
    found, first, _ = named(refusal(schema, strict=strict))
    assert (found, first) == (path, keyword)
