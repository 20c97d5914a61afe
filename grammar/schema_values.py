"""JSON values and the texts of schemas: what is the same value, of which type, and how faults are told.

Knows nothing of what a schema means.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from decimal import Decimal
from typing import Any, NoReturn

from ..errors import GrammarInvalid

Schema = dict[str, Any]

MAX_SAFE_NUMBER = 2**53
"""Largest magnitude up to which every JSON reader keeps integers exact."""

_MAX_PATH = 300


def refuse(path: str, keyword: str, why: str) -> NoReturn:
    """The only way to refuse a schema for what it says: with the path of a schema in it, and a keyword there."""
    raise GrammarInvalid(refusal(path, keyword, why))


def refusal(path: str, keyword: str, why: str) -> str:
    return f"schema: {path if len(path) <= _MAX_PATH else path[:_MAX_PATH] + '…'}: `{keyword}` {why}"


def refuse_text(why: str) -> NoReturn:
    """For a text that is no schema as a whole, so that there is no keyword to name."""
    raise GrammarInvalid(f"schema: #: {why}")


def shown(value: Any) -> str:
    """A value in a message."""
    try:
        return json.dumps(value)[:60]
    except RecursionError:
        return "a value nested too deep"


def pointer(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1") if "~" in name or "/" in name else name


def mapping(node: Schema, keyword: str, path: str) -> dict[str, Any]:
    """A keyword whose value is an object; empty when absent."""
    value = node.get(keyword, {})
    if not isinstance(value, dict):
        refuse(path, keyword, f"is an object, not {shown(value)}")
    return value


def names(value: Any, keyword: str, path: str) -> tuple[str, ...]:
    """A list of property names, each once."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        refuse(path, keyword, f"is a list of names, not {shown(value)}")
    return tuple(dict.fromkeys(value))


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def count(node: Schema, keyword: str, path: str) -> int | None:
    """A keyword whose value is a number of things; None when absent."""
    if keyword not in node:
        return None
    value = node[keyword]
    if not is_number(value) or value < 0 or value != int(value):
        refuse(path, keyword, f"is a whole number from 0, not {shown(value)}")
    return int(value)


def type_of(value: Any) -> str:
    """The JSON type of a value; an integer is a number."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def exact(value: float) -> Decimal:
    """A number as it was written."""
    return Decimal(str(value))


def identity(value: Any) -> Hashable:
    """Equal for equal JSON values, and only for these: 1 is 1.0 but not true, and the order of names says nothing."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, list):
        return ("array", *map(identity, value))
    if isinstance(value, dict):
        return ("object", frozenset((name, identity(inner)) for name, inner in value.items()))
    return value if isinstance(value, (int, float, str)) else None


def largest_number(value: Any) -> float:
    """The largest magnitude of a number inside a JSON value; 0 without any."""
    if isinstance(value, (list, dict)):
        inner = value.values() if isinstance(value, dict) else value
        return max(map(largest_number, inner), default=0)
    return abs(value) if is_number(value) else 0


def has_control(value: Any) -> bool:
    """Whether a string inside a JSON value, or a name, holds a character that JSON can only write by its number."""
    if isinstance(value, str):
        return any(char < " " and char not in "\b\t\n\f\r" for char in value)
    if isinstance(value, dict):
        return any(has_control(name) or has_control(inner) for name, inner in value.items())
    return isinstance(value, list) and any(map(has_control, value))
