"""Bounds of numbers, against exact decimal arithmetic."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from grammar_vocabulary import fits, vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st

from bosquet.errors import GrammarInvalid
from bosquet.grammar.compiler import GrammarCompiler
from bosquet.types import GrammarSpec

COMPILER = GrammarCompiler(vocabulary(), cache_bytes=0)

decimals = st.one_of(
    st.integers(-300, 300),
    st.sampled_from([0, 1, -1, 10, 99, 100, 101, 999_999, 2**31, -(2**31), 2e10]),
    st.decimals(-1000, 1000, places=2).map(float),
    st.decimals(-2, 2, places=5).map(float),
)
keywords = st.sampled_from(["minimum", "exclusiveMinimum"]), st.sampled_from(["maximum", "exclusiveMaximum"])


def holds(schema, value):
    checks = {
        "minimum": lambda bound: value >= bound,
        "exclusiveMinimum": lambda bound: value > bound,
        "maximum": lambda bound: value <= bound,
        "exclusiveMaximum": lambda bound: value < bound,
    }
    return all(check(Decimal(str(schema[key]))) for key, check in checks.items() if key in schema)


def near(bound, kind):
    """Values at and around a bound, as JSON texts."""
    exact = Decimal(str(bound))
    steps = (
        (0, 1, -1, 10, -10) if kind == "integer" else (0, 1, -1, Decimal("0.01"), Decimal("-0.01"), Decimal("0.000001"))
    )
    for step in steps:
        value = exact + step
        if kind == "number" or value == value.to_integral_value():
            yield format(value.quantize(1) if kind == "integer" else value, "f")


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["integer", "number"]),
    *keywords,
    st.none() | decimals,
    st.none() | decimals,
    st.lists(decimals, max_size=6),
)
def test_bounds_are_exact(kind, low_key, high_key, low, high, others):
    schema = {"type": kind} | ({} if low is None else {low_key: low}) | ({} if high is None else {high_key: high})
    try:
        matcher = COMPILER.compile(GrammarSpec("json_schema", json.dumps(schema))).matcher()
    except GrammarInvalid as error:
        matcher, why = None, str(error)
    if matcher is None:
        assert "no value" in why
        assert low is not None
        assert high is not None
        assert low >= high or (kind == "integer" and high - low <= 2)
        return
    texts = {text for bound in (low, high, *others) if bound is not None for text in near(bound, kind)}
    for text in texts:
        value = Decimal(text)
        if fits(matcher, text):
            assert holds(schema, value), (schema, text)
        elif holds(schema, value):
            # Narrower is sound; it may only be a matter of decimals (six of them) or of how zero is written.
            assert kind == "number", (schema, text)
            assert -value.as_tuple().exponent > 5 or value == 0 or "e" in text.lower(), (schema, text)


@pytest.mark.parametrize(
    ("multiple", "yes", "no"),
    [(7, ["0", "7", "-14", "700"], ["1", "8", "70001"]), (1, ["5"], []), (1024, ["1024"], ["1025"])],
)
def test_multiples_of_integers(multiple, yes, no):
    matcher = COMPILER.compile(
        GrammarSpec("json_schema", json.dumps({"type": "integer", "multipleOf": multiple}))
    ).matcher()
    assert [text for text in yes if not fits(matcher, text)] == []
    assert [text for text in no if fits(matcher, text)] == []
