"""Numbers written as JSON Schema: ranges between what is excluded, and multiples.

Knows nothing of engines but that they may lack a multiple.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Protocol

from .schema_numbers import admits_number, decimals_of, levels, listed_numbers, plain, step_of
from .schema_sets import Bound, Branch, Num
from .schema_values import Schema, exact

_LARGEST = 10**18  # of an integer's bounds: engines count in 64 bits
_MAX_BOUND = Decimal(10**15)  # of a number that is not an integer
_DECIMALS = Decimal("1e-9")
_MAX_EXCLUDED = 64
_EXACT = Context(prec=400)
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


class Target(Protocol):
    """The writer as these functions see it. `misses_cut_bounds`: its engine does not take 0.9 for below 0.95 unless it
    is written 0.90."""

    misses_cut_bounds: bool

    def cannot(self, branch: Branch, keyword: str, reason: str) -> None: ...

    def multiples(self, num: Num, step: Fraction, bounded: bool) -> bool: ...


def write_number(target: Target, num: Num) -> list[Schema]:
    """Alternatives: what can be listed, or a range between each two values that may not be."""
    if num.whole is False:
        target.cannot(num, "type", "numbers that are not integers")
    listed = listed_numbers(num)
    if listed is not None:
        return [{"enum": listed}] if listed else []
    if num.not_multiples:
        target.cannot(num, "multipleOf", "its opposite without narrow bounds")
    step = step_of(num)
    bounded = num.low is not None or num.high is not None or bool(num.excluded)
    if step is not None and not target.multiples(num, step, bounded):
        step = None
    found: list[Schema] = []
    for low, high in _ranges(target, num):
        if step is not None:
            found += _multiples(target, num, step, low, high)
        elif num.whole:
            found += _integers(low, high)
        else:
            found += _decimals(target, num, low, high)
    return found


def _ranges(target: Target, num: Num) -> list[tuple[Bound | None, Bound | None]]:
    excluded = sorted(map(exact, num.excluded))
    if len(excluded) > _MAX_EXCLUDED:
        target.cannot(num, "enum", f"more than {_MAX_EXCLUDED} numbers that may not be")
        excluded = []
    edges: list[Bound | None] = [num.low, *((value, True) for value in excluded), num.high]
    return [(_inside(low, num.low, 1), _inside(high, num.high, -1)) for low, high in pairwise(edges)]


def _multiples(target: Target, num: Num, step: Fraction, low: Bound | None, high: Bound | None) -> list[Schema]:
    """One alternative for each number of decimals: an engine reads a step of two decimals as two, or none, to write."""
    found: list[Schema] = []
    for level in levels(step, low, high):
        first, last = (None if end is None else (_decimal(end), False) for end in (level.first, level.last))
        written = _integers(first, last) if level.decimals == 0 else _range(target, num, first, last)
        found += [{**one, "multipleOf": plain(level.step)} if level.step != 1 else one for one in written]
    return found


def _inside(bound: Bound | None, limit: Bound | None, sign: int) -> Bound | None:
    """An edge beside an excluded value, no further out than the limit."""
    if bound is None or limit is None:
        return bound or limit
    return max(bound, limit, key=lambda edge: (sign * edge[0], edge[1]))


def _decimal(value: Fraction) -> Decimal:
    """Of a decimal fraction, exactly."""
    places = decimals_of(value)
    return Decimal(int(value * 10**places)).scaleb(-places, _EXACT)


def _integers(low: Bound | None, high: Bound | None) -> list[Schema]:
    result: Schema = {"type": "integer"}
    if low is not None:
        result["minimum"] = max(math.floor(low[0]) + 1 if low[1] else math.ceil(low[0]), -_LARGEST)
    if high is not None:
        result["maximum"] = min(math.ceil(high[0]) - 1 if high[1] else math.floor(high[0]), _LARGEST)
    least, most = result.get("minimum", -_LARGEST), result.get("maximum", _LARGEST)
    return [] if least > most or least > _LARGEST or most < -_LARGEST else [result]


def _decimals(target: Target, num: Num, low: Bound | None, high: Bound | None) -> list[Schema]:
    written = _range(target, num, low, high)
    cut = [value for schema in written for value in _cut_bounds(schema)] if target.misses_cut_bounds else []
    return [*written, {"enum": cut}] if cut else written


def _cut_bounds(schema: Schema) -> list[int | float]:
    """The bounds of a range with fewer decimals than the longer has, as far as they are in it themselves."""
    bounds = {key: exact(schema[key]) for key in (*_LOWER, *_UPPER) if key in schema}
    decimals = max((decimals_of(Fraction(bound)) for bound in bounds.values()), default=0)
    if decimals < 2:
        return []
    cut = {Fraction(int(bound * 10**at), 10**at) for bound in bounds.values() for at in range(1, decimals + 1)}
    least, most = (_bound(bounds, keys) for keys in (_LOWER, _UPPER))
    inside = Num(low=least, high=most)
    return [value for value in map(plain, sorted(cut)) if admits_number(inside, value)]


def _bound(bounds: dict[str, Decimal], keys: tuple[str, str]) -> Bound | None:
    return next(((bounds[key], key == keys[1]) for key in keys if key in bounds), None)


def _range(target: Target, num: Num, low: Bound | None, high: Bound | None) -> list[Schema]:
    if low is not None and high is not None and (low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))):
        return []
    result: Schema = {"type": "number"}
    sides = ((low, "minimum", "exclusiveMinimum", 1), (high, "maximum", "exclusiveMaximum", -1))
    for bound, inclusive, strict, sign in sides:
        if bound is None:
            continue
        value, exclusive = bound
        if -sign * value > _MAX_BOUND:  # so far out that the limit itself is the tighter bound
            value, exclusive = -sign * _MAX_BOUND, False
        if sign * value > _MAX_BOUND:
            target.cannot(num, inclusive if inclusive in num.at else strict, "a bound beyond 10^15")
            continue
        rounded = value.quantize(_DECIMALS, ROUND_CEILING if sign > 0 else ROUND_FLOOR)
        exclusive = exclusive and rounded == value
        written = plain(rounded)
        if sign * (exact(written) - value) < 0:  # more digits than a float has
            written = math.nextafter(written, sign * math.inf)
        result[strict if exclusive else inclusive] = written
    least, most = (result.get(keys[0], result.get(keys[1])) for keys in (_LOWER, _UPPER))
    if result.get("exclusiveMaximum") == 0 and least is not None and -1 < least < 0:
        # llguidance 1.9 takes "-0" for below 0 there.
        del result["exclusiveMaximum"]
        result["maximum"] = most = -float(_DECIMALS)
    if least is None or most is None:
        return [result]
    return [] if least > most or (least == most and "exclusiveMinimum" in result) else [result]
