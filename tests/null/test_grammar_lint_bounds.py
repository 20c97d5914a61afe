"""The schema linter is bounded: hostile schemas are done or refused soon, usual ones are fast. Its table is whole."""

from __future__ import annotations

import json
import random
import time

import pytest
from jsonschema.validators import validator_for

from bosquet.errors import GrammarInvalid
from bosquet.grammar import lint as lint_module
from bosquet.grammar.lint import lint
from bosquet.grammar.routes import HUGE_SCHEMA, route_schema
from bosquet.grammar.schema_algebra import MAX_BRANCHES, Algebra
from bosquet.grammar.schema_keywords import OF, TABLE, TYPES
from bosquet.grammar.schema_write import Writer

S, N = {"type": "string"}, {"type": "integer"}


def linted(schema, *, strict=True, depth=64):
    return lint(schema if isinstance(schema, str) else json.dumps(schema), strict=strict, max_depth=depth)


def refusal(text, strict):
    """The message of the refusal; empty when there was none."""
    try:
        linted(text, strict=strict)
    except GrammarInvalid as error:
        return str(error)
    return ""


def test_depth_is_limited():
    schema = N
    for _ in range(30):
        schema = {"type": "array", "items": schema}
    assert linted(schema).engine == "xgrammar"
    with pytest.raises(GrammarInvalid, match="deep"):
        linted(schema, depth=20)


def chain(length, link):
    defs = {f"d{at}": link(f"#/$defs/d{at + 1}") for at in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{length}": N}}


HOSTILE = {
    "long chain of references": chain(5000, lambda ref: {"$ref": ref}),
    "long chain of combinations": chain(2000, lambda ref: {"allOf": [{"$ref": ref}]}),
    "long chain of properties": chain(
        2000, lambda ref: {"type": "object", "properties": {"a": {"$ref": ref}}, "required": ["a"]}
    ),
    "doubling": chain(
        60, lambda ref: {"anyOf": [{"properties": {"a": {"$ref": ref}}}, {"properties": {"b": {"$ref": ref}}}]}
    ),
    "doubling in place": chain(
        40, lambda ref: {"allOf": [{"anyOf": [{"required": [ref]}, {"required": [ref + "x"]}]}, {"$ref": ref}]}
    ),
    "product": {
        "type": "object",
        "allOf": [{"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(40)],
    },
    "one of many": {"oneOf": [{"properties": {f"p{n}": N}} for n in range(300)]},
    "dependencies": {"dependentRequired": {f"a{n}": [f"b{n}"] for n in range(60)}},
    "opposites": {"not": {"properties": {f"a{n}": {"not": {"properties": {f"b{n}": N}}} for n in range(200)}}},
    "deep not": json.loads('{"not":' * 180 + "{}" + "}" * 180),
    "wide enum": {"allOf": [{"enum": list(range(20_000))}] * 6},
    "slow expression": {"enum": ["a" * 200 + "!"], "pattern": "^(a+)+$"},
    "state explosion": {"type": "string", "not": {"pattern": "a.{40}$"}, "pattern": "b.{30}$"},
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_done_or_refused_soon(name, strict):
    text = json.dumps(HOSTILE[name])
    start = time.process_time()
    said = refusal(text, strict)
    assert time.process_time() - start < 3
    assert said == "" or "#" in said or "deep" in said


def test_a_usual_schema_is_linted_within_two_milliseconds():
    rng = random.Random(1)
    field = [
        {**S, "maxLength": 40},
        {**N, "minimum": 0},
        {"type": "boolean"},
        {"enum": ["red", "green", "blue"]},
        {"type": "array", "items": S, "maxItems": 4},
        {"$ref": "#/$defs/point"},
        {**S, "description": "of the thing " * 4},
    ]
    names = [f"field_{n}" for n in range(24)]
    schema = {
        "type": "object",
        "properties": {name: rng.choice(field) for name in names},
        "required": names[:12],
        "$defs": {"point": {"type": "object", "properties": {"x": N, "y": N}, "required": ["x", "y"]}},
    }
    text = json.dumps(schema)
    assert 1800 < len(text) < 2600
    times = []
    for _ in range(30):
        start = time.process_time()
        linted(text)
        times.append(time.process_time() - start)
    assert sorted(times)[15] < 0.002 * 2  # twice for machines under load


@pytest.mark.parametrize("strict", [True, False])
def test_a_schema_is_read_once_for_all_engines(strict, monkeypatch):
    """Whichever engine comes to serve it: this is long, and so not for xgrammar, which is asked first."""
    read, written = [], []
    document, write = lint_module.Document, Writer.document
    monkeypatch.setattr(lint_module, "Document", lambda *args: read.append(args) or document(*args))
    monkeypatch.setattr(Writer, "document", lambda self, root: written.append(type(self)) or write(self, root))
    schema = {"type": "object", "properties": {f"a_longer_name_{n}": {**S, "minLength": n} for n in range(60)}}
    assert route_schema(json.dumps(schema), strict=strict, max_depth=64).engine == "llguidance"
    assert len(read) == 1
    assert len(written) == len(set(written)) == 2


def test_alternatives_that_multiply_are_given_up_at_the_first_too_many(monkeypatch):
    met = []
    meet = Algebra.meet_branch
    monkeypatch.setattr(Algebra, "meet_branch", lambda self, *args: met.append(1) or meet(self, *args))
    many = {"anyOf": [{"type": "object", "required": [f"n{at}"]} for at in range(150)]}
    assert "multiply" in refusal(json.dumps({"allOf": [many, {**many}, many]}), True)
    assert len(met) < 3 * MAX_BRANCHES


@pytest.mark.parametrize("strict", [True, False])
def test_a_huge_schema_is_never_for_xgrammar(strict):
    """Which alone enforces this one, and would take seconds."""
    schema = {
        "type": "object",
        "properties": {f"property_{n}_{'x' * 60}": {"type": "boolean"} for n in range(500)},
        "additionalProperties": False,
        "minProperties": 2,
    }
    text = json.dumps(schema)
    assert len(text) > HUGE_SCHEMA
    if strict:
        with pytest.raises(GrammarInvalid, match="#: `minProperties` cannot be enforced: "):
            route_schema(text, strict=True, max_depth=64)
        return
    routed = route_schema(text, strict=False, max_depth=64)
    assert routed.engine == "llguidance"
    assert [(item.path, item.keyword) for item in routed.relaxed] == [("#", "minProperties")]


# ---- the table -------------------------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_every_keyword_that_constrains():

    known = {row.keyword for row in TABLE}
    annotations = {
        "$schema",
        "$id",
        "$anchor",
        "$comment",
        "$defs",
        "$vocabulary",
        "$dynamicAnchor",
        "definitions",
        "id",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "contentMediaType",
        "contentEncoding",
        "contentSchema",
        "$recursiveAnchor",
    }
    for draft in (
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-06/schema#",
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2020-12/schema",
    ):
        keywords = set(validator_for({"$schema": draft}).VALIDATORS)
        assert keywords - annotations <= known
    assert len(known) == len(TABLE)
    assert {row.of for row in TABLE} <= {"", *TYPES}
    assert all(row.otherwise or "never" not in (row.xgrammar, row.llguidance) for row in TABLE)
    assert {"number", "string", "array", "object"} == OF.keys()
