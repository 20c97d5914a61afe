"""What the parts of the schema check share: the schema that nothing satisfies, and facts about JSON values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NoReturn, Protocol

from ..errors import GrammarInvalid

Schema = dict[str, Any]

MAX_SAFE_NUMBER = 2**53
"""Largest magnitude up to which every JSON reader keeps integers exact."""


class Never:
    """A schema that no value satisfies."""


NEVER: Final = Never()
Rewritten = Schema | Never


class Walk(Protocol):
    """The check as the handlers of single types see it."""

    def rewrite(self, node: Any, path: str) -> Rewritten: ...


def refuse(path: str, why: str) -> NoReturn:
    raise GrammarInvalid(f"schema: {path}: {why}")


def shown(value: Any) -> str:
    """A value in a message."""
    return json.dumps(value)[:60]


def mapping(node: Schema, keyword: str, path: str) -> dict[str, Any]:
    """A keyword whose value is an object; empty when absent."""
    value = node.get(keyword, {})
    if not isinstance(value, dict):
        refuse(path, f"`{keyword}` is an object, not {shown(value)}")
    return value


def count(node: Schema, keyword: str, path: str) -> int | None:
    """A keyword whose value is a number of things; None when absent."""
    if keyword not in node:
        return None
    value = node[keyword]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or value != int(value):
        refuse(path, f"`{keyword}` is a whole number from 0, not {shown(value)}")
    return int(value)


def types_of_value(value: Any) -> set[str]:
    """The JSON types that a value has: a whole number is an integer and a number."""
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, (int, float)):
        return {"number", "integer"} if value == int(value) else {"number"}
    return {"string"} if isinstance(value, str) else {"array"} if isinstance(value, list) else {"object"}


def numbers_in(value: Any) -> Iterator[int | float]:
    """Every number inside a JSON value."""
    if isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(inner)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


def same(first: Any, second: Any) -> bool:
    """Equality of JSON values: 1 is 1.0 but not true."""
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    return isinstance(first, bool) == isinstance(second, bool) and bool(first == second)


def never_ends(definitions: dict[str, Schema]) -> set[str]:
    """Names of rewritten definitions without a finite value."""
    finite: set[str] = set()
    while True:
        found = {name for name, schema in definitions.items() if _is_finite(schema, finite)}
        if found == finite:
            return definitions.keys() - finite
        finite = found


def _is_finite(schema: Any, finite: set[str]) -> bool:
    """Whether some value can be written down, if those of the definitions in `finite` can."""
    if not isinstance(schema, dict):
        return True
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1] in finite
    if "anyOf" in schema:
        return any(_is_finite(branch, finite) for branch in schema["anyOf"])
    if schema.get("type") == "object":
        needed = [schema["properties"][name] for name in schema.get("required", ())]
        if schema.get("minProperties", 0) > 0 and not schema.get("properties"):
            needed += [schema.get("additionalProperties"), *schema.get("patternProperties", {}).values()]
        return all(_is_finite(part, finite) for part in needed)
    if schema.get("type") == "array":
        least, prefix = schema.get("minItems", 0), schema.get("prefixItems", [])
        needed = prefix[:least] + ([schema.get("items")] if least > len(prefix) else [])
        return all(_is_finite(part, finite) for part in needed)
    return True
