"""From what the caller wants back to a grammar, and from the generated text to that value.

Knows nothing of how a grammar is enforced. Any type that pydantic can describe will do: a model, a dataclass,
`list[int]`.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ..types import GrammarSpec
from .arguments import flag, text, texts, wrong_type
from .written import regex_fault, schema_fault

Parse = Callable[[str], Any]


class Shape(NamedTuple):
    """What the output must look like, and how its text becomes a value (None: the text is the value)."""

    grammar: GrammarSpec | None = None
    parse: Parse | None = None


FREE = Shape()
"""Any text."""

_VALUES = ("default", "examples", "const", "enum")  # keywords under which no schema stands


@lru_cache(maxsize=256)
def _of_type(schema: type, strict: bool) -> Shape:
    from pydantic import TypeAdapter  # heavy, and only typed programs need it

    adapter: TypeAdapter[Any] = TypeAdapter(schema)
    return Shape(GrammarSpec("json_schema", json.dumps(_closed(adapter.json_schema())), strict), adapter.validate_json)


def _closed(schema: Any) -> Any:
    """pydantic drops what a model does not declare, and its schema lets it pass: a model of language would spend its
    tokens on it. So objects with declared properties have no others, unless the type says so itself."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: value if key in _VALUES else _closed(value) for key, value in schema.items()}
    if found.get("type") == "object" and isinstance(found.get("properties"), dict):
        found.setdefault("additionalProperties", False)
    return found


def _described(where: str, schema: Any, strict: bool) -> Shape:
    from pydantic import PydanticUndefinedAnnotation, PydanticUserError  # as above
    from pydantic_core import SchemaError

    wanted = "a type that pydantic can describe, or a JSON schema as a dict"
    if isinstance(schema, str | bytes):  # pydantic would look for a type of that name
        raise wrong_type(f"{where}: schema", wanted, schema)
    try:
        hash(schema)
        make: Callable[[Any, bool], Shape] = _of_type
    except TypeError:
        make = _of_type.__wrapped__  # what a type is annotated with need not be hashable
    try:
        return make(schema, strict)
    except (TypeError, PydanticUserError, PydanticUndefinedAnnotation, SchemaError) as error:
        raise wrong_type(f"{where}: schema", wanted, schema) from error


def _as_json(where: str, schema: Mapping[str, Any]) -> str:
    try:
        plain = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}: schema is a dict, so it must be a JSON schema: {error}") from None
    except RecursionError:
        raise ValueError(f"{where}: schema is nested too deeply") from None
    text(f"{where}: schema", plain)
    return json.dumps(schema)


def shape(
    where: str,
    *,
    schema: type | Mapping[str, Any] | None,
    regex: str | None = None,
    choices: Sequence[str] | None = None,
    grammar: str | None = None,
    lark: str | None = None,
    strict: bool,
) -> Shape:
    """At most one of the five may be given; `where` is who was given it. `schema` is a type or a JSON schema; the type
    `dict` is any JSON object."""
    said = {"schema": schema, "regex": regex, "choices": choices, "grammar": grammar, "lark": lark}
    given = [name for name, value in said.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"{where}: an output can be held to one thing, not to {' and '.join(given)}")
    if flag(f"{where}: strict", strict) and not given:
        raise ValueError(f"{where}: strict says how closely the output is held to a schema, and none is given")
    if schema is dict:
        return Shape(GrammarSpec("json_object", "", strict), json.loads)
    if isinstance(schema, Mapping):
        written = _as_json(where, schema)
        if (fault := schema_fault(schema)) is not None:
            raise ValueError(f"{where}: schema is no JSON schema: {fault}")
        return Shape(GrammarSpec("json_schema", written, strict), json.loads)
    if schema is not None:
        return _described(where, schema, strict)
    if regex is not None:
        pattern = text(f"{where}: regex", regex)
        if (fault := regex_fault(pattern)) is not None:
            raise ValueError(f"{where}: regex {reprlib.repr(pattern)} cannot be parsed: {fault}")
        return Shape(GrammarSpec("regex", pattern, strict))
    if choices is not None:
        return Shape(GrammarSpec("choice", json.dumps(checked_choices(f"{where}: choices", choices)), strict))
    if grammar is not None:
        return Shape(GrammarSpec("ebnf", text(f"{where}: grammar", grammar), strict))
    if lark is not None:
        return Shape(GrammarSpec("lark", text(f"{where}: lark", lark), strict))
    return FREE


def checked_choices(where: str, choices: Sequence[str]) -> list[str]:
    """The choices, if they can be told apart."""
    found = texts(where, choices)
    if not found:
        raise ValueError(f"{where} must be a list that is not empty")
    if len(set(found)) < len(found):
        raise ValueError(f"{where} must differ from one another")
    return found
