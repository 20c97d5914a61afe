"""Random small schemas of every keyword, and values that come near to them."""

from __future__ import annotations

import random
from typing import Any

NAMES = ["a", "b", "ab", "c"]
PATTERNS = ["^a", "b$", "^[ab]+$", "c", "^(a|c)$"]
TEXTS = ["", "a", "b", "ab", "abc", "cc", 'q"', "é"]
NUMBERS = [0, 1, -1, 2, 3, 6, 2.5, 0.5]


def value(rng: random.Random, depth: int = 2) -> Any:
    kind = rng.randrange(5 if depth == 0 else 8)
    if kind < 5:
        return [None, rng.random() < 0.5, rng.choice(NUMBERS), rng.choice(TEXTS), rng.randint(-3, 7)][kind]
    if kind == 5:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {name: value(rng, depth - 1) for name in rng.sample(NAMES, rng.randrange(4))}


def schema(rng: random.Random, depth: int = 3) -> Any:
    if rng.random() < 0.08:
        return rng.random() < 0.7
    node: dict[str, Any] = {}
    if rng.random() < 0.55:
        kinds = ["null", "boolean", "integer", "number", "string", "array", "object", "object", "array"]
        node["type"] = rng.choice(kinds) if rng.random() < 0.8 else rng.sample(sorted(set(kinds)), 2)
    for _ in range(rng.randrange(1, 4)):
        node.update(_keyword(rng, depth, node))
    return node


def _keyword(rng: random.Random, depth: int, node: dict[str, Any]) -> dict[str, Any]:
    below = [_nested, _nested, _combined, _combined] if depth else []
    return rng.choice([_scalar, _scalar, _counted, *below])(rng, depth)


def _scalar(rng: random.Random, depth: int) -> dict[str, Any]:
    return rng.choice(
        [
            lambda: {"minimum": rng.choice(NUMBERS)},
            lambda: {"maximum": rng.choice(NUMBERS)},
            lambda: {"exclusiveMinimum": rng.choice(NUMBERS)},
            lambda: {"exclusiveMaximum": rng.choice(NUMBERS)},
            lambda: {"multipleOf": rng.choice([2, 3, 0.5])},
            lambda: {"minLength": rng.randrange(3)},
            lambda: {"maxLength": rng.randrange(4)},
            lambda: {"pattern": rng.choice(PATTERNS)},
            lambda: {"enum": [value(rng, 1) for _ in range(rng.randrange(1, 5))]},
            lambda: {"const": value(rng, 1)},
        ]
    )()


def _counted(rng: random.Random, depth: int) -> dict[str, Any]:
    return rng.choice(
        [
            lambda: {"required": rng.sample(NAMES, rng.randrange(1, 3))},
            lambda: {"minProperties": rng.randrange(3)},
            lambda: {"maxProperties": rng.randrange(4)},
            lambda: {"minItems": rng.randrange(3)},
            lambda: {"maxItems": rng.randrange(4)},
            lambda: {"uniqueItems": True},
            lambda: {"dependentRequired": {rng.choice(NAMES): [rng.choice(NAMES)]}},
        ]
    )()


def _nested(rng: random.Random, depth: int) -> dict[str, Any]:
    def one() -> Any:
        return schema(rng, depth - 1)

    return rng.choice(
        [
            lambda: {"properties": {name: one() for name in rng.sample(NAMES, rng.randrange(1, 4))}},
            lambda: {"properties": {name: one() for name in rng.sample(NAMES, rng.randrange(1, 4))}},
            lambda: {"additionalProperties": one()},
            lambda: {"patternProperties": {pattern: one() for pattern in rng.sample(PATTERNS, rng.randrange(1, 3))}},
            lambda: {
                "propertyNames": rng.choice([{"pattern": rng.choice(PATTERNS)}, {"maxLength": 1}, {"enum": NAMES}])
            },
            lambda: {"items": one()},
            lambda: {"prefixItems": [one() for _ in range(rng.randrange(1, 3))]},
            lambda: (
                {"contains": one()}
                | ({"minContains": rng.randrange(3)} if rng.random() < 0.3 else {})
                | ({"maxContains": rng.randrange(1, 3)} if rng.random() < 0.3 else {})
            ),
            lambda: {"unevaluatedProperties": one()},
            lambda: {"unevaluatedItems": one()},
        ]
    )()


def _combined(rng: random.Random, depth: int) -> dict[str, Any]:
    def one() -> Any:
        return schema(rng, depth - 1)

    return rng.choice(
        [
            lambda: {"allOf": [one() for _ in range(rng.randrange(1, 4))]},
            lambda: {"anyOf": [one() for _ in range(rng.randrange(1, 4))]},
            lambda: {"oneOf": [one() for _ in range(rng.randrange(1, 4))]},
            lambda: {"not": one()},
            lambda: {"if": one(), "then": one(), "else": one()},
            lambda: {"dependentSchemas": {rng.choice(NAMES): one()}},
            lambda: {"$ref": "#/$defs/one"},
        ]
    )()


def document(rng: random.Random) -> Any:
    """A schema with a definition that it may refer to, itself perhaps recursive."""
    root = schema(rng)
    if not isinstance(root, dict):
        return root
    return {**root, "$defs": {"one": schema(rng, 2)}}
