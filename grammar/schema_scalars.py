"""Strings and numbers of a JSON Schema, rewritten to what xgrammar enforces."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from ..errors import GrammarInvalid
from .regex import JSON_SAFE, Regex
from .schema_keywords import NUMBER_FORMATS
from .schema_values import NEVER, Rewritten, Schema, count, refuse, shown
from .string_formats import string_format

_INT64 = 2**63 - 1
_MAX_MULTIPLE = 1024  # xgrammar drops larger ones
_MAX_BOUND = 10**15  # of a number that is not an integer
_MAX_DECIMALS = 9


def string(node: Schema, path: str) -> Rewritten:
    """`minLength` and `maxLength`, or else `pattern` or `format`."""
    low, high = count(node, "minLength", path) or 0, count(node, "maxLength", path)
    if high is not None and low > high:
        return NEVER
    expression = _expression(node, path)
    if expression is None:
        bounds: Schema = ({"minLength": low} if low else {}) | ({} if high is None else {"maxLength": high})
        return {"type": "string", **bounds}
    lengths = expression.lengths
    if lengths.low < low or (high is not None and (lengths.high is None or lengths.high > high)):
        keyword = "pattern" if "pattern" in node else "format"
        refuse(path, f"`minLength` or `maxLength` beside a `{keyword}` that does not imply it cannot be enforced")
    text = expression.write(JSON_SAFE)
    if text is None:
        refuse(path, "`pattern` needs a quote, a backslash or a control character, which cannot be enforced")
    return {"type": "string", "pattern": text}


def _expression(node: Schema, path: str) -> Regex | None:
    """What `pattern` or `format` asks for."""
    if "pattern" in node and "format" in node:
        refuse(path, "`pattern` together with `format` cannot be enforced")
    if "pattern" in node:
        return key_pattern(node["pattern"], path)
    if "format" not in node:
        return None
    name = node["format"]
    found = string_format(name) if isinstance(name, str) else None
    if found is None:
        refuse(path, f"`format` {shown(name)} is not known")
    return found


def key_pattern(pattern: Any, path: str) -> Regex:
    """A `pattern` of JSON Schema: it may match anywhere in the text."""
    if not isinstance(pattern, str):
        refuse(path, f"`pattern` is a string, not {shown(pattern)}")
    try:
        return Regex.search(pattern)
    except GrammarInvalid as error:
        refuse(path, f"`pattern` {shown(pattern)}: {error}")


def number(node: Schema, path: str, name: str) -> Rewritten:
    """Bounds, and `multipleOf` of an integer without bounds."""
    low, high = (
        _bound(node, path, "minimum", "exclusiveMinimum", 1),
        _bound(node, path, "maximum", "exclusiveMaximum", -1),
    )
    if "format" in node:
        if not isinstance(node["format"], str) or node["format"] not in NUMBER_FORMATS:
            refuse(path, f"`format` {shown(node['format'])} is not known for a number")
        limits = NUMBER_FORMATS[node["format"]]
        if limits is not None:
            low, high = _tighter(low, (Decimal(limits[0]), False), 1), _tighter(high, (Decimal(limits[1]), False), -1)
    if low is not None and high is not None and (low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))):
        return NEVER
    multiple = node.get("multipleOf")
    if multiple is not None:
        if isinstance(multiple, bool) or not isinstance(multiple, (int, float)) or multiple <= 0:
            refuse(path, f"`multipleOf` is a number above 0, not {shown(multiple)}")
        if name != "integer" or multiple != int(multiple):
            refuse(path, "`multipleOf` of a number that is not an integer cannot be enforced")
        if multiple != 1 and (low is not None or high is not None or multiple > _MAX_MULTIPLE):
            refuse(path, f"`multipleOf` with bounds, or above {_MAX_MULTIPLE}, cannot be enforced")
        if multiple != 1:
            return {"type": "integer", "multipleOf": int(multiple)}
    return _integer(low, high) if name == "integer" else _decimal(low, high, path)


_Bound = tuple[Decimal, bool]  # value, exclusive


def _tighter(first: _Bound | None, second: _Bound | None, sign: int) -> _Bound | None:
    """Of two lower (sign 1) or upper (sign -1) bounds the one that allows less."""
    if first is None or second is None:
        return first or second
    return max(first, second, key=lambda bound: (sign * bound[0], bound[1]))


def _bound(node: Schema, path: str, keyword: str, exclusive: str, sign: int) -> _Bound | None:
    found: list[_Bound | None] = [None, None]
    flag = node.get(exclusive)
    for at, key in enumerate((keyword, exclusive)):
        if key not in node or (key == exclusive and isinstance(flag, bool)):
            continue
        value = node[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            refuse(path, f"`{key}` is a number, not {shown(value)}")
        # Draft-04: a boolean says whether the bound beside it is exclusive.
        found[at] = (Decimal(str(value)), key == exclusive or flag is True)
    return _tighter(found[0], found[1], sign)


def _integer(low: _Bound | None, high: _Bound | None) -> Rewritten:
    result: Schema = {"type": "integer"}
    if low is not None:
        least = math.floor(low[0]) + 1 if low[1] else math.ceil(low[0])
        result["minimum"] = max(least, -_INT64)
    if high is not None:
        most = math.ceil(high[0]) - 1 if high[1] else math.floor(high[0])
        result["maximum"] = min(most, _INT64)
    least, most = result.get("minimum", -_INT64), result.get("maximum", _INT64)
    return NEVER if least > most or least > _INT64 or most < -_INT64 else result


def _decimal(low: _Bound | None, high: _Bound | None, path: str) -> Rewritten:
    result: Schema = {"type": "number"}
    sides = ((low, "minimum", "exclusiveMinimum", 1), (high, "maximum", "exclusiveMaximum", -1))
    for bound, inclusive, strict, sign in sides:
        if bound is None:
            continue
        value, exclusive = bound
        if -sign * value > _MAX_BOUND:  # so far out that the limit itself is the tighter bound
            value, exclusive = Decimal(-sign * _MAX_BOUND), False
        if abs(value) > _MAX_BOUND or -_exponent(value) > _MAX_DECIMALS:
            refuse(
                path, f"a bound of a number beyond 10^15 or with more than {_MAX_DECIMALS} decimals cannot be enforced"
            )
        result[strict if exclusive else inclusive] = int(value) if value == value.to_integral_value() else float(value)
    return result


def _exponent(value: Decimal) -> int:
    exponent = value.normalize().as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0
