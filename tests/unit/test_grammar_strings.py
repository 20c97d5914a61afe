"""Strings and names of JSON: a class of characters is just that class, however they are written, and a declared name
comes once.

The right set is that of the class itself; how a character is written in JSON is said by the `json` module."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from bosquet.errors import GrammarInvalid
from bosquet.grammar.compiler import GrammarCompiler
from bosquet.grammar.lint import lint
from bosquet.grammar.llguidance_engine import LlguidanceEngine
from bosquet.runtime.bench.maskbench import byte_vocabulary
from bosquet.types import GrammarSpec

VOCABULARY = byte_vocabulary()
COMPILER = GrammarCompiler(VOCABULARY, cache_bytes=0)
ENGINE = LlguidanceEngine(VOCABULARY)

ESCAPED = '"\\\n\r\t\b\f'
PROBES = ESCAPED + "ab7 !#[]^{~\x7f\x80é\u2028\U0010ffff"
ONLY_BY_NUMBER = {"\x7f"}  # in llguidance, which we do not let write characters by number


def starts(done, text):
    return done.matcher().try_accept(list(text.encode())) == len(text.encode())


def fits(done, text):
    matcher = done.matcher()
    return matcher.try_accept(list(text.encode())) == len(text.encode()) and matcher.completed


def in_class(chars):
    return "".join(f"\\u{ord(char):04x}" if ord(char) < 0x10000 else char for char in chars)


@pytest.mark.parametrize("shape", ["^{}$", "^x{}y$", "^(?:{}|zz)$", "^{}*$"])
@pytest.mark.parametrize("negated", [True, False])
def test_a_class_lets_through_just_its_characters(shape, negated):
    rng = random.Random(7)
    pairs = [*ESCAPED, *map("".join, itertools.combinations(ESCAPED, 2))]
    for chosen in [*pairs, *("".join(rng.sample(PROBES, 4)) for _ in range(12))]:
        pattern = shape.format(f"[{'^' if negated else ''}{in_class(chosen)}]")
        linted = lint(
            json.dumps({"type": "string", "pattern": pattern}), strict=True, max_depth=9, engines=("llguidance",)
        )
        done = ENGINE.json_schema(linted.schema)
        for char in PROBES:
            text = json.dumps(f"x{char}y" if "x" in shape else char, ensure_ascii=False)
            expected = ((char in chosen) is not negated) and char not in ONLY_BY_NUMBER
            assert fits(done, text) is expected, (pattern, char)


INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
NAMES = ["a", "b", "ab", "x-1", "é", "a b", 'q"t', "n\nl", "a/b", "", "averylongname", "\x7f", "A"]
PATTERNS = ["^a", "b$", "^[a-z]+$", "", "^(a|b|ab)$", "^.{1,3}$", "^averylong", "^[^q]", "^\\S+$", "^.*$"]


def objects(rng):
    """A schema of an object with declared names beside others."""
    some = [INTEGER, {}, TEXT, {"enum": [1, "x"]}]
    schema = {"type": "object", "properties": {name: rng.choice(some) for name in rng.sample(NAMES, 3)}}
    if rng.random() < 0.6:
        schema["patternProperties"] = {pattern: rng.choice(some) for pattern in rng.sample(PATTERNS, 2)}
    if rng.random() < 0.6:
        schema["additionalProperties"] = rng.choice([*some, False])
    if rng.random() < 0.3:
        schema["required"] = rng.sample(NAMES, 1)
    if rng.random() < 0.2:
        schema["propertyNames"] = rng.choice([{"pattern": rng.choice(PATTERNS)}, {"maxLength": 5}])
    return schema


def spellings(name):
    yield json.dumps(name, ensure_ascii=False)
    yield json.dumps(name).replace("/", "\\/")
    yield '"' + "".join(f"\\u{ord(char):04x}" for char in name) + '"'


@pytest.mark.parametrize("kind", ["json_schema", "structural_tag"])
@pytest.mark.parametrize("strict", [True, False])
def test_a_declared_name_comes_once(strict, kind):
    compiled = 0
    for seed in range(60):
        schema = objects(random.Random(f"{seed}{strict}"))
        value = schema if kind == "json_schema" else {"type": "json_schema", "json_schema": schema}
        try:
            done = COMPILER.compile(GrammarSpec(kind, json.dumps(value), strict=strict))
        except GrammarInvalid:
            continue
        compiled += 1
        before = [f"{json.dumps(name, ensure_ascii=False)}:1" for name in schema.get("required", ())]
        for name in schema["properties"]:
            for first, again in itertools.product(set(spellings(name)), repeat=2):
                for one, other in itertools.product(("1", '"x"'), repeat=2):
                    head = [] if f"{first}:1" in before else before
                    assert not starts(done, "{" + ",".join([*head, f"{first}:{one}", f"{again}:{other}"])), (
                        schema,
                        name,
                    )
    assert compiled > 30
