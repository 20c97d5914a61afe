"""What is wrong with a regular expression or a JSON schema as it is written, whoever is to enforce it.

Finds only what no dialect and no engine takes, so that it can be told on the line of the program; what depends on an
engine, it tells when it compiles. Pure functions.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")

_SCHEMA: Final = ("additionalItems", "additionalProperties", "contains", "else", "if", "not", "propertyNames", "then")
_LIST: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAP: Final = ("properties", "patternProperties", "$defs", "definitions")
_OTHER_RULES: Final = ("(?#", "(?x", "\\Q")  # what comes after these may be anything


def regex_fault(pattern: str) -> str | None:
    """Why no dialect can parse it, with the place, or None."""
    if any(sign in pattern for sign in _OTHER_RULES):
        return None
    opened: list[int] = []
    at = 0
    begins = True  # nothing is there that could be repeated
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 == len(pattern):
            return "it ends in a backslash"
        if char == "[":
            end = _class_end(pattern, at)
            if end is None:
                return f"the '[' at position {at} is never closed"
            if end < 0:
                return None
            at = end
        elif char == "(":
            opened.append(at)
        elif char == ")":
            if not opened:
                return f"the ')' at position {at} closes nothing"
            opened.pop()
        elif char in "*+" and begins:
            return f"the {char!r} at position {at} repeats nothing"
        begins = char in "(|"
        at += 2 if char == "\\" else 1
    return f"the '(' at position {opened[-1]} is never closed" if opened else None


def _class_end(pattern: str, at: int) -> int | None:
    """Where the class that begins here ends; None: nowhere; below zero: where dialects disagree."""
    first = at + 2 if pattern[at + 1 : at + 2] == "^" else at + 1
    place = first
    while place < len(pattern):
        if pattern[place] == "\\":
            place += 1
        elif pattern[place] == "[" or (pattern[place] == "]" and place == first):
            return -1  # a nested class or a bracket; the empty class or a bracket
        elif pattern[place] == "]":
            return place
        place += 1
    return None


def schema_fault(schema: Any) -> str | None:
    """Where and why it is no JSON schema (2020-12 or an older draft), or None."""
    try:
        return next(_faults("#", schema), None)
    except RecursionError:
        return None  # how deep one may be is up to the engine


def _faults(path: str, schema: Any) -> Iterator[str]:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        yield f"{path} holds {reprlib.repr(schema)}, and a schema is an object or a boolean"
        return
    for key, value in schema.items():
        here = f"{path}/{key}"
        if key == "type":
            names = value if isinstance(value, list) else [value]
            if not names or not all(name in TYPES for name in names):
                yield f"{here} is {reprlib.repr(value)}, and must be of {', '.join(TYPES)}"
        elif key in _SCHEMA or (key == "items" and not isinstance(value, list)):
            yield from _faults(here, value)
        elif key in _LIST:
            if not isinstance(value, list) or not (value or key == "prefixItems"):
                yield f"{here} must be a list of at least one schema, not {reprlib.repr(value)}"
            else:
                for i, inner in enumerate(value):
                    yield from _faults(f"{here}/{i}", inner)
        elif key in _MAP:
            if not isinstance(value, Mapping):
                yield f"{here} must be an object of schemas, not {reprlib.repr(value)}"
            else:
                for name, inner in value.items():
                    yield from _faults(f"{here}/{name}", inner)
