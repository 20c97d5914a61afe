"""Grammars over the embedded model's own vocabulary of 49,152 tokens."""

from __future__ import annotations

import json
import random
import statistics
import time

import jsonschema
import numpy as np
import pytest
from grammar_vocabulary import tokens_in

from bosquet.grammar.compiler import GrammarCompiler
from bosquet.grammar.vocabulary import Vocabulary
from bosquet.runtime.models.source import EMBEDDED, resolve
from bosquet.runtime.tokenizer import Tokenizer
from bosquet.types import GrammarSpec

WIDTH = 49_152
RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "address": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 40},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["city", "zip"],
            "additionalProperties": False,
        },
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
        "kind": {"enum": ["person", "place"]},
    },
    "required": ["name", "age", "address", "tags", "kind"],
    "additionalProperties": False,
}
TOOLS = {
    "type": "triggered_tags",
    "triggers": ["<tool_call>"],
    "tags": [
        {
            "type": "tag",
            "begin": '<tool_call>{"name": "look", "arguments": ',
            "content": {"type": "json_schema", "json_schema": RECORD["properties"]["address"]},
            "end": "}</tool_call>",
        }
    ],
}
SPECS = [
    GrammarSpec("json_schema", json.dumps(RECORD)),
    GrammarSpec("json_object"),
    GrammarSpec("json_schema", json.dumps({"type": "string", "minLength": 1})),
    GrammarSpec("regex", "(yes|no|日本)+!"),
    GrammarSpec("choice", json.dumps(["yes", "no", "maybe so"])),
    GrammarSpec("json_schema", json.dumps({"type": "number", "minimum": 0, "multipleOf": 0.25})),
    GrammarSpec("json_schema", json.dumps({"type": "object", "properties": {"a": {"type": "string"}}})),
    GrammarSpec("regex", "[a-z ]{1,200}"),
    GrammarSpec("regex", "[A-Z][a-z]{1,9}"),
    GrammarSpec("lark", 'start: "[" [start ("," start)*] "]" | /"[^"]*"/'),
    GrammarSpec("structural_tag", json.dumps(TOOLS)),
    GrammarSpec("regex", "x[0-9]+", after=(28, 280)),
]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_folder(resolve(EMBEDDED, weights=False).path)


@pytest.fixture(scope="module")
def compiler(tokenizer):
    end = tokenizer.id_of_special("<|im_end|>")
    return GrammarCompiler(Vocabulary(tokenizer.token_bytes, WIDTH, (end,), tokenizer.special_ids))


def mask_of(matcher):
    row = np.full(WIDTH // 32, -1, dtype=np.int32)
    matcher.fill_mask(row)
    return row


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.kind}:{spec.value[:30]}")
def test_mask_bits_are_what_is_accepted(compiler, spec):
    rng = random.Random(3)
    matcher = compiler.compile(spec).matcher()
    for _ in range(12):
        allowed = tokens_in(mask_of(matcher))
        chosen = set(allowed)
        probes = set(rng.sample(range(WIDTH), 400)) | set(rng.sample(allowed, min(len(allowed), 100)))
        fork = matcher.fork()
        for token in probes:
            accepted = fork.try_accept([token]) == 1
            fork.rollback(int(accepted))
            assert accepted == (token in chosen), token
        matcher.try_accept([rng.choice(allowed)])
        if matcher.terminated:
            break


TEXT = "the quick brown fox jumps over the lazy dog and some more words follow " * 3


@pytest.mark.parametrize(
    ("pattern", "limit_ms"),
    [
        ("[a-z ]{1,200}", 4),
        ("[^\\n]{1,300}", 4),
        ("(?:[A-Za-z]{1,20} ){1,40}", 4),
        ("([a-z]+ ?)+", 2),
        ("(?:[a-z]{2,9}[ ,]?){1,60}", 6),
    ],
)
def test_masks_of_counted_and_nested_repeats_are_cheap(compiler, tokenizer, pattern, limit_ms):
    """They took 20 to 350 ms with the engine of the first version; the limits leave room for a busy machine."""
    for spec in (
        GrammarSpec("regex", pattern),
        GrammarSpec("json_schema", json.dumps({"type": "string", "pattern": f"^(?:{pattern})$"})),
    ):
        matcher = compiler.compile(spec).matcher()
        text = ('"' if spec.kind == "json_schema" else "") + TEXT[:180]
        times = []
        row = np.zeros(WIDTH // 32, dtype=np.int32)
        for token in tokenizer.encode(text, specials=False):
            began = time.perf_counter()
            matcher.fill_mask(row)
            times.append(time.perf_counter() - began)
            assert matcher.try_accept([token]) == 1
        assert len(times) > 30
        assert statistics.median(times) < limit_ms / 1000


def test_a_hundred_tools_compile_within_a_second(compiler):
    def tool(number):
        schema = {
            "type": "object",
            "properties": {
                f"path_{number}": {"type": "string", "description": "where to look"},
                f"count_{number}": {"type": "integer", "minimum": 0, "maximum": 100 + number},
                "options": {"type": "object", "properties": {f"deep_{number}": {"type": "boolean"}}},
            },
            "required": [f"path_{number}"],
        }
        begin = f'<tool_call>{{"name": "tool_{number}", "arguments": '
        content = {"type": "json_schema", "json_schema": schema}
        return {"type": "tag", "begin": begin, "content": content, "end": "}</tool_call>"}

    value = json.dumps(TOOLS | {"tags": [tool(number) for number in range(128)]})
    began = time.process_time()
    matcher = compiler.compile(GrammarSpec("structural_tag", value)).matcher()
    assert time.process_time() - began < 3  # 0.3 s where nothing else runs
    matcher.fill_mask(np.zeros(WIDTH // 32, dtype=np.int32))


def test_special_tokens_are_masked_at_every_step(compiler, tokenizer):
    end = tokenizer.id_of_special("<|im_end|>")
    specials = set(tokenizer.special_ids) - {end}
    assert len(specials) > 10
    matcher = compiler.compile(SPECS[1]).matcher()
    for token in tokenizer.encode('{"a": "b<|im_start|>c", "d": [1, true]}', specials=False):
        assert not specials & set(tokens_in(mask_of(matcher)))
        assert matcher.try_accept([token]) == 1
    assert matcher.completed
    assert end in tokens_in(mask_of(matcher))


def test_records_written_by_the_tokenizer_fit_and_others_do_not(compiler, tokenizer):
    good = {
        "name": "Åse \\o/ Lie",
        "age": 41,
        "address": {"city": "日本", "zip": "01234"},
        "tags": ["red"],
        "kind": "place",
    }
    compiled = compiler.compile(SPECS[0])
    cases = [
        good,
        good | {"name": "Åse Lie"},
        good | {"name": "x" * 41},
        good | {"age": 151},
        good | {"tags": []},
        good | {"address": {"city": "a", "zip": "123"}},
        good | {"kind": "thing"},
        good | {"more": 1},
    ]
    for value in cases:
        ids = tokenizer.encode(json.dumps(value, ensure_ascii=False), specials=False)
        matcher = compiled.matcher()
        accepted = matcher.try_accept(ids) == len(ids) and matcher.completed
        valid = jsonschema.Draft202012Validator(RECORD).is_valid(value)
        # A string with bounds holds no escapes: a subset of what is valid, never more.
        assert accepted == (valid and "\\" not in value["name"]), value
