"""What is done with each keyword of JSON Schema: the one table behind checks, messages and documentation.

Covers 2020-12 and the older drafts back to draft-04. Knows nothing of how a schema is walked.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

JsonType = Literal["null", "boolean", "integer", "number", "string", "array", "object"]

TYPES: tuple[JsonType, ...] = ("null", "boolean", "integer", "number", "string", "array", "object")


class Row(NamedTuple):
    """One keyword. `xgrammar` and `llguidance` say when that engine enforces it ("always", a condition, or "never");
    `otherwise` says what happens where neither does: under `strict` always a refusal with path and keyword."""

    keyword: str
    of: str  # the type that it speaks of; empty: any
    xgrammar: str
    llguidance: str
    otherwise: str


_DROPPED = "dropped and reported"
_MERGED = "merged away before either engine sees it"
_SPLIT = "written as alternatives, up to 200 of one type"

TABLE: tuple[Row, ...] = (
    Row("type", "", "always", "always", ""),
    Row("enum", "", "numbers up to 2^53", "numbers up to 2^53; no control characters", _DROPPED),
    Row("const", "", "numbers up to 2^53", "numbers up to 2^53; no control characters", _DROPPED),
    Row("$ref", "", "within the document", "within the document", _DROPPED),
    Row("$dynamicRef", "", "where only one target is possible", "where only one target is possible", _DROPPED),
    Row("$recursiveRef", "", "in a document without nested $id", "in a document without nested $id", _DROPPED),
    Row("allOf", "", _MERGED, _MERGED, "dropped and reported beyond 200 alternatives"),
    Row("anyOf", "", "always", "always", ""),
    Row(
        "oneOf", "", "where overlaps can be written out", "where overlaps can be written out", "read as anyOf, reported"
    ),
    Row("not", "", "where the opposite can be written", "where the opposite can be written", _DROPPED),
    Row("if", "", "where the opposite can be written", "where the opposite can be written", _DROPPED),
    Row("then", "", "with if", "with if", _DROPPED),
    Row("else", "", "with if", "with if", _DROPPED),
    Row("minimum", "number", "up to 10^15, 9 decimals; integers 10^18", "the same", _DROPPED),
    Row("maximum", "number", "up to 10^15, 9 decimals; integers 10^18", "the same", _DROPPED),
    Row("exclusiveMinimum", "number", "as minimum", "as minimum", _DROPPED),
    Row("exclusiveMaximum", "number", "as maximum", "as maximum", _DROPPED),
    Row(
        "multipleOf",
        "number",
        "up to 128 values between bounds; integers without: up to 1024",
        "up to 128 values; or digits up to 4096 (0.25: 25), 9 decimals",
        _DROPPED,
    ),
    Row("minLength", "string", "alone, or implied by the pattern", "always", _DROPPED),
    Row("maxLength", "string", "alone, or implied by the pattern", "always", _DROPPED),
    Row("pattern", "string", "one that is regular", "all that are regular", _DROPPED),
    Row("format", "string", "a known one, alone", "known ones", "others: an annotation, always reported"),
    Row("items", "array", "always", "always", ""),
    Row("prefixItems", "array", "always", "always", ""),
    Row("additionalItems", "array", "always", "always", ""),
    Row("minItems", "array", "always", "always", ""),
    Row("maxItems", "array", "always", "always", ""),
    Row("uniqueItems", "array", "up to 4 listed values, or one item", "up to 4 listed values, or one item", _DROPPED),
    Row("contains", "array", "among the first 8 items", "among the first 8 items", _DROPPED),
    Row("minContains", "array", "the first items are those", "the first items are those", _DROPPED),
    Row("maxContains", "array", "the first items are those", "the first items are those", _DROPPED),
    Row("unevaluatedItems", "array", _MERGED, _MERGED, ""),
    Row("properties", "object", "always", "always", ""),
    Row("required", "object", "always", "always", ""),
    Row("additionalProperties", "object", "always", "always", ""),
    Row("patternProperties", "object", "one rule, without properties", "rules that cannot both match a name", _DROPPED),
    Row("propertyNames", "object", "one rule, or listed names", "one rule, or listed names", _DROPPED),
    Row("minProperties", "object", "0 or 1, or where names are closed", "0 or 1, or all required", _DROPPED),
    Row("maxProperties", "object", "always", "0 or 1, or all required", _DROPPED),
    Row("dependentRequired", "object", _SPLIT, _SPLIT, _DROPPED),
    Row("dependentSchemas", "object", _SPLIT, _SPLIT, _DROPPED),
    Row("dependencies", "object", _SPLIT, _SPLIT, _DROPPED),
    Row("unevaluatedProperties", "object", _MERGED, _MERGED, ""),
    Row("extends", "", "never (draft-03)", "never (draft-03)", _DROPPED),
    Row("disallow", "", "never (draft-03)", "never (draft-03)", _DROPPED),
    Row("divisibleBy", "number", "never (draft-03)", "never (draft-03)", _DROPPED),
)

KEYWORDS = frozenset(row.keyword for row in TABLE)

OF: dict[str, frozenset[str]] = {
    kind: frozenset(row.keyword for row in TABLE if row.of == kind) for kind in ("number", "string", "array", "object")
}
"""type → the keywords that speak of it."""

NEVER_ENFORCED = frozenset(row.keyword for row in TABLE if row.xgrammar.startswith("never"))

# Where schemas stand inside a schema.
SCHEMAS = frozenset(
    ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then")
) | {"unevaluatedItems", "unevaluatedProperties", "contentSchema"}
LISTS_OF_SCHEMAS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
DEFINITIONS = ("$defs", "definitions")
MAPS_OF_SCHEMAS = frozenset(("properties", "patternProperties", "dependentSchemas", "dependencies", *DEFINITIONS))

IDENTIFIERS = frozenset(("$schema", "$id", "$anchor"))

# Every keyword that is not in the table is an annotation or unknown, and by the specification says nothing of values.
ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment")
)

NUMBER_FORMATS: dict[str, tuple[int, int] | None] = {
    # formats of OpenAPI for numbers, with the bounds that they mean for integers
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "float": None,
    "double": None,
}
