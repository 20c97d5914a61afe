"""`@tool`: a typed function with a docstring, as something that a model may call.

Knows nothing of models, nor of when a tool is called. What cannot be described to a model is refused where the tool is
made. pydantic describes the types and checks the arguments; it is loaded with the first tool.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Final, Generic, NotRequired, ParamSpec, TypeVar, cast, get_type_hints, overload

from ..types import ToolSpec
from .arguments import flag, text, wrong_type
from .docstrings import described
from .placeholders import leaves_the_trace

P = ParamSpec("P")
R = TypeVar("R")

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what the OpenAI protocol allows
_CHOICES: Final = ("auto", "required", "none")  # what `tool_choice` may say besides a name
_SELF: Final = ("self", "cls")


class InvalidArguments(ValueError):
    """The arguments of a call do not fit the tool's parameters; the text is what the model is told."""


class Tool(Generic[P, R]):
    """A tool, made by `@tool`. Called from Python it is the plain function.

    `name`, `description` and `parameters` (the JSON schema of its arguments, an object) are what the model is told. A
    tool that is a method is described without its `self`, and is called through an instance: `act([counter.add])`.
    """

    def __init__(self, function: Callable[P, R], spec: ToolSpec, check: Callable[[str], dict[str, Any]]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.spec = spec
        self._check = check
        self._method = _is_method(function)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def description(self) -> str:
        return self.spec.description

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments; a fresh copy."""
        schema: dict[str, Any] = json.loads(self.spec.parameters)
        return schema

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def is_unbound(self) -> bool:
        """It is a method without its instance, so it cannot be called with what a model knows."""
        return self._method and not inspect.ismethod(self.function)

    def arguments(self, raw: str) -> dict[str, Any]:
        """The arguments that the JSON text `raw` stands for, by name, each of its parameter's type. Raises
        `InvalidArguments`. Nothing is converted that JSON can say itself: "3" is no number."""
        return self._check(raw)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        leaves_the_trace(f"the tool {self.name} is called")
        return self.function(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Tool[..., R]:
        if instance is None or not self._method:
            return self
        bound = cast(Callable[..., R], self.function.__get__(instance, owner))
        return Tool(bound, self.spec, self._check)

    def __repr__(self) -> str:
        return f"<tool {self.name}({', '.join(self.parameters['properties'])})>"


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    function: None = None, /, *, name: str | None = None, description: str | None = None, strict: bool = False
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    strict: bool = False,
) -> Any:
    """Make a tool of a function, sync or async, for `s.act`.

    Every parameter needs a type: one that pydantic can describe. What the model is told of a parameter is the
    description in `Annotated[..., Field(description=...)]`, else what the docstring says of it, written in Google's,
    numpy's or reST's way. `name` and `description` stand in for the function's name and its docstring. With `strict`,
    parameters that no engine can hold the model to are refused, instead of relaxed.
    """
    flag("tool: strict", strict)
    frame = sys._getframe(1)  # types may be local to the function that defines the tool
    if function is None:
        return lambda later: _made(later, name, description, strict, frame)
    return _made(function, name, description, strict, frame)


def _made(
    function: Any, name: str | None, description: str | None, strict: bool, frame: FrameType | None
) -> Tool[..., Any]:
    if not inspect.isroutine(function) or not hasattr(function, "__name__"):
        raise wrong_type("tool: what it decorates", "a function", function)
    called = function.__name__ if name is None else text("tool: name", name)
    if not _NAME.fullmatch(called):
        hint = "" if name is not None else ": give it one with @tool(name=...)"
        raise ValueError(f"tool: a name has 1 to 64 letters, digits, _ and -, unlike {called!r}{hint}")
    if called in _CHOICES:
        raise ValueError(f"tool: the name {called!r} has a meaning of its own for tool_choice")
    where = f"tool {called}"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{where}: a tool is a plain or an async function, not a generator")
    parameters = _parameters(where, function)
    said = described(inspect.getdoc(function) or "", parameters)
    told = said.text if description is None else text("tool: description", description)
    if not told:
        raise TypeError(f"{where}: it has no docstring: the model must be told what it does")
    text(f"{where}: description", told)
    schema, check = _described(where, parameters, _hints(where, function, frame))
    for parameter, words in said.parameters.items():
        schema["properties"][parameter].setdefault("description", words)
    return Tool(function, ToolSpec(called, told, json.dumps(schema), strict), check)


def _is_method(function: Callable[..., Any]) -> bool:
    """Whether it was written in a class, and takes the instance (or the class) first."""
    first = next(iter(inspect.signature(inspect.unwrap(function)).parameters.values()), None)
    outer = getattr(function, "__qualname__", "").rpartition(".")[0]
    written_in_class = bool(outer) and not outer.endswith("<locals>")
    return written_in_class and first is not None and first.name in _SELF and first.annotation is first.empty


def _parameters(where: str, function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters that a model gives. Raises TypeError for what it cannot be told of."""
    found = dict(inspect.signature(function).parameters)
    if _is_method(function) and not inspect.ismethod(function):
        del found[next(iter(found))]
    for name, parameter in found.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise TypeError(f"{where}: {stars}{name} cannot be described to a model: name every parameter")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(f"{where}: {name} is positional-only, but a model gives arguments by name")
        if parameter.annotation is parameter.empty:
            raise TypeError(f"{where}: the parameter {name!r} has no type")
        if type(parameter.default).__name__ == "FieldInfo":
            raise TypeError(f"{where}: write {name} as Annotated[..., Field(...)] = default, so that it stays callable")
    return found


def _hints(where: str, function: Callable[..., Any], frame: FrameType | None) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError:  # a name that is local to the place of definition, or that is not there
        local = frame.f_locals if frame is not None else {}
    try:
        return get_type_hints(function, localns=dict(local), include_extras=True)
    except NameError as error:
        raise TypeError(f"{where}: a type cannot be resolved: {error}") from error


def _described(
    where: str, parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]
) -> tuple[dict[str, Any], Callable[[str], dict[str, Any]]]:
    """The JSON schema of the arguments, and their check."""
    from pydantic import ConfigDict, PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter  # heavy
    from pydantic.json_schema import GenerateJsonSchema
    from pydantic_core import SchemaError
    from typing_extensions import TypedDict  # pydantic reads that of typing only from Python 3.12 on

    class Untitled(GenerateJsonSchema):
        """Titles that repeat the names of fields are tokens for nothing."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    for name, parameter in parameters.items():
        try:
            TypeAdapter(hints[name]).json_schema()
        except (TypeError, PydanticUserError, PydanticUndefinedAnnotation, SchemaError) as error:
            raise TypeError(
                f"{where}: the type of {name!r}, {parameter.annotation}, cannot be described to a model"
            ) from error
    fields = {
        name: hints[name] if parameter.default is parameter.empty else NotRequired[hints[name]]
        for name, parameter in parameters.items()
    }
    # A dict rather than a model: parameters may have any name, and those left out keep the function's own defaults.
    typed_dict: Any = TypedDict
    arguments = typed_dict("arguments", fields)
    arguments.__pydantic_config__ = ConfigDict(extra="forbid")
    adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(arguments)
    schema = adapter.json_schema(schema_generator=Untitled)
    del schema["title"]
    for name, parameter in parameters.items():
        _say_default(schema["properties"][name], parameter)
    return schema, functools.partial(_checked, adapter)


def _say_default(schema: dict[str, Any], parameter: inspect.Parameter) -> None:
    """A default that JSON can say is told to the model; others are the function's own business."""
    from pydantic_core import PydanticSerializationError, to_json

    if parameter.default is parameter.empty:
        return
    try:
        schema["default"] = json.loads(to_json(parameter.default, inf_nan_mode="strings"))
    except (PydanticSerializationError, ValueError):
        return


def _checked(adapter: Any, raw: str) -> dict[str, Any]:
    from pydantic import ValidationError

    try:
        arguments: dict[str, Any] = adapter.validate_json(raw or "{}", strict=True)
    except ValidationError as error:
        faults = []
        for fault in error.errors(include_url=False, include_context=False, include_input=False):
            place = ".".join(map(str, fault["loc"]))
            faults.append(f"{place}: {fault['msg']}" if place else fault["msg"])
        raise InvalidArguments("; ".join(faults)) from error
    return arguments


def checked_tools(where: str, tools: Any) -> dict[str, Tool[..., Any]]:
    """The tools by name; a plain function is made one. `where` begins the sentence that says what is wrong."""
    if isinstance(tools, Tool) or callable(tools) or not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise wrong_type(where, "a list of tools", tools)
    found: dict[str, Tool[..., Any]] = {}
    for item in tools:
        if not isinstance(item, Tool) and not inspect.isroutine(item):
            raise wrong_type(where, "a list of tools, each a function with @bosquet.tool", item)
        one = item if isinstance(item, Tool) else _made(item, None, None, False, None)
        if one.is_unbound:
            raise TypeError(f"{where}: {one.name} is a method: give it with its instance, as in [instance.{one.name}]")
        if one.name in found:
            raise ValueError(f"{where}: two tools have the name {one.name!r}")
        found[one.name] = one
    if not found:
        raise ValueError(f"{where} must be a list that is not empty")
    return found
