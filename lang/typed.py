"""From what the caller wants back to a grammar, and from the generated text to that value.

Knows nothing of how a grammar is enforced. Any type that pydantic can describe will do: a model, a dataclass,
`list[int]`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ..types import GrammarSpec

Parse = Callable[[str], Any]


class Shape(NamedTuple):
    """What the output must look like, and how its text becomes a value (None: the text is the value)."""

    grammar: GrammarSpec | None = None
    parse: Parse | None = None


FREE = Shape()
"""Any text."""


@lru_cache(maxsize=256)
def _of_type(schema: type, strict: bool) -> Shape:
    from pydantic import TypeAdapter  # heavy, and only typed programs need it

    adapter: TypeAdapter[Any] = TypeAdapter(schema)
    return Shape(GrammarSpec("json_schema", json.dumps(adapter.json_schema()), strict), adapter.validate_json)


def shape(
    *,
    schema: type | Mapping[str, Any] | None,
    regex: str | None,
    choices: Sequence[str] | None,
    grammar: str | None,
    strict: bool,
) -> Shape:
    """At most one of the four may be given. `schema` is a type or a JSON schema; the type `dict` is any JSON object."""
    given = [
        name
        for name, value in (("schema", schema), ("regex", regex), ("choices", choices), ("grammar", grammar))
        if value is not None
    ]
    if len(given) > 1:
        raise ValueError(f"an output can be held to one thing, not to {' and '.join(given)}")
    if schema is dict:
        return Shape(GrammarSpec("json_object", "", strict), json.loads)
    if isinstance(schema, Mapping):
        return Shape(GrammarSpec("json_schema", json.dumps(schema), strict), json.loads)
    if schema is not None:
        return _of_type(schema, strict)
    if regex is not None:
        return Shape(GrammarSpec("regex", regex, strict))
    if choices is not None:
        return Shape(GrammarSpec("choice", json.dumps(checked_choices(choices)), strict))
    if grammar is not None:
        return Shape(GrammarSpec("ebnf", grammar, strict))
    return FREE


def checked_choices(choices: Sequence[str]) -> list[str]:
    """The choices, if they can be told apart."""
    if isinstance(choices, str) or not all(isinstance(choice, str) for choice in choices):
        raise TypeError("choices must be a list of strings")
    if not choices or "" in choices:
        raise ValueError("choices must be a list of strings that are not empty")
    if len(set(choices)) < len(choices):
        raise ValueError("choices must differ from one another")
    return list(choices)
