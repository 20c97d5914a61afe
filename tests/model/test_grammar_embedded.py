"""Grammars over the embedded model's own vocabulary of 49,152 tokens."""

from __future__ import annotations

import json
import random

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
SPECS = [
    GrammarSpec("json_schema", json.dumps(RECORD)),
    GrammarSpec("json_object"),
    GrammarSpec("json_schema", json.dumps({"type": "string", "minLength": 1})),
    GrammarSpec("regex", "(yes|no|日本)+!"),
    GrammarSpec("choice", json.dumps(["yes", "no", "maybe so"])),
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
