"""Structural formats: what is refused, and with which place; what comes out."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bosquet.errors import GrammarInvalid
from bosquet.grammar.formats import MAX_DEPTH, check_format, is_open, parts

BOOL = {"type": "json_schema", "json_schema": True}
ANY = {"type": "any_text"}
TAG = {"type": "tag", "begin": "<a>", "content": BOOL, "end": "</a>"}
OPEN = {"type": "triggered_tags", "triggers": ["<a"], "tags": [TAG]}
CONST = {"type": "const_string", "value": "x"}


@pytest.mark.parametrize(
    ("value", "place", "why"),
    [
        ([], "#", "an object"),
        ("x", "#", "an object"),
        ({}, "#/type", "one of const_string"),
        ({"type": "grammar", "grammar": "root ::= x"}, "#/type", "one of"),
        ({"type": ["tag"]}, "#/type", "one of"),
        ({"type": "const_string"}, "#", "`value` is missing"),
        ({"type": "const_string", "value": ""}, "#/value", "not empty"),
        ({"type": "const_string", "value": 3}, "#/value", "not empty"),
        ({"type": "const_string", "value": "\ud800"}, "#/value", "surrogate"),
        ({"type": "const_string", "value": "x", "style": "json"}, "#", "`style` is not known"),
        ({"type": "any_text", "excludes": ["x"]}, "#", "`excludes` is not known"),
        ({"type": "json_schema", "json_schema": "bar"}, "#/json_schema", "an object or a boolean"),
        ({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}, "#", "`style` is not known"),
        ({"type": "regex", "pattern": ["a"]}, "#/pattern", "not empty"),
        ({"type": "sequence", "elements": []}, "#/elements", "at least one"),
        ({"type": "sequence", "elements": {"type": "any_text"}}, "#/elements", "at least one"),
        ({"type": "sequence", "elements": [CONST, ANY, CONST]}, "#/elements/1", "nothing may follow free text"),
        ({"type": "sequence", "elements": [OPEN, CONST]}, "#/elements/0", "nothing may follow free text"),
        ({"type": "or", "elements": [CONST, 5]}, "#/elements/1", "an object"),
        (TAG | {"content": {"type": "tag"}}, "#/content", "`begin` is missing"),
        (TAG | {"begin": ""}, "#/begin", "not empty"),
        (TAG | {"end": []}, "#/end", "a string or a list"),
        (TAG | {"end": [1]}, "#/end", "a string or a list"),
        (TAG | {"content": ANY, "end": ""}, "#/end", "free text needs an end"),
        (TAG | {"content": ANY, "end": ["</a>", "a"]}, "#/end", "contains"),
        ({"type": "triggered_tags", "triggers": [], "tags": [TAG]}, "#/triggers", "at least one"),
        ({"type": "triggered_tags", "triggers": ["<a", ""], "tags": [TAG]}, "#/triggers/1", "not empty"),
        ({"type": "triggered_tags", "triggers": ["<a", "a"], "tags": [TAG]}, "#/triggers", "contains"),
        ({"type": "triggered_tags", "triggers": ["<b"], "tags": [TAG]}, "#/tags/0/begin", "does not begin"),
        ({"type": "triggered_tags", "triggers": ["<a", "!"], "tags": [TAG]}, "#/triggers/1", "no tag begins"),
        ({"type": "triggered_tags", "triggers": ["<a"], "tags": [CONST]}, "#/tags/0", "has to be a tag"),
        (OPEN | {"at_least_one": 1}, "#/at_least_one", "true or false"),
        ({"type": "tags_with_separator", "tags": [TAG], "separator": None}, "#/separator", "a string"),
        ({"type": "tags_with_separator", "tags": [], "separator": ","}, "#/tags", "at least one"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(value, place, why):
    with pytest.raises(GrammarInvalid) as caught:
        check_format(json.dumps(value))
    message = str(caught.value)
    assert message.startswith(f"format: {place}: ")
    assert why in message
    assert len(message) < 300


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"type": NaN}', "[" * 100_000, '{"a":' * 50_000])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(GrammarInvalid, match="format: "):
        check_format(text)


def test_nesting_is_bounded():
    node = CONST
    for _ in range(MAX_DEPTH):
        node = {"type": "sequence", "elements": [node]}
    check_format(json.dumps(node))
    with pytest.raises(GrammarInvalid, match="nested more than"):
        check_format(json.dumps({"type": "sequence", "elements": [node]}))


def test_what_comes_out_has_every_flag_and_lists_of_ends():
    found = check_format(json.dumps(OPEN))
    assert found == {
        "type": "triggered_tags", "triggers": ["<a"], "tags": [TAG | {"end": ["</a>"]}],
        "at_least_one": False, "stop_after_first": False,
    }  # fmt: skip
    assert check_format(json.dumps(found)) == found
    assert check_format(json.dumps(TAG | {"end": ["x", "x", "y"]}))["end"] == ["x", "y"]


def test_schemas_are_left_as_they_are():
    schema = {"type": "object", "properties": {"type": {"type": "tag"}, "z": {}, "a": {}}}
    found = check_format(json.dumps({"type": "json_schema", "json_schema": schema}))
    assert json.dumps(found["json_schema"]) == json.dumps(schema)
    assert [path for path, _ in parts(found)] == ["#"]


def test_parts_are_named_by_their_pointers():
    node = check_format(json.dumps({"type": "or", "elements": [CONST, TAG | {"content": OPEN}]}))
    assert [(path, part["type"]) for path, part in parts(node)] == [
        ("#", "or"), ("#/elements/0", "const_string"), ("#/elements/1", "tag"),
        ("#/elements/1/content", "triggered_tags"), ("#/elements/1/content/tags/0", "tag"),
        ("#/elements/1/content/tags/0/content", "json_schema"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (CONST, False), (ANY, True), (TAG, False), (TAG | {"content": ANY}, False), (OPEN, True),
        (OPEN | {"stop_after_first": True}, True), (OPEN | {"at_least_one": True}, True),
        (OPEN | {"stop_after_first": True, "at_least_one": True}, False),
        ({"type": "or", "elements": [CONST, ANY]}, True), ({"type": "sequence", "elements": [CONST, ANY]}, True),
        ({"type": "tags_with_separator", "tags": [TAG], "separator": ""}, False),
    ],
)  # fmt: skip
def test_open_formats_are_those_that_end_in_free_text(value, wanted):
    assert is_open(check_format(json.dumps(value))) is wanted


def test_checking_needs_no_engine():
    """The API process checks formats and schemas, and imports neither torch nor an engine for it."""
    program = (
        "import sys, bosquet.grammar.formats, bosquet.grammar.lint\n"
        "heavy = {'torch', 'transformers', 'xgrammar', 'llguidance', 'outlines_core', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
