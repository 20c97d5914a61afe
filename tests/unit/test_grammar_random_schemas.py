"""Random schemas of every keyword: what their grammar lets through is valid by an independent validator, whether it was
chosen beforehand or walked at random through the masks."""

from __future__ import annotations

import json
import random
from collections import Counter
from decimal import Decimal

import numpy as np
import pytest
import random_schemas
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from bosquet.errors import GrammarInvalid
from bosquet.grammar.compiler import GrammarCompiler
from bosquet.grammar.lint import lint
from bosquet.grammar.llguidance_engine import LlguidanceEngine
from bosquet.runtime.bench.instance_order import texts
from bosquet.runtime.bench.maskbench import byte_vocabulary
from bosquet.types import GrammarSpec

SCHEMAS = 1_200
VALUES = 12
LIKELY = b'abc0123,:"{}[]-.truefalsn'
VOCABULARY = byte_vocabulary()


def accepts(compiled, text):
    matcher = compiled.matcher()
    return matcher.try_accept(list(text)) == len(text) and matcher.completed


def walked(compiled, rng):
    """A finished text, taken byte by byte from the masks, or None if it grows too long."""
    matcher, row, out = compiled.matcher(), np.zeros(VOCABULARY.mask_words, dtype=np.int32), b""
    for step in range(100):
        if matcher.completed and (rng.random() < 0.4 or step > 60):
            return out
        matcher.fill_mask(row)
        bits = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        allowed = [byte for byte in bits.tolist() if byte < 256]
        if not allowed:
            return None
        closing = [byte for byte in allowed if byte in b'"}]']
        chosen = closing if closing and rng.random() < step / 40 else [b for b in allowed if b in LIKELY] or allowed
        out += bytes([rng.choice(chosen)])
        assert matcher.try_accept([out[-1]]) == 1
    return None


@pytest.mark.parametrize("strict", [True, False])
def test_what_is_let_through_is_valid(strict, record_property):
    compiler = GrammarCompiler(VOCABULARY, cache_bytes=0)
    counts: Counter[str] = Counter()
    for seed in range(SCHEMAS // 2):
        rng = random.Random(f"{seed}-{strict}")
        schema = random_schemas.document(rng)
        validator = Draft202012Validator(schema)
        try:
            compiled = compiler.compile(GrammarSpec("json_schema", json.dumps(schema), strict=strict))
        except GrammarInvalid:
            counts["refused"] += 1
            continue
        counts["compiled"] += 1
        if compiled.relaxed:
            counts["relaxed"] += 1
            assert not strict
            continue
        for _ in range(VALUES):
            value = random_schemas.value(rng)
            if any(accepts(compiled, text) for text in texts(schema, value)):
                counts["accepted"] += 1
                assert validator.is_valid(value), (seed, schema, value)
        text = walked(compiled, rng)
        if text is not None:
            counts["walked"] += 1
            assert validator.is_valid(json.loads(text)), (seed, schema, text)
    record_property("counts", dict(counts))
    assert counts["compiled"] > 0.6 * SCHEMAS / 2
    assert min(counts["walked"], counts["accepted"]) > 0.3 * SCHEMAS / 2


# ---- numbers of llguidance, against exact arithmetic (those of xgrammar: test_grammar_numbers) -----------------------

ENGINE = LlguidanceEngine(VOCABULARY)
bounds = st.one_of(
    st.none(), st.integers(-300, 300), st.sampled_from([0, 2**31, 1e15, -(2**53), 1e-9]),
    st.decimals(-1000, 1000, places=2).map(float), st.decimals(-2, 2, places=6).map(float),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@example("number", ("minimum", -0.01), ("exclusiveMaximum", 0), None, [Decimal("-0.001")])  # "-0" is not below 0
@example("number", ("exclusiveMinimum", -1e-9), ("exclusiveMaximum", 0), None, [Decimal("-0.001")])
@given(
    st.sampled_from(["integer", "number"]),
    st.tuples(st.sampled_from(["minimum", "exclusiveMinimum"]), bounds),
    st.tuples(st.sampled_from(["maximum", "exclusiveMaximum"]), bounds),
    st.sampled_from([None, None, 1, 3, 7, 0.5, 0.01, 2.5, 12]),
    st.lists(st.decimals(-400, 400, places=3), min_size=4, max_size=8),
)
def test_numbers_of_llguidance_are_exact(kind, low, high, multiple, others):
    schema = {"type": kind} | {key: bound for key, bound in (low, high) if bound is not None}
    if multiple is not None:
        schema["multipleOf"] = multiple
    try:
        done = lint(json.dumps(schema), strict=True, max_depth=9, engines=("llguidance",))
        compiled = ENGINE.json_schema(done.schema)
    except GrammarInvalid:
        return
    exact = [Decimal(str(bound)) for _, bound in (low, high) if bound is not None]
    steps = [Decimal(step) for step in ("0", "1", "-1", "0.5", "-0.01", "0.000000001")]
    step = Decimal(str(multiple or 1))
    for value in [
        *others,
        *(bound + more for bound in exact for more in steps),
        *(other // step * step for other in others),
    ]:
        text = format(value.normalize(), "f")
        if accepts(compiled, text.encode()):
            assert holds(schema, value), (schema, text)


def holds(schema, value):
    checks = {
        "type": lambda kind: kind == "number" or value == value.to_integral_value(),
        "minimum": lambda bound: value >= Decimal(str(bound)),
        "exclusiveMinimum": lambda bound: value > Decimal(str(bound)),
        "maximum": lambda bound: value <= Decimal(str(bound)),
        "exclusiveMaximum": lambda bound: value < Decimal(str(bound)),
        "multipleOf": lambda step: value % Decimal(str(step)) == 0,
    }
    return all(checks[key](said) for key, said in schema.items())


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        ({"type": "integer", "multipleOf": 7, "minimum": 10}, ["14", "700"], ["7", "15", "0"]),
        ({"type": "number", "multipleOf": 0.25}, ["0.25", "1", "-2.75"], ["0.3", "0.125"]),
        ({"type": "integer", "multipleOf": 2.5}, ["5", "0", "-10"], ["2", "7"]),
        ({"type": "number", "multipleOf": 0.5, "not": {"const": 1}}, ["0.5", "1.5"], ["1", "1.0", "0.75"]),
    ],
)
def test_multiples_that_llguidance_takes(schema, yes, no):
    compiled = ENGINE.json_schema(lint(json.dumps(schema), strict=True, max_depth=9, engines=("llguidance",)).schema)
    assert [text for text in yes if not accepts(compiled, text.encode())] == []
    assert [text for text in no if accepts(compiled, text.encode())] == []
