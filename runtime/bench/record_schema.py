"""The schema of the JSON workload, and a check of answers against it.

The check knows the keywords that this schema uses and no others; the tests compare it with a whole validator.
"""

from __future__ import annotations

import json
import re
from typing import Any

Json = Any
Schema = dict[str, Any]

LABELS = ["travel", "food", "work", "health", "music"]


def _text() -> Schema:
    return {"type": "string", "maxLength": 40}


def _closed(properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMA: Schema = _closed(
    {
        "name": _text(),
        "subject": _text(),
        "count": {"type": "integer"},
        "address": _closed({"street": _text(), "postcode": {"type": "string", "pattern": "^[0-9]{5}$"}}),
        "labels": {"type": "array", "items": {"enum": LABELS}, "minItems": 1, "maxItems": 3},
        "priority": {"enum": ["low", "normal", "high"]},
    }
)


def is_valid(text: str, schema: Schema = SCHEMA) -> bool:
    """Whether `text` is JSON that the schema allows."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return fits(value, schema)


def fits(value: Json, schema: Schema) -> bool:
    """Whether the value is what the schema describes."""
    if "enum" in schema:
        return any(type(value) is type(allowed) and value == allowed for allowed in schema["enum"])
    return _CHECKS[schema["type"]](value, schema)


def _object(value: Json, schema: Schema) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == schema["properties"].keys()
        and all(fits(value[name], part) for name, part in schema["properties"].items())
    )


def _array(value: Json, schema: Schema) -> bool:
    return (
        isinstance(value, list)
        and schema["minItems"] <= len(value) <= schema["maxItems"]
        and all(fits(item, schema["items"]) for item in value)
    )


def _string(value: Json, schema: Schema) -> bool:
    if not isinstance(value, str) or len(value) > schema.get("maxLength", len(value)):
        return False
    pattern = schema.get("pattern")  # anchored at both ends, and Python's $ would let a line feed follow
    return pattern is None or re.fullmatch(pattern.removeprefix("^").removesuffix("$"), value) is not None


def _integer(value: Json, schema: Schema) -> bool:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return whole and not isinstance(value, bool)


_CHECKS = {"object": _object, "array": _array, "string": _string, "integer": _integer}
