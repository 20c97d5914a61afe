"""From a request body to what the output is held to. Knows nothing of tools; `tool_use` puts them around it."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ...errors import InvalidParameter
from ...types import GrammarSpec
from .inspection import Expected
from .places import Place, Places
from .schemas import GenerationBody, ResponseFormat


class Constraint(NamedTuple):
    """A grammar (None: the output is free), the field that it came from, and the JSON schema of the output, if it has
    one."""

    spec: GrammarSpec | None = None
    field: str | None = None
    schema: dict[str, Any] | bool | None = None

    @property
    def places(self) -> Places:
        return Places(self.field, [] if self.field is None else [Place("#", self.field)])

    @property
    def expected(self) -> Expected:
        return Expected(self.schema)


FREE = Constraint()


def constraint(body: GenerationBody) -> Constraint:
    """What the output is held to. Raises InvalidParameter when two fields ask for it."""
    found = [] if body.response_format is None else _response_format(body.response_format)
    if body.regex is not None:
        found.append(Constraint(GrammarSpec("regex", body.regex), "regex"))
    if body.choice is not None:
        found.append(Constraint(GrammarSpec("choice", to_json(list(dict.fromkeys(body.choice)))), "choice"))
    if body.grammar is not None:
        found.append(Constraint(GrammarSpec("ebnf", body.grammar), "grammar"))
    if body.lark is not None:
        found.append(Constraint(GrammarSpec("lark", body.lark), "lark"))
    if len(found) > 1:
        field = (found[1].field or "").partition(".")[0]
        names = "response_format, regex, choice, grammar and lark"
        raise InvalidParameter(f"{field}: only one of {names} may be given", field)
    return found[0] if found else FREE


def to_json(value: object) -> str:
    """JSON text, keys in their order."""
    return msgspec.json.encode(value).decode()


_PARTS = {
    "json_schema": "json_schema", "schema_": "json_object", "format": "structural_tag", "strict": "structural_tag",
}  # fmt: skip
"""Fields of response_format that only one type has."""


def _response_format(form: ResponseFormat) -> list[Constraint]:
    for name, kind in _PARTS.items():
        if getattr(form, name) is not None and form.type != kind:
            field = f"response_format.{name.rstrip('_')}"
            raise InvalidParameter(f"{field}: only with type {kind}", field)
    if form.type == "text":
        return []
    if form.type == "json_object":
        if form.schema_ is None:
            return [Constraint(GrammarSpec("json_object"), "response_format", {"type": "object"})]
        if form.schema_.get("type", "object") != "object":
            field = "response_format.schema.type"
            raise InvalidParameter(f"{field}: a JSON object is asked for; type json_schema takes any schema", field)
        spec = GrammarSpec("json_schema", to_json(form.schema_))
        return [Constraint(spec, "response_format.schema", form.schema_)]
    if form.type == "structural_tag":
        field = "response_format.format"
        if form.format is None:
            raise _missing(field)
        spec = GrammarSpec("structural_tag", to_json(form.format), strict=bool(form.strict))
        return [Constraint(spec, field)]
    field = "response_format.json_schema"
    wanted = form.json_schema
    if wanted is None:
        raise _missing(field)
    field += ".schema"
    schema = wanted.schema_
    if schema is None:
        raise _missing(field)
    return [Constraint(GrammarSpec("json_schema", to_json(schema), strict=bool(wanted.strict)), field, schema)]


def _missing(field: str) -> InvalidParameter:
    return InvalidParameter(f"{field}: this field is required", field)
