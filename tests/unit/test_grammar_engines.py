"""I4 for every engine, by one suite: mask bits are what is accepted, undoing and copying are replaying, forced tokens
are the only way, and what is finished is what was asked for."""

from __future__ import annotations

import functools
import itertools
import json
import random
import re

import jsonschema
import numpy as np
import pytest
from format_oracle import matches
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
    text_of,
    tokens_in,
    vocabulary,
)  # fmt: skip
from hypothesis import given, settings
from hypothesis import strategies as st

from bosquet.grammar.after_marker import AfterMarker, Marker
from bosquet.grammar.engines import Engines
from bosquet.grammar.format_lark import as_lark
from bosquet.grammar.formats import check_format
from bosquet.grammar.lint import lint
from bosquet.grammar.regex import Regex

REGEXES = [
    "a|abc", "[0-9]+(\\.[0-9]+)?", "a(b|c)*", "(日本|é)+", "[^a-z\\n]{1,4}", "(red|green){2}", "\\w+@\\w+\\.no", "",
    "([a-z]+ ?)+!", "(?:[a-z]{2,4},?){1,3}", "(a|ab)(c|bcd)?d*", "x:=[ab]",
]  # fmt: skip
CHOICES = [["yes", "no"], ["a", "ab", "abc"], ['q"uo\\te', "new\nline", "日本", "é😀", " "]]
SCHEMAS = [
    {"type": "object"},
    {"enum": ["red", 1, None, {"b": [1], "a": "é\n\"\\"}]},
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
     "required": ["name", "age"], "additionalProperties": False},
    {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 3},
    {"type": "string", "pattern": "^[a-f]{1,3}-[0-9]$"},
    {"type": "integer", "minimum": -7, "exclusiveMaximum": 123},
    {"type": "number", "exclusiveMinimum": 0},
    {"anyOf": [{"type": "string", "maxLength": 1}, {"type": "array", "items": {"type": "null"}, "maxItems": 1}]},
    {"$ref": "#/$defs/n", "$defs": {"n": {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "n": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
        "required": ["v", "n"], "additionalProperties": False}}},
]  # fmt: skip
BOOL = {"type": "json_schema", "json_schema": {"type": "boolean"}}
CALL = {"type": "tag", "begin": '<tool>{"name":"f","args":', "end": "}</tool>", "content": {
    "type": "json_schema", "json_schema": {
        "type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}, "required": ["a"],
        "additionalProperties": False}}}  # fmt: skip
FORMATS = [
    {"type": "triggered_tags", "triggers": ["<tool>"], "tags": [CALL]},
    {"type": "triggered_tags", "triggers": ["<t"], "tags": [
        CALL, {"type": "tag", "begin": "<t2>", "content": {"type": "any_text"}, "end": ["</a>", "</b>"]}],
     "stop_after_first": True},
    {"type": "sequence", "elements": [
        {"type": "const_string", "value": "x"}, {"type": "or", "elements": [BOOL, CALL]}]},
    {"type": "tags_with_separator", "separator": ", ", "at_least_one": True,
     "tags": [{"type": "tag", "begin": "<b>", "content": BOOL, "end": "</b>"}]},
]  # fmt: skip
EBNF = 'root ::= "a" (b | "c"*) "::"\nb ::= [0-9]+ "," b | "x"'
LARK = 'start: "a" (b | "c"*) "::"\nb: /[0-9]+/ "," b | "x"'
NESTED = re.compile(r"a(?:(?:[0-9]+,)*x|c*)::")
MARKER = [BYTE[b"a"], BYTE[b"a"], BYTE[b"b"]]


def regex_subject(engine, pattern):
    return engine.regex(Regex.whole(pattern).write()), lambda text: bool(re.fullmatch(pattern, text))


def schema_subject(engine, name, schema):
    linted = lint(json.dumps(schema), strict=True, max_depth=32, engines=(name,))
    validator = jsonschema.Draft202012Validator(schema)
    return engine.json_schema(linted.schema), lambda text: validator.is_valid(json.loads(text))


def linted_format(value, name):
    node = dict(value)
    if node["type"] == "json_schema":
        text = lint(json.dumps(node["json_schema"]), strict=True, max_depth=32, engines=(name,)).schema
        node["json_schema"] = json.loads(text)
    for key in ("elements", "tags"):
        if key in node:
            node[key] = [linted_format(inner, name) for inner in node[key]]
    if "content" in node:
        node["content"] = linted_format(node["content"], name)
    return node


def format_subject(engine, name, value):
    checked = check_format(json.dumps(value))
    written = linted_format(checked, name)
    compiled = engine.structural(written) if name == "xgrammar" else engine.lark(as_lark(written))
    return compiled, lambda text: matches(checked, text)


def after_subject(engine):
    """What follows the first `aab` is the regular expression's."""
    inner, _ = regex_subject(engine, "[0-9]{2}|x")
    found = AfterMarker(Marker(MARKER, VOCABULARY), inner)
    return found, lambda text: re.fullmatch("[0-9]{2}|x", text.split("aab", 1)[1]) is not None


VOCABULARY = vocabulary()
ENGINES = Engines(VOCABULARY, 1)
MAKERS = {
    **{f"{name}:regex:{p}": (lambda name=name, p=p: regex_subject(getattr(ENGINES, name), p))
       for name in ("xgrammar", "llguidance", "outlines") for p in REGEXES},
    **{f"{name}:choice:{c}": (lambda name=name, c=c: (getattr(ENGINES, name).choice(c), c.__contains__))
       for name in ("xgrammar", "llguidance", "outlines") for c in CHOICES},
    **{f"{name}:schema:{json.dumps(s)[:50]}": (lambda name=name, s=s: schema_subject(getattr(ENGINES, name), name, s))
       for name in ("xgrammar", "llguidance") for s in SCHEMAS},
    **{f"{name}:format:{at}": (lambda name=name, f=f: format_subject(getattr(ENGINES, name), name, f))
       for name in ("xgrammar", "llguidance") for at, f in enumerate(FORMATS)},
    "xgrammar:ebnf": lambda: (ENGINES.xgrammar.ebnf(EBNF), lambda text: bool(NESTED.fullmatch(text))),
    "llguidance:lark": lambda: (ENGINES.llguidance.lark(LARK), lambda text: bool(NESTED.fullmatch(text))),
    **{f"{name}:after": (lambda name=name: after_subject(getattr(ENGINES, name)))
       for name in ("llguidance", "outlines")},
}  # fmt: skip


@functools.cache
def subject(name):
    return MAKERS[name]()


def walk(compiled, rng, steps):
    """A random way through the grammar: the matcher, and the ids."""
    matcher, ids = compiled.matcher(), []
    for step in range(steps):
        if matcher.terminated:
            break
        token = choose(rng, tokens_in(mask_of(matcher)), step)
        assert matcher.try_accept([token]) == 1
        ids.append(token)
    return matcher, ids


@pytest.mark.parametrize("name", MAKERS)
def test_mask_bits_are_what_is_accepted_and_finished_texts_are_right(name):
    compiled, right = subject(name)
    finished = 0
    for seed in range(8):
        rng = random.Random(f"{name}-{seed}")
        matcher, ids = compiled.matcher(), []
        for step in range(60):
            row = mask_of(matcher)
            if seed < 2 and step < 20:
                assert mismatches(matcher, row) == []
            allowed = tokens_in(row)
            assert allowed, f"stuck after {text_of(ids)!r}"
            assert (IM_END in allowed) == (END_OF_TEXT in allowed) == matcher.completed
            token = choose(rng, allowed, step)
            assert matcher.try_accept([token]) == 1
            ids.append(token)
            if matcher.terminated:
                assert right(text_of(ids).decode()), text_of(ids)
                finished += 1
                break
    assert finished >= 1 or name.endswith("after")


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([*MAKERS]), st.randoms(use_true_random=False), st.data())
def test_rollback_and_fork_equal_replay(name, rng, data):
    compiled, _ = subject(name)
    matcher, ids = compiled.matcher(), []
    for step in range(data.draw(st.integers(1, 20))):
        action = data.draw(st.sampled_from(["accept", "accept", "accept", "reject", "rollback", "fork", "force"]))
        if action == "accept" and not matcher.terminated:
            token = choose(rng, tokens_in(mask_of(matcher)), step)
            assert matcher.try_accept([token]) == 1
            ids.append(token)
        elif action == "reject":
            refused = [t for t in range(HEAD) if t not in tokens_in(mask_of(matcher))] if not matcher.terminated else []
            for token in [rng.choice(OUTSIDE), *([rng.choice(refused)] if refused else [])]:
                assert matcher.try_accept([token, BYTE[b"a"]]) == 0
        elif action == "rollback":
            n = rng.randint(0, len(ids))
            matcher.rollback(n)
            ids = ids[: len(ids) - n]
        elif action == "fork":
            left_behind, matcher = matcher, matcher.fork()
            if not left_behind.terminated:
                left_behind.try_accept([choose(rng, tokens_in(mask_of(left_behind)), step)])
                left_behind.rollback(1)
                left_behind.rollback(len(ids))
        elif action == "force":
            matcher.forced_tokens()
    replayed = compiled.matcher()
    assert replayed.try_accept(ids) == len(ids)
    assert (matcher.completed, matcher.terminated) == (replayed.completed, replayed.terminated)
    if not matcher.terminated:
        assert np.array_equal(mask_of(matcher), mask_of(replayed))


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([*MAKERS]), st.randoms(use_true_random=False), st.integers(0, 15))
def test_forced_tokens_are_the_only_way(name, rng, steps):
    matcher, _ = walk(subject(name)[0], rng, steps)
    forced = matcher.forced_tokens()
    for token in forced:
        assert tokens_in(mask_of(matcher)) == [token]
        assert matcher.try_accept([token]) == 1
    if not matcher.terminated and len(forced) < 64:
        assert len(tokens_in(mask_of(matcher))) > 1


@pytest.mark.parametrize("name", MAKERS)
def test_ids_from_anywhere_are_refused_and_change_nothing(name):
    compiled, _ = subject(name)
    for steps in (0, 3, 9):
        matcher, ids = walk(compiled, random.Random(name), steps)
        if matcher.terminated:
            assert matcher.try_accept([IM_END]) == matcher.try_accept([BYTE[b"a"]]) == 0
            with pytest.raises(ValueError, match="end token"):
                mask_of(matcher)
            continue
        before = mask_of(matcher)
        free = name.endswith("after") and not matcher.completed and b"aab" not in text_of(ids)
        for token in [*OUTSIDE, *([] if free else [IM_START, TOOL, EMPTY]), HEAD - 1, len(before) * 32]:
            assert matcher.try_accept([token]) == 0
            assert token not in tokens_in(before)
        assert np.array_equal(mask_of(matcher), before)
        assert max(tokens_in(before)) < HEAD
        with pytest.raises(ValueError, match="cannot be undone"):
            matcher.rollback(len(ids) + 1)
        with pytest.raises(ValueError, match="cannot be undone"):
            matcher.rollback(-1)


@pytest.mark.parametrize("name", MAKERS)
def test_a_mask_row_of_another_shape_is_refused(name):
    for bad in (np.zeros(3, dtype=np.int32), np.zeros((HEAD + 31) // 32, dtype=np.int64)):
        with pytest.raises(ValueError, match="mask row"):
            subject(name)[0].matcher().fill_mask(bad)


# ---- the same language on every engine -------------------------------------------------------------------------------

ATOMS = st.sampled_from(["a", "b", "c", "ab", "é", "[ab]", "[^a]", ".", "1", "\\d", "\\w"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=6,
)  # fmt: skip
TEXTS = ["".join(text) for length in range(4) for text in itertools.product("abc1é ", repeat=length)]


@settings(max_examples=40, deadline=None)
@given(PATTERNS, st.randoms(use_true_random=False))
def test_engines_agree_with_python_on_regular_expressions(pattern, rng):
    written = Regex.whole(pattern).write()
    compiled = {name: getattr(ENGINES, name).regex(written) for name in ("xgrammar", "llguidance", "outlines")}
    texts = {*rng.sample(TEXTS, 60), *(rng.choice("abc1é") * n for n in range(8))}
    for found in compiled.values():
        matcher, ids = walk(found, rng, 12)
        if matcher.completed:
            texts.add(text_of(ids).decode())
    for text in texts - {text for text in texts if not text.isprintable()}:
        wanted = re.fullmatch(pattern, text, re.ASCII) is not None
        if any(ord(char) > 0x7F and char != "é" for char in text):
            continue  # `\w` and its like are narrower than Python's
        assert {name: fits(found.matcher(), text) for name, found in compiled.items()} == dict.fromkeys(
            compiled, wanted
        )


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-20, 200), st.sampled_from(["", "a", "ab", "red", "x-1"]))
DOCUMENTS = st.one_of(
    VALUES,
    st.lists(st.one_of(VALUES, st.sampled_from(["red", "green"])), max_size=4),
    st.dictionaries(st.sampled_from(["name", "age", "v", "n", "z"]), VALUES, max_size=3),
)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(SCHEMAS) - 1), DOCUMENTS)
def test_engines_agree_with_a_validator_on_schemas(index, value):
    text = json.dumps(value, separators=(",", ":"))
    wanted = jsonschema.Draft202012Validator(SCHEMAS[index]).is_valid(value)
    for name in ("xgrammar", "llguidance"):
        compiled, _ = schema_subject_of(name, index)
        ordered = isinstance(value, dict) and [*value] != [n for n in ("name", "age", "v", "n", "z") if n in value]
        assert fits(compiled.matcher(), text) == (wanted and not (ordered and index)), (name, text)


@functools.cache
def schema_subject_of(name, index):
    return schema_subject(getattr(ENGINES, name), name, SCHEMAS[index])


def test_the_checks_of_this_file_can_fail():
    compiled, right = subject("outlines:regex:a|abc")
    matcher = compiled.matcher()
    row = mask_of(matcher)
    for token in (BYTE[b"a"], IM_START, HEAD + 1):
        wrong = row.copy()
        wrong[token // 32] ^= np.array(1 << (token % 32), dtype=np.uint32).view(np.int32)
        assert mismatches(matcher, wrong) == [token]
    assert right("abc")
    assert not right("ab")
    _, right = subject("xgrammar:format:0")
    assert right('hi <tool>{"name":"f","args":{"a":"x"}}</tool>')
    assert not right('hi <tool>{"name":"f","args":{"a":"long"}}</tool>')
    assert not right("hi <tool>")
