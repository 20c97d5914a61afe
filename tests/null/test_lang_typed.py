"""What a type allows is what it declares."""

from __future__ import annotations

from typing import Any, Literal

import pydantic

from bosquet.lang.typed import shape


class Within(pydantic.BaseModel):
    type: Literal["object"] = "object"
    properties: dict[str, int] = {}


class Closed(pydantic.BaseModel, extra="forbid"):
    within: list[Within]


class Declared(pydantic.BaseModel):
    within: list[Within]


class Open(pydantic.BaseModel, extra="allow"):
    a: int = pydantic.Field(0, examples=[{"type": "object", "properties": {}}])


def test_a_model_has_the_properties_that_it_declares_and_no_others_unless_it_says_so() -> None:
    def sent(schema: type) -> Any:
        grammar = shape("gen", schema=schema, strict=False).grammar
        assert grammar is not None
        return pydantic.TypeAdapter(Any).validate_json(grammar.value)

    assert sent(Open) == Open.model_json_schema(), "with additionalProperties: true, which is pydantic's own word"
    wanted = Closed.model_json_schema()  # pydantic's own way to close, which is asked for
    wanted["title"] = "Declared"
    wanted["$defs"]["Within"]["additionalProperties"] = False
    assert sent(Declared) == wanted
