"""I4 along the routes of the compiler: a mask bit is set exactly where a fresh fork accepts the token, and what is
finished is valid."""

from __future__ import annotations

import json
import random
import re

import jsonschema
import numpy as np
import pytest
from grammar_vocabulary import (
    BYTE,
    EMPTY,
    END_OF_TEXT,
    HEAD,
    IM_END,
    IM_START,
    OUTSIDE,
    TOOL,
    choose,
    fits,
    mask_of,
    mismatches,
    spell,
    text_of,
    tokens_in,
    vocabulary,
)  # fmt: skip
from hypothesis import given, settings
from hypothesis import strategies as st

from bosquet.errors import GrammarInvalid
from bosquet.grammar.compiler import GrammarCompiler
from bosquet.types import GrammarSpec

S, N = {"type": "string"}, {"type": "integer"}
SCHEMAS = [
    {},
    {"type": "object"},
    {"type": "boolean"},
    {"enum": ["red", "green", 1, 0.5, None, True, {"b": [1], "a": "é\n\"\\\x01"}]},
    {"properties": {"name": {"type": "string", "maxLength": 8}, "age": N}, "required": ["name", "age"]},
    {"type": "object", "properties": {"z": N, "a": {"type": "null"}, "m": S}, "required": ["a"]},
    {"type": "object", "required": ["a"]},
    {"type": "object", "properties": {'q"\\\né': {"const": 1}, "": N}, "required": ['q"\\\né']},
    {"type": "object", "properties": {"ab": N}, "additionalProperties": {"type": "boolean"}},
    {"type": "object", "properties": {"ab": N}, "required": ["ab"], "additionalProperties": True, "maxProperties": 3},
    {"type": "object", "additionalProperties": N, "minProperties": 1, "maxProperties": 2},
    {"type": "object", "properties": {"a": N, "b": N, "c": N}, "minProperties": 2, "maxProperties": 2,
     "additionalProperties": False},
    {"type": "object", "patternProperties": {"^x[0-9]{1,2}$": {"enum": ["yes", "no"]}}, "additionalProperties": False},
    {"type": "object", "propertyNames": {"pattern": "^[ab]+$"}, "additionalProperties": {"type": "null"}},
    {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 3},
    {"type": "array", "minItems": 1, "maxItems": 2},
    {"type": "array", "prefixItems": [N, {"type": "boolean"}], "items": {"type": "null"}, "minItems": 1, "maxItems": 4},
    {"type": "array", "items": [N, {"type": "null"}], "additionalItems": False},
    {"type": "array", "items": {"type": "array", "items": N, "maxItems": 2}, "maxItems": 2},
    {"type": "integer", "minimum": -7, "exclusiveMaximum": 123},
    {"type": "integer", "minimum": 0, "maximum": 2e10},
    {"type": "integer", "multipleOf": 7},
    {"type": "number", "minimum": -0.5, "exclusiveMaximum": 10.25},
    {"type": "number", "exclusiveMinimum": 0},
    {"type": "number", "maximum": -3},
    {"type": "number"},
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": "string", "pattern": "b"},
    {"type": "string", "pattern": "^a|b$"},
    {"type": "string", "pattern": "^[^\\s]+ \\d{2}$"},
    {"type": "string", "pattern": "^\\W\\D.$"},
    {"type": "string", "pattern": '^(a"|b\\\\|c)$'},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": ["string", "null"], "maxLength": 1},
    {"anyOf": [{"type": "string", "maxLength": 1}, {"type": "array", "items": N, "maxItems": 1}]},
    {"oneOf": [
        {"type": "object", "properties": {"t": {"const": "x"}, "v": N}, "required": ["t", "v"]},
        {"type": "object", "properties": {"t": {"const": "y"}}, "required": ["t"]},
    ]},
    {"$ref": "#/$defs/node", "$defs": {
        "node": {"properties": {"v": N, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                 "required": ["v", "next"]},
    }},
]  # fmt: skip
REGEXES = [
    "^a(b|c)*$",
    "[0-9]+(\\.[0-9]+)?",
    "a|abc",
    "(日本|é)+",
    "[^a-z\\n]{1,4}",
    "",
    "(red|green){2}",
    "\\w+@\\w+\\.no",
    ".",
]
CHOICES = [["yes", "no"], ["a", "ab", "abc"], ['q"uo\\te', "new\nline", "日本", "é😀", " ", "\x00x"]]
EBNFS = ['root ::= "a" (b | "c"*) "::"\nb ::= [0-9]+ "," b | "x"', 'root ::= "日" [^"]{2,3}']

SPECS = [
    *[GrammarSpec("json_schema", json.dumps(schema)) for schema in SCHEMAS],
    GrammarSpec("json_object"),
    *[GrammarSpec("regex", regex) for regex in REGEXES],
    *[GrammarSpec("choice", json.dumps(choice)) for choice in CHOICES],
    *[GrammarSpec("ebnf", text) for text in EBNFS],
]


@pytest.fixture(scope="module")
def compiler():
    return GrammarCompiler(vocabulary())


def name_of(spec):
    return f"{spec.kind}:{spec.value[:60]}"


def violation(spec, text):
    """Why a finished text is not what the spec asks for; None if it is. Independent of the engine."""
    if spec.kind == "regex":
        return None if re.fullmatch(spec.value, text.decode()) else "no match"
    if spec.kind == "choice":
        return None if text.decode() in json.loads(spec.value) else "not a choice"
    if spec.kind == "ebnf":
        ours = {EBNFS[0]: r"a(?:(?:[0-9]+,)*x|c*)::", EBNFS[1]: r'日[^"]{2,3}'}[spec.value]
        return None if re.fullmatch(ours, text.decode()) else "no match"
    pairs = []

    def no_repeats(items):
        pairs.extend(items)
        return dict(items)

    value = json.loads(text.decode(), object_pairs_hook=no_repeats)
    if spec.kind == "json_object":
        return None if isinstance(value, dict) else "not an object"
    schema = json.loads(spec.value)
    if isinstance(schema.get("items"), list):
        kind = jsonschema.Draft7Validator
    else:
        kind = jsonschema.Draft202012Validator
    error = next(kind(schema, format_checker=kind.FORMAT_CHECKER).iter_errors(value), None)
    return None if error is None else error.message


@pytest.mark.parametrize("spec", SPECS, ids=name_of)
def test_mask_bits_are_what_is_accepted_and_finished_texts_are_valid(compiler, spec):
    compiled = compiler.compile(spec)
    finished = 0
    for seed in range(14):
        rng = random.Random(f"{spec.value}-{seed}")
        matcher = compiled.matcher()
        ids = []
        for step in range(70):
            row = mask_of(matcher)
            if seed < 2 and step < 25:
                assert mismatches(matcher, row) == []
            allowed = tokens_in(row)
            assert allowed, f"stuck after {text_of(ids)!r}"
            assert (IM_END in allowed) == (END_OF_TEXT in allowed) == matcher.completed
            token = choose(rng, allowed, step)
            assert matcher.try_accept([token]) == 1
            ids.append(token)
            if matcher.terminated:
                assert violation(spec, text_of(ids)) is None, text_of(ids)
                finished += 1
                break
    assert finished >= 1


def test_the_checks_of_this_file_can_fail(compiler):
    spec = GrammarSpec("json_schema", json.dumps(SCHEMAS[4]))
    matcher = compiler.compile(spec).matcher()
    row = mask_of(matcher)
    assert mismatches(matcher, row) == []
    for token in (BYTE[b"{"], BYTE[b"a"], IM_START, HEAD + 1):
        wrong = row.copy()
        wrong[token // 32] ^= np.array(1 << (token % 32), dtype=np.uint32).view(np.int32)
        assert mismatches(matcher, wrong) == [token]
    assert violation(spec, b'{"name": "abcdefghi", "age": 3}') is not None
    assert violation(GrammarSpec("json_schema", json.dumps({"type": "string", "format": "date"})), b'"2024-02-31"')
    assert violation(GrammarSpec("regex", "a+"), b"ab") is not None
    assert violation(GrammarSpec("choice", '["a"]'), b"b") is not None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(SPECS) - 1), st.randoms(use_true_random=False), st.data())
def test_rollback_and_fork_equal_replay(compiler_for_hypothesis, index, rng, data):
    compiled = compiler_for_hypothesis.compile(SPECS[index])
    matcher, ids = compiled.matcher(), []
    for step in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["accept", "accept", "accept", "reject", "rollback", "fork"]))
        if action == "accept" and not matcher.terminated:
            token = choose(rng, tokens_in(mask_of(matcher)), step)
            assert matcher.try_accept([token]) == 1
            ids.append(token)
        elif action == "reject":
            assert matcher.try_accept([rng.choice(OUTSIDE), BYTE[b"a"]]) == 0
        elif action == "rollback":
            n = rng.randint(0, len(ids))
            matcher.rollback(n)
            ids = ids[: len(ids) - n]
        elif action == "fork":
            left_behind, matcher = matcher, matcher.fork()
            if not left_behind.terminated:
                left_behind.try_accept([choose(rng, tokens_in(mask_of(left_behind)), step)])
    replayed = compiled.matcher()
    assert replayed.try_accept(ids) == len(ids)
    assert (matcher.completed, matcher.terminated) == (replayed.completed, replayed.terminated)
    if not matcher.terminated:
        assert np.array_equal(mask_of(matcher), mask_of(replayed))


@pytest.fixture(scope="module")
def compiler_for_hypothesis(compiler):
    return compiler


def test_ids_from_anywhere_are_refused_and_change_nothing(compiler):
    matcher = compiler.compile(GrammarSpec("json_object")).matcher()
    for token in [*OUTSIDE, IM_START, TOOL, EMPTY, IM_END, HEAD - 1]:
        assert matcher.try_accept([token]) == 0
    assert matcher.try_accept([BYTE[b"{"], BYTE[b"}"], 2**32 + BYTE[b" "]]) == 2
    assert matcher.completed


def test_accept_stops_at_the_first_that_does_not_fit(compiler):
    matcher = compiler.compile(GrammarSpec("regex", "abc")).matcher()
    assert matcher.try_accept(spell("abxc")) == 2
    assert matcher.try_accept(spell("c")) == 1
    assert matcher.completed
    assert tokens_in(mask_of(matcher)) == [IM_END, END_OF_TEXT]
    assert matcher.try_accept([END_OF_TEXT, IM_END]) == 1
    assert matcher.terminated
    with pytest.raises(ValueError, match="end token"):
        mask_of(matcher)
    matcher.rollback(2)
    assert not matcher.terminated
    assert matcher.try_accept(spell("c")) == 1
    with pytest.raises(ValueError, match="cannot be undone"):
        matcher.rollback(4)
    with pytest.raises(ValueError, match="cannot be undone"):
        matcher.rollback(-1)


def test_special_tokens_are_never_text_though_a_string_could_hold_their_bytes(compiler):
    """vllm#42403: end-like tokens in the middle; and control tokens inside a string."""
    matcher = compiler.compile(GrammarSpec("json_schema", json.dumps(S))).matcher()
    matcher.try_accept(spell('"a'))
    allowed = tokens_in(mask_of(matcher))
    assert not {IM_START, IM_END, END_OF_TEXT, TOOL, EMPTY} & set(allowed)
    assert fits(matcher, '<|im_start|>"')  # as plain text, byte by byte
    assert max(allowed) < HEAD


@pytest.mark.parametrize(
    "spec", [GrammarSpec("json_object"), GrammarSpec("regex", ".+"), GrammarSpec("ebnf", "root ::= [^a]+")], ids=name_of
)
def test_bytes_that_are_not_utf8_are_never_accepted(compiler, spec):
    """Overlong forms, surrogates and what lies beyond U+10FFFF: xgrammar alone lets them through."""
    start = b'{"' if spec.kind == "json_object" else b"x"
    for bad in (
        b"\xf0\x8f\x8e\xa5",
        b"\xed\xbe\xb1",
        b"\xf4\x90\x80\x80",
        b"\xe0\x9f\xbf",
        b"\xc1\xbf",
        b"\x80",
        b"\xc3A",
    ):
        matcher = compiler.compile(spec).matcher()
        assert matcher.try_accept(spell(start)) == len(start)
        assert matcher.try_accept(spell(bad)) < len(bad)
    matcher = compiler.compile(spec).matcher()
    good = start + "é\ud7ff\U0010ffff日".encode()
    assert matcher.try_accept(spell(good)) == len(good)


def test_raw_control_characters_never_stand_in_json(compiler):
    """xgrammar lets them into strings of bounded length; JSON does not."""
    for schema in ({"type": "string", "maxLength": 3}, {"type": "string", "pattern": "[^a]{1,3}"}, S):
        matcher = compiler.compile(GrammarSpec("json_schema", json.dumps(schema))).matcher()
        assert fits(matcher, '"x"')
        assert not fits(matcher, '"\t"')
        assert not fits(matcher, '"\n"')
    assert fits(compiler.compile(GrammarSpec("regex", "\\t")).matcher(), "\t")


def test_a_mask_row_of_another_shape_is_refused(compiler):
    matcher = compiler.compile(GrammarSpec("json_object")).matcher()
    with pytest.raises(ValueError, match="mask row"):
        matcher.fill_mask(np.zeros(3, dtype=np.int32))
    with pytest.raises(ValueError, match="mask row"):
        matcher.fill_mask(np.zeros((HEAD + 31) // 32, dtype=np.int64))


def test_forced_tokens_are_those_without_a_choice(compiler):
    matcher = compiler.compile(GrammarSpec("regex", "x:=[ab]")).matcher()
    forced = matcher.forced_tokens()
    assert text_of(forced) == b"x:="
    assert matcher.try_accept(forced) == len(forced)
    assert matcher.forced_tokens() == []
    single = compiler.compile(GrammarSpec("choice", '["no!"]')).matcher()
    assert single.forced_tokens() == []  # "n" or "no" may come first
    assert single.try_accept(spell("no")) == 2
    assert text_of(single.forced_tokens()) == b"!"  # then two end tokens are left: a choice


def test_white_space_is_bounded(compiler):
    """vllm#38696: no endless white space."""
    matcher = compiler.compile(GrammarSpec("json_object")).matcher()
    matcher.try_accept(spell("{"))
    assert matcher.try_accept(spell(" " * 20)) < 10
    assert not fits(compiler.compile(GrammarSpec("json_object")).matcher(), " {}")


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        ({"type": "object", "required": ["a"]}, ['{"a": 1}'], ["{}"]),  # xgrammar#104
        ({"type": "string", "pattern": r"^hi\!$"}, ['"hi!"'], ['"hi"', '"x"', "1"]),  # llama.cpp#19051
        ({"type": "integer", "maximum": 2e10}, ["20000000000"], ["20000000001"]),  # vllm#17894
        (  # ollama#7978: declared order
            {"type": "object", "properties": {"steps": N, "final_answer": N}, "required": ["steps", "final_answer"]},
            ['{"steps":1,"final_answer":2}'], ['{"final_answer":2,"steps":1}'],
        ),
        (  # an undeclared name may not spell a declared one with escapes
            {"type": "object", "properties": {"ab": N}, "additionalProperties": True},
            ['{"ab":1}', '{"b":"x"}', '{"ab":1,"c":"x"}'], ['{"\\u0061b":"x"}', '{"ab":"x"}', '{"ab":1,"ab":2}'],
        ),
        ({"type": "object", "properties": {"a": N}}, ["{}", '{"a":1}', '{"b":1}'], ['{"a":1,"a":2}', '{"a":"x"}']),
        ({"type": "string", "pattern": "b"}, ['"abc"', '"b"'], ['"a"', '""']),
        ({"type": "string", "format": "date"}, ['"2024-01-31"'], ['"2024-02-30"', '"2024-13-01"']),
        (
            {"anyOf": [{"const": 1}, {"type": "array", "items": N, "minItems": 1, "maxItems": 1}]},
            ["1", "[5]"], ["2", "[]", "[1,2]"],
        ),
    ],
)  # fmt: skip
def test_public_reports(compiler, schema, yes, no):
    matcher = compiler.compile(GrammarSpec("json_schema", json.dumps(schema))).matcher()
    assert [text for text in yes if not fits(matcher, text)] == []
    assert [text for text in no if fits(matcher, text)] == []


def test_a_grammar_that_no_token_can_begin_is_refused(compiler):
    with pytest.raises(GrammarInvalid, match="no text"):
        compiler.compile(GrammarSpec("ebnf", 'root ::= root "a"'))
