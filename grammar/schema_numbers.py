"""Exact arithmetic on sets of numbers: steps, the values between bounds, and those with few decimals.

Knows nothing of how a set is written.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from .schema_sets import Bound, Num
from .schema_values import exact

MAX_LISTED = 128
"""Values between bounds that are looked at one by one."""


class Level(NamedTuple):
    """The multiples of `step` from `first` to `last`, None: without end. All of them have at most `decimals`."""

    decimals: int
    step: Fraction
    first: Fraction | None
    last: Fraction | None


def step_of(num: Num) -> Fraction | None:
    """The one number of which `multiples` make all of them multiples, of an integer a whole one; None: any will do."""
    if not num.multiples:
        return None
    step = Fraction(num.multiples[0])
    for multiple in (*num.multiples[1:], *((Decimal(1),) if num.whole else ())):
        step = common_multiple(step, Fraction(multiple))
    return None if num.whole and step == 1 else step


def common_multiple(one: Fraction, other: Fraction) -> Fraction:
    """The least number that is a multiple of both."""
    over = math.gcd(one.denominator, other.denominator)
    return Fraction(math.lcm(one.numerator, other.numerator), over)


def levels(step: Fraction, low: Bound | None, high: Bound | None) -> list[Level]:
    """The multiples of `step` between bounds by how many decimals it takes to write them: each level holds those below
    it as well. Without the levels that hold none."""
    decimals = decimals_of(step)
    found = [level(common_multiple(step, Fraction(1, 10**at)), low, high, at) for at in range(decimals + 1)]
    return [one for one in found if one.first is None or one.last is None or one.first <= one.last]


def level(step: Fraction, low: Bound | None, high: Bound | None, decimals: int) -> Level:
    return Level(
        decimals, step, None if low is None else _edge(step, low, 1), None if high is None else _edge(step, high, -1)
    )


def _edge(step: Fraction, bound: Bound, sign: int) -> Fraction:
    """The multiple of `step` that comes first after a lower bound (sign 1), or last before an upper one (-1)."""
    value, excluded = sign * Fraction(bound[0]), bound[1]
    count = math.floor(value / step) + 1 if excluded else math.ceil(value / step)
    return sign * count * step


def decimals_of(value: Fraction) -> int:
    """How many it takes to write a decimal fraction."""
    twos = fives = 0
    rest = value.denominator
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    return max(twos, fives)


def listed_numbers(num: Num) -> list[int | float] | None:
    """All numbers of a narrow range that has to be looked at one by one; None where it need not, is not narrow, or has
    a value that no float is."""
    step = step_of(num) or (Fraction(1) if num.whole and num.not_multiples else None)
    if step is None or num.low is None or num.high is None:
        return None
    found = level(step, num.low, num.high, 0)
    assert found.first is not None
    assert found.last is not None
    if (found.last - found.first) / step > MAX_LISTED:
        return None
    values = [found.first + at * step for at in range(int((found.last - found.first) / step) + 1)]
    written = [plain(value) for value in values]
    if any(Fraction(exact(one)) != value for one, value in zip(written, values, strict=True)):
        return None
    excluded = {Fraction(exact(value)) for value in num.excluded}
    kept = zip(written, values, strict=True)
    return [one for one, value in kept if value not in excluded and admits_number(num, one)]


def plain(value: Fraction | Decimal) -> int | float:
    return int(value) if value == int(value) else float(value)


def no_number(num: Num) -> bool:
    """Whether the bounds leave nothing: no number at all, or none that is a multiple."""
    low, high = num.low, num.high
    if low is None or high is None:
        return False
    step = step_of(num) or (Fraction(1) if num.whole else None)
    if step is not None:
        found = level(step, low, high, 0)
        assert found.first is not None
        assert found.last is not None
        return found.first > found.last
    return low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))


def admits_number(num: Num, value: float) -> bool:
    number = Fraction(exact(value))
    if num.whole is not None and num.whole != (number.denominator == 1):
        return False
    if num.low is not None and (number < num.low[0] or (num.low[1] and number == num.low[0])):
        return False
    if num.high is not None and (number > num.high[0] or (num.high[1] and number == num.high[0])):
        return False
    if any((number / Fraction(multiple)).denominator != 1 for multiple in num.multiples):
        return False
    return all((number / Fraction(multiple)).denominator != 1 for multiple in num.not_multiples)
