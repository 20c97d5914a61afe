"""Numbers written as JSON Schema: ranges between what is excluded, and multiples.

Knows nothing of engines but that they may lack a multiple.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import Protocol

from .schema_algebra import admits_number
from .schema_sets import Bound, Branch, Num
from .schema_values import Schema, exact

_LARGEST = 10**18  # of an integer's bounds: engines count in 64 bits
_MAX_BOUND = Decimal(10**15)  # of a number that is not an integer
_DECIMALS = Decimal("1e-9")
_MAX_LISTED = 128  # values of a range that are listed instead
_MAX_EXCLUDED = 64
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


class Target(Protocol):
    """The writer as these functions see it."""

    def cannot(self, branch: Branch, keyword: str, reason: str) -> None: ...

    def multiples(self, num: Num, step: Decimal, bounded: bool) -> bool: ...


def write_number(target: Target, num: Num) -> list[Schema]:
    """Alternatives, one for each range."""
    if num.whole is False:
        target.cannot(num, "type", "numbers that are not integers")
    step = _step(num)
    if num.whole and num.low is not None and num.high is not None:
        listed = _listed(num, step)
        if listed is not None:
            return [{"enum": listed}] if listed else []
    if num.not_multiples:
        target.cannot(num, "multipleOf", "its opposite without narrow bounds")
    excluded = sorted(map(exact, num.excluded))
    if len(excluded) > _MAX_EXCLUDED:
        target.cannot(num, "enum", f"more than {_MAX_EXCLUDED} numbers that may not be")
        excluded = []
    bounded = num.low is not None or num.high is not None or bool(excluded)
    many = step is not None and target.multiples(num, step, bounded)
    found: list[Schema] = []
    edges: list[tuple[Bound | None, Bound | None]] = []
    low = num.low
    for value in excluded:
        edges.append((low, (value, True)))
        low = (value, True)
    edges.append((low, num.high))
    for first, last in edges:
        if excluded:
            first, last = _inside(first, num.low, 1), _inside(last, num.high, -1)
        written = _integers(first, last) if num.whole else _decimals(target, num, first, last)
        if written is not None:
            found.append({**written, "multipleOf": _plain(step)} if many and step is not None else written)
    return found


def _inside(bound: Bound | None, limit: Bound | None, sign: int) -> Bound | None:
    """An edge beside an excluded value, no further out than the limit."""
    if bound is None or limit is None:
        return bound or limit
    return max(bound, limit, key=lambda edge: (sign * edge[0], edge[1]))


def _plain(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def _step(num: Num) -> Decimal | None:
    """The one number of which `multiples` make all of them multiples; of an integer, a whole one."""
    if not num.multiples:
        return None
    steps = [Fraction(multiple) for multiple in num.multiples] + [Fraction(1)] * bool(num.whole)
    over = math.gcd(*(step.denominator for step in steps))
    common = Fraction(math.lcm(*(step.numerator for step in steps)), over)
    if num.whole and common == 1:
        return None
    return Decimal(common.numerator) / Decimal(common.denominator)


def _listed(num: Num, step: Decimal | None) -> list[int] | None:
    """All integers of a narrow range that has to be looked at one by one; None where it need not, or is not narrow."""
    if step is None and not num.not_multiples:
        return None
    assert num.low is not None
    assert num.high is not None
    pace = int(step or 1)
    first, last = math.ceil(num.low[0]), math.floor(num.high[0])
    first += -first % pace
    if (last - first) // pace > _MAX_LISTED:
        return None
    excluded = set(num.excluded)
    return [value for value in range(first, last + 1, pace) if value not in excluded and admits_number(num, value)]


def _integers(low: Bound | None, high: Bound | None) -> Schema | None:
    result: Schema = {"type": "integer"}
    if low is not None:
        result["minimum"] = max(math.floor(low[0]) + 1 if low[1] else math.ceil(low[0]), -_LARGEST)
    if high is not None:
        result["maximum"] = min(math.ceil(high[0]) - 1 if high[1] else math.floor(high[0]), _LARGEST)
    least, most = result.get("minimum", -_LARGEST), result.get("maximum", _LARGEST)
    return None if least > most or least > _LARGEST or most < -_LARGEST else result


def _decimals(target: Target, num: Num, low: Bound | None, high: Bound | None) -> Schema | None:
    if low is not None and high is not None and (low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))):
        return None
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
        written = _plain(rounded)
        if sign * (exact(written) - value) < 0:  # more digits than a float has
            written = math.nextafter(written, sign * math.inf)
        result[strict if exclusive else inclusive] = written
    least, most = (result.get(keys[0], result.get(keys[1])) for keys in (_LOWER, _UPPER))
    return None if least is not None and most is not None and least > most else result
