"""Bounds and multiples of numbers, against exact arithmetic."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from fractions import Fraction

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


# ---- the right set of values: what is let through, and what is not, by fractions -------------------------------------

STEPS = ["0.25", "0.1", "0.05", "0.3", "0.75", "2.5", "0.001", "0.125", "1.5", "4", "0.2", "10", "0.7"]


def spelt(value: Fraction) -> str:
    """A decimal fraction as most would write it."""
    text = format(Decimal(value.numerator) / Decimal(value.denominator), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def random_numbers(seed):
    """A schema, whether a value is in it, and values worth trying; all exact."""
    rng = random.Random(seed)
    places = rng.choice([0, 1, 2, 2, 3])
    width = rng.choice([1, 3, 40, 2000])
    low = Fraction(rng.randint(-width * 100, width * 100), 10**places)
    high = low + Fraction(rng.randint(0, width * 50), 10 ** rng.choice([places, 2]))
    step = Fraction(rng.choice(STEPS)) if rng.random() < 0.7 else None
    keys = rng.choice([("minimum",), ("maximum",), ("minimum", "maximum"), ("minimum", "maximum"), ()])
    names = {key: "exclusive" + key.title() if rng.random() < 0.3 else key for key in keys}
    bounds = {names[key]: low if key == "minimum" else high for key in keys}
    schema = {
        "type": rng.choice(["number", "number", "integer"]),
        **{key: float(bound) for key, bound in bounds.items()},
    }
    if step is not None:
        schema["multipleOf"] = float(step)

    def inside(value: Fraction) -> bool:
        checks = {
            "minimum": lambda bound: value >= bound, "exclusiveMinimum": lambda bound: value > bound,
            "maximum": lambda bound: value <= bound, "exclusiveMaximum": lambda bound: value < bound,
        }  # fmt: skip
        whole = schema["type"] == "number" or value.denominator == 1
        return (
            whole
            and (step is None or (value / step).denominator == 1)
            and all(checks[key](bound) for key, bound in bounds.items())
        )

    near = [edge + Fraction(more, 10**at) for edge in (low, high) for at in (0, 1, 2, 3) for more in (-1, 0, 1)]
    between = [low + (high - low) * Fraction(at, 8) for at in range(9)]
    cut = [Fraction(int(value * 10**at), 10**at) for value in (*near, *between) for at in (0, 1, 2)]
    steps = [int(value / (step or 1)) * (step or 1) + more * (step or 1) for value in between for more in (-1, 0, 1)]
    tried = {value for value in (*near, *cut, *steps) if (value * 10**5).denominator == 1}
    return schema, inside, sorted(tried)


def test_numbers_are_just_those_of_the_schema():
    """Zero is left out: engines differ in how they write it. Nothing is refused but what has no value."""
    kept = refused = 0
    for seed in range(200):
        schema, inside, values = random_numbers(seed)
        try:
            compiled = COMPILER.compile(GrammarSpec("json_schema", json.dumps(schema), strict=True))
        except GrammarInvalid as error:
            why, compiled = str(error), None
        if compiled is None:
            assert "no value" in why, (schema, why)
            assert not any(map(inside, values)), schema
            refused += 1
            continue
        for value in values:
            if value:
                assert fits(compiled.matcher(), spelt(value)) is inside(value), (seed, schema, spelt(value))
                kept += inside(value)
    assert kept > 500
    assert 0 < refused < 100


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        ({"type": "number", "multipleOf": 0.25}, ["0.5", "0.25", "-1.75", "3", "2.50"], ["0.3", "0.125", "0.55"]),
        ({"type": "number", "multipleOf": 0.1, "minimum": 0.25, "maximum": 0.35}, ["0.3"], ["0.2", "0.4", "0.25"]),
        ({"type": "number", "multipleOf": 0.01, "minimum": -5}, ["1.5", "2", "-4.99", "123.45"], ["-5.01", "0.001"]),
        ({"type": "number", "minimum": 0.25, "maximum": 0.95, "not": {"const": 0.5}}, ["0.9", "0.3"], ["0.5", "0.24"]),
        ({"type": "integer", "multipleOf": 2.5}, ["5", "-10"], ["2", "7"]),
        ({"type": "number", "multipleOf": 0.5, "not": {"multipleOf": 1}, "minimum": 0, "maximum": 3}, ["0.5"], ["1"]),
    ],
)
def test_decimal_multiples(schema, yes, no):
    matcher = COMPILER.compile(GrammarSpec("json_schema", json.dumps(schema), strict=True)).matcher()
    assert [text for text in yes if not fits(matcher, text)] == []
    assert [text for text in no if fits(matcher, text)] == []


@pytest.mark.parametrize("value", [1e300, 10**40 + 1])
def test_numbers_beyond_decimals_of_28_digits(value):
    """Arithmetic stays exact: 7 is not a multiple, and so is not what is left of the list."""
    schema = {"type": "number", "multipleOf": value, "enum": [value, value * 2, 7]}
    with pytest.raises(GrammarInvalid, match="#: `enum` cannot be enforced"):
        COMPILER.compile(GrammarSpec("json_schema", json.dumps(schema), strict=True))


def test_a_property_without_a_number_that_fits_is_only_left_out():
    inner = {"type": "integer", "minimum": 5, "maximum": 9, "multipleOf": 10}
    schema = {"type": "object", "properties": {"a": inner, "b": {"type": "integer"}}}
    matcher = COMPILER.compile(GrammarSpec("json_schema", json.dumps(schema), strict=True)).matcher()
    assert fits(matcher, '{"b": 1}')
    assert not fits(matcher, '{"a": 5}')
