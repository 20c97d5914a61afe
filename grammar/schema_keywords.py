"""What is done with each keyword of JSON Schema: the one table behind checks, messages and documentation.

Covers 2020-12 and the older drafts back to draft-04. Knows nothing of how a schema is walked.
"""

from __future__ import annotations

from typing import Literal

JsonType = Literal["null", "boolean", "integer", "number", "string", "array", "object"]

TYPES: tuple[JsonType, ...] = ("null", "boolean", "integer", "number", "string", "array", "object")

ENFORCED: dict[str, JsonType | None] = {
    # keyword → the type that it speaks of; None: of any
    "type": None,
    "enum": None,
    "const": None,
    "$ref": None,
    "anyOf": None,
    "oneOf": None,  # where the branches can be shown to exclude each other
    "allOf": None,  # with one branch
    "minimum": "number",
    "maximum": "number",
    "exclusiveMinimum": "number",
    "exclusiveMaximum": "number",
    "multipleOf": "number",  # of integers without bounds, up to 1024
    "minLength": "string",
    "maxLength": "string",
    "pattern": "string",
    "format": "string",
    "items": "array",
    "prefixItems": "array",
    "additionalItems": "array",
    "minItems": "array",
    "maxItems": "array",
    "properties": "object",
    "required": "object",
    "additionalProperties": "object",
    "patternProperties": "object",  # alone
    "propertyNames": "object",  # a pattern, alone
    "minProperties": "object",
    "maxProperties": "object",
}

REFUSED: dict[str, str] = {
    "not": "a value that must not match",
    "if": "a condition",
    "then": "a condition",
    "else": "a condition",
    "dependentRequired": "a dependency between properties",
    "dependentSchemas": "a dependency between properties",
    "dependencies": "a dependency between properties",
    "uniqueItems": "that items differ",
    "contains": "what an array must contain",
    "minContains": "what an array must contain",
    "maxContains": "what an array must contain",
    "unevaluatedItems": "items that no other keyword speaks of",
    "unevaluatedProperties": "properties that no other keyword speaks of",
    "$dynamicRef": "a reference that depends on the place it is read from",
    "$recursiveRef": "a reference that depends on the place it is read from",
    "extends": "a draft-03 keyword",
    "disallow": "a draft-03 keyword",
    "divisibleBy": "a draft-03 keyword",
}

HARMLESS: dict[str, tuple[object, ...]] = {
    # values of refused keywords that say nothing
    "uniqueItems": (False,),
    "unevaluatedItems": (True,),
    "unevaluatedProperties": (True,),
    "not": (False,),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
}

COMBINATIONS = {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"}

DEFINITIONS = ("$defs", "definitions")

NUMBER_FORMATS: dict[str, tuple[int, int] | None] = {
    # formats of OpenAPI for numbers, with the bounds that they mean for integers
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "float": None,
    "double": None,
}

# Every other keyword is an annotation (title, description, default, examples, …) or unknown, which by the specification
# says nothing of the values.
