"""Tools, and calls of them, as request bodies name them. What contradicts what is checked in `tool_calls`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from .schema_base import Body, FirstFault, only_kinds

MAX_TOOLS = 128
"""The protocol's own limit."""


class FunctionTool(Body):
    name: str = Field(max_length=256, description="1 to 64 letters, digits, underscores, dashes and dots.")
    description: str | None = Field(None, max_length=65536)
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of the arguments; none: no arguments.")
    strict: bool | None = Field(None, description="Refuse what cannot be enforced instead of relaxing it.")


class Tool(Body):
    type: Literal["function"]
    function: FunctionTool

    @model_validator(mode="before")
    @classmethod
    def only_functions(cls, value: Any) -> Any:
        return only_kinds(value, "tools", ("function",))


class ChosenFunction(Body):
    name: str = Field(min_length=1, max_length=64)


class ChosenTool(Body):
    type: Literal["function"]
    function: ChosenFunction

    @model_validator(mode="before")
    @classmethod
    def only_functions(cls, value: Any) -> Any:
        return only_kinds(value, "tools", ("function",))


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenTool], FirstFault(), Field(min_length=1, max_length=MAX_TOOLS)]


MODES = ("none", "auto", "required")
CHOICES = "must be none, auto, required, or an object of type function or allowed_tools"


class ToolChoice(Body):
    """Whether tools may or must be called, and which. A word stands for an object with that word as its type."""

    type: Literal["none", "auto", "required", "function", "allowed_tools"]
    function: ChosenFunction | None = None
    allowed_tools: AllowedTools | None = None

    @model_validator(mode="before")
    @classmethod
    def from_word(cls, value: Any) -> Any:
        if isinstance(value, str) and value in MODES:
            return {"type": value}
        if not isinstance(value, dict):
            raise PydanticCustomError("choice", CHOICES)
        if value.get("type") in MODES:
            raise PydanticCustomError("choice", "{mode} is given as a word, not as an object", {"mode": value["type"]})
        return only_kinds(value, "choices", ("function", "allowed_tools"))

    @model_validator(mode="after")
    def has_its_part(self) -> ToolChoice:
        for name in ("function", "allowed_tools"):
            if (getattr(self, name) is not None) != (self.type == name):
                raise PydanticCustomError("choice", "{name} goes with type {name}, and is needed there", {"name": name})
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"enum": list(MODES)}, handler(core_schema)]}


class MessageFunctionCall(Body):
    name: str = Field(min_length=1, max_length=256)
    arguments: str = Field(description="JSON text.")


class MessageToolCall(Body):
    """A call that the assistant made earlier. `index` is what clients that add up a stream leave in it."""

    id: str | None = Field(None, max_length=256)
    type: Literal["function"] = "function"
    function: MessageFunctionCall
    index: int | None = Field(None, ge=0, description="Accepted, without effect.")

    @model_validator(mode="before")
    @classmethod
    def only_functions(cls, value: Any) -> Any:
        return only_kinds(value, "calls", ("function",))
