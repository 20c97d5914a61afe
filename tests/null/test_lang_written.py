"""What the language refuses of a regular expression or a schema, our engines refuse too; what is right goes through."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from json_schema_suite import groups
from random_schemas import schema as random_schema

from bosquet.errors import GrammarInvalid
from bosquet.grammar.lint import lint
from bosquet.grammar.regex_syntax import parse
from bosquet.lang.written import regex_fault, schema_fault

WRONG_PATTERNS = [
    "(",
    ")",
    "a)",
    "[a",
    "[^a",
    "*a",
    "+",
    "a|*",
    "(+)",
    "a\\",
    "(?:a",
    "[a\\]",
    "((a)",
    "\\((",
    "[a-z](",
]
RIGHT_PATTERNS = [
    "\\(",
    "[(]",
    "[)]*",
    "a{2}",
    "a(?:b|c)+",
    "(?<n>a)",
    "[\\]]",
    "[]a]",
    "[^]]",
    "[[a]",
    "",
    "|",
    "(?:)",
]


@pytest.mark.parametrize("pattern", WRONG_PATTERNS)
def test_what_no_dialect_can_parse(pattern: str) -> None:
    assert regex_fault(pattern) is not None
    with pytest.raises(re.error):
        re.compile(pattern)
    with pytest.raises(GrammarInvalid):
        parse(pattern)


@pytest.mark.parametrize("pattern", RIGHT_PATTERNS)
def test_what_some_dialect_can_parse(pattern: str) -> None:
    assert regex_fault(pattern) is None


@given(st.text("ab\\()[]^*+?|{}-2,:", max_size=8))
@settings(max_examples=400)
def test_a_pattern_that_is_refused_here_is_refused_everywhere(pattern: str) -> None:
    if regex_fault(pattern) is not None:
        with pytest.raises(GrammarInvalid):
            parse(pattern)


WRONG_SCHEMAS = [
    {"type": "strin"}, {"type": []}, {"type": 5}, {"type": ["string", "x"]}, {"type": None}, {"properties": []},
    {"properties": {"a": 5}}, {"anyOf": []}, {"oneOf": {}}, {"allOf": [1]}, {"items": 3}, {"not": "a"}, {"if": 5},
    {"$defs": {"a": 1}}, {"definitions": 5}, {"patternProperties": {"a": None}}, {"additionalProperties": "no"},
    {"contains": []}, {"propertyNames": 4}, {"properties": {"a": {"items": {"anyOf": [{"type": "text"}]}}}},
]  # fmt: skip


@pytest.mark.parametrize("schema", WRONG_SCHEMAS)
def test_what_is_no_schema(schema: object) -> None:
    assert schema_fault(schema) is not None
    with pytest.raises(GrammarInvalid):
        lint(json.dumps(schema), strict=False, max_depth=64)


def test_a_fault_is_told_with_its_place() -> None:
    kinds = "null, boolean, integer, number, string, array, object"
    place = "#/properties/a/items/anyOf/0/type"
    assert schema_fault(WRONG_SCHEMAS[-1]) == f"{place} is 'text', and must be of {kinds}"


def test_every_schema_of_the_official_suite_is_one() -> None:
    seen = 0
    for group in groups():
        assert schema_fault(group.schema) is None, group
        seen += 1
    assert seen > 100


@given(st.integers(0, 2**32))
@settings(max_examples=200)
def test_random_schemas_are_schemas_and_the_values_of_unknown_keywords_are_their_own_business(seed: int) -> None:
    schema = random_schema(random.Random(seed))
    assert schema_fault(schema) is None
    assert schema_fault({"x-own": WRONG_SCHEMAS, "const": {"type": "strin"}, "default": {"type": 5}}) is None
