"""Instances in the order in which a schema declares its properties.

Constrained decoding fixes the order of properties, JSON Schema does not: an instance is judged in the order that a
schema gives it. Written from the specification alone, without the linter, which it helps to judge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_COMBINATIONS = ("allOf", "anyOf", "oneOf")
_CONDITIONS = ("if", "then", "else")
_OWN = ("properties", "required", "patternProperties", "additionalProperties", "items", "prefixItems")


def texts(schema: Any, instance: Any) -> list[bytes]:
    """The instance as compact JSON: in the order of the schema, and in its own if that is another.

    Numbers are written as in canonical JSON (RFC 8785): 2.0 is `2`."""
    plain = _plain(instance)
    ordered = _ordered([schema], schema, plain, 0)
    written = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in (ordered, plain)]
    return [text.encode("utf-8", "surrogatepass") for text in dict.fromkeys(written)]


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e21
    return int(value) if whole else value


def _ordered(schemas: list[Any], root: Any, value: Any, depth: int) -> Any:
    if not isinstance(value, (dict, list)) or depth > 60:
        return value
    parts = [part for schema in schemas for part in _in_place(schema, root, ())]
    if isinstance(value, list):
        return [_ordered(_of_item(parts, at), root, item, depth + 1) for at, item in enumerate(value)]
    declared = dict.fromkeys(name for part in parts for name in _mapping(part, "properties"))
    required = [name for part in parts if isinstance(part.get("required"), list) for name in part["required"]]
    names = [name for name in dict.fromkeys([*declared, *map(str, required)]) if name in value]
    names += [name for name in value if name not in names]
    return {name: _ordered(_of_property(parts, name), root, value[name], depth + 1) for name in names}


def _in_place(schema: Any, root: Any, seen: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The schemas that speak of the same value, in the order of the text."""
    if not isinstance(schema, dict) or len(seen) > 20:
        return
    own = "properties" if "properties" in schema else next((name for name in schema if name in _OWN), None)
    for keyword, value in schema.items():
        if keyword == "$ref" and isinstance(value, str) and value not in seen:
            yield from _in_place(_target(root, value), root, (*seen, value))
        elif keyword in _COMBINATIONS and isinstance(value, list):
            for branch in value:
                yield from _in_place(branch, root, seen)
        elif keyword in _CONDITIONS:
            yield from _in_place(value, root, seen)
        elif keyword in ("dependentSchemas", "dependencies") and isinstance(value, dict):
            for branch in value.values():
                yield from _in_place(branch, root, seen)
        elif keyword == own:
            yield schema


def _target(root: Any, reference: str) -> Any:
    node = root
    for part in reference.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(key)
        elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


def _mapping(part: dict[str, Any], keyword: str) -> dict[str, Any]:
    value = part.get(keyword)
    return value if isinstance(value, dict) else {}


def _of_item(parts: list[dict[str, Any]], at: int) -> list[Any]:
    found: list[Any] = []
    for part in parts:
        items = part.get("items")
        prefix = items if isinstance(items, list) else part.get("prefixItems", [])
        if isinstance(prefix, list) and at < len(prefix):
            found.append(prefix[at])
        else:
            found.append(part.get("additionalItems") if isinstance(items, list) else items)
    return found


def _of_property(parts: list[dict[str, Any]], name: str) -> list[Any]:
    found: list[Any] = []
    for part in parts:
        patterns = [
            schema for pattern, schema in _mapping(part, "patternProperties").items() if _matches(pattern, name)
        ]
        declared = _mapping(part, "properties")
        found += patterns
        if name in declared:
            found.append(declared[name])
        elif not patterns:
            found.append(part.get("additionalProperties"))
    return found


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False
