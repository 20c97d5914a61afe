"""Whether two schemas can be shown to have no value in common, so that `oneOf` is the same as `anyOf`.

A "no" means only that it was not shown. Looks at schemas as they were written, before anything is narrowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .schema_values import Schema, same, types_of_value

Resolve = Callable[[str], Any]

_MAX_DEPTH = 8


def disjoint(first: Any, second: Any, resolve: Resolve, depth: int = 0) -> bool:
    """True if no value satisfies both. `resolve` follows a `$ref` within the document."""
    if first is False or second is False:
        return True
    if not isinstance(first, dict) or not isinstance(second, dict) or depth > _MAX_DEPTH:
        return False
    for one, other in ((first, second), (second, first)):
        if isinstance(one.get("$ref"), str) and one["$ref"].startswith("#"):
            return disjoint(resolve(one["$ref"]), other, resolve, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            branches = one.get(keyword)
            if isinstance(branches, list) and all(disjoint(b, other, resolve, depth + 1) for b in branches):
                return True
        branches = one.get("allOf")
        if isinstance(branches, list) and any(disjoint(b, other, resolve, depth + 1) for b in branches):
            return True
    return _by_value(first, second) or _by_type(first, second) or _by_property(first, second, resolve, depth)


def _listed(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _types(schema: Schema) -> set[str] | None:
    """The types that a schema names, by `type` or by its listed values; None: any."""
    values = _listed(schema)
    if values is not None:
        return {name for value in values for name in types_of_value(value)}
    named = schema.get("type")
    if named is None:
        return None
    return set(named) if isinstance(named, list) else {named}


def _by_value(first: Schema, second: Schema) -> bool:
    ours, theirs = _listed(first), _listed(second)
    return ours is not None and theirs is not None and not any(same(a, b) for a in ours for b in theirs)


def _by_type(first: Schema, second: Schema) -> bool:
    ours, theirs = _types(first), _types(second)
    if ours is None or theirs is None:
        return False
    related = {"integer", "number"}
    return not ours & theirs and not (ours & related and theirs & related)


def _by_property(first: Schema, second: Schema, resolve: Resolve, depth: int) -> bool:
    if {"object"} not in (_types(first), _types(second)):
        return False
    for one, other in ((first, second), (second, first)):
        required, mine, theirs = one.get("required"), one.get("properties", {}), other.get("properties", {})
        if not isinstance(required, list) or not isinstance(mine, dict) or not isinstance(theirs, dict):
            continue
        closed = other.get("additionalProperties") is False and not other.get("patternProperties")
        for name in required:
            if closed and name not in theirs:
                return True
            if name in mine and name in theirs and disjoint(mine[name], theirs[name], resolve, depth + 1):
                return True
    return False
