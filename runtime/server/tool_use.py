"""The tools of a chat request: which the model is told of, which it may call, and the grammar and parser that follow.

How any model writes its calls is the business of `grammar.tools`. Knows nothing of engines, nor of how tokens are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec.structs import replace

from ...errors import InvalidParameter
from ...grammar.formats import parts
from ...grammar.reasoning import Markers, ReasoningParser, State, start_state, with_thinking
from ...grammar.tools import Format, FormatJson, Tool, ToolChoice, check_tools
from ...types import GrammarSpec, SamplingParams, Segment
from ..text_stops import TextStops
from ..tool_prompt import Messages, with_tools
from .constraints import Constraint, to_json
from .inspection import Expected
from .places import Place, Places
from .reading import ChatReader
from .sampling import with_stops
from .schemas import ChatRequest, CompletionRequest
from .services import Text, TextStream
from .tool_schemas import Tool as ToolField

_NO_FORMAT = ("ebnf", "lark")
"""Kinds of grammars that no format can hold. Where a model may think or not, they hold from the first token."""
_WORDS = {"none": ToolChoice("none"), "auto": ToolChoice("auto"), "required": ToolChoice("required")}


@dataclass(frozen=True, slots=True)
class Held:
    """What an output is held to, and where the parts of that come from; the special tokens that are text in it, and
    those that end it besides the model's own. `calls`: there may be calls in it, so that only a reader knows its text.
    """

    spec: GrammarSpec | None
    places: Places
    expected: Expected
    shown: frozenset[int]
    stops: list[int]
    calls: bool = False

    def for_engine(self, sampling: SamplingParams) -> SamplingParams:
        """What the engine is asked: to stop at more tokens, and at stop strings only where all it writes is text."""
        more = with_stops(sampling, self.stops)
        return replace(more, stop=()) if self.calls else more


class Thinking(NamedTuple):
    """How a model's output begins: the markers around its reasoning, the state of that, and the end marker's ids."""

    markers: Markers
    state: State
    end: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`tools` are those of the request. The model is told of them if it may call any: `usable` are those."""

    tools: list[Tool]
    usable: list[Tool]
    choice: ToolChoice
    parallel: bool

    def reader(
        self, stream: TextStream, form: Format, answer: Constraint, thinking: Thinking | None, sampling: SamplingParams
    ) -> ChatReader:
        """Reads one choice. Of `sampling` only what says where to stop counts."""
        parser = stops = None
        if self.usable or form.channels:
            parser = form.parser(self.usable, answer=answer.spec is not None)
            stops = TextStops(sampling.stop, sampling.min_tokens) if sampling.stop else None
        thinks = None if thinking is None and not form.channels else thinking is not None and thinking.state == "open"
        return ChatReader(stream, thinking and ReasoningParser(*thinking[:2]), parser, stops, thinks=thinks)

    def held(
        self, form: Format, answer: Constraint, thinking: Thinking | None, id_of: Callable[[str], int | None]
    ) -> Held:
        """What the output is held to, with calls in the manner of `form`. `answer`: what the text is held to. `id_of`
        tells the id of a special token."""
        calls = bool(self.usable) or form.channels
        thinks = thinking is not None and thinking.state != "closed"
        markers = [*(form.specials if calls else ()), *(thinking.markers[1:] if thinking and thinks else ())]
        specials = tuple(token for text in markers if (token := id_of(text)) is not None)
        stops = [token for text in form.stops if calls and (token := id_of(text)) is not None]
        after = thinking.end if thinking is not None and thinking.state == "open" else ()
        found = self._format(form, answer, calls, thinking)
        if found is None:
            spec = None if answer.spec is None else replace(answer.spec, after=after)
            return Held(spec, answer.places, answer.expected, frozenset(specials), stops, calls)
        places = self._places(found, answer)
        expected = Expected(
            answer.schema,
            next((place.pointer for place in places if place.field == answer.field), "#"),
            {tool.name: tool.schema for tool in self.usable},
            {tool.name: at for tool in self.usable if (at := _pointer(found, tool.schema)) is not None},
        )
        strict = bool(places) and all(place.strict for place in places)
        spec = GrammarSpec("structural_tag", to_json(found), strict, after, specials)
        field = "tools" if self.usable else answer.field
        return Held(spec, Places(field, places), expected, frozenset(specials), stops, calls)

    def _format(self, form: Format, answer: Constraint, calls: bool, thinking: Thinking | None) -> FormatJson | None:
        """The whole as one format; None where what the text is held to can stay as it is."""
        undecided = thinking is not None and thinking.state == "undecided"
        if not calls and not (undecided and answer.spec is not None and answer.spec.kind not in _NO_FORMAT):
            return None
        inner = _answer_format(answer, form)
        found = form.grammar(self.usable, self.choice, self.parallel, inner) if calls else inner
        assert found is not None, "tools that may be called, channels and answers always make a grammar"
        return with_thinking(found, thinking.markers) if undecided and thinking else found

    def told(self, form: Format, messages: Sequence[Mapping[str, Any]]) -> tuple[Messages, list[dict[str, Any]] | None]:
        """The conversation and the tools as the chat template is given them. Where none may be called, none is told."""
        if not form.in_template:  # in words
            messages = [{**message, "content": _text(message["content"])} for message in messages]
        return with_tools(form, messages, self.tools if self.usable else [])

    def _places(self, found: FormatJson, answer: Constraint) -> list[Place]:
        """Each schema of the grammar, and the caller's. Formats that take schemas apart have a place a property."""
        places = []
        properties = [(tool, name, part) for tool in self.usable for name, part in _properties(tool)]
        for pointer, node in parts(found):
            if node["type"] != "json_schema":
                continue
            pointer += "/json_schema"
            schema = node["json_schema"]
            same = [(tool, "") for tool in self.usable if tool.schema == schema]
            same = same or [(tool, f"/properties/{name}") for tool, name, part in properties if part == schema]
            if answer.field is not None and schema == answer.schema:
                strict = answer.spec is not None and answer.spec.strict
                places.append(Place(pointer, answer.field, strict=strict, schema=schema))
            elif same:
                first, inside = same[0]
                at = self.tools.index(first)
                field, root = f"tools[{at}].function.parameters", f"#/tools/{at}/function/parameters"
                strict = any(tool.strict for tool, _ in same)
                places.append(Place(pointer, field, root, inside, strict, schema))
            else:
                strict = any(tool.strict for tool in self.usable)
                places.append(Place(pointer, "tools", "#/tools", strict=strict, schema=schema))
        return places


def thinking_of(text: Text, segments: Sequence[Segment], *, continued: bool) -> Thinking | None:
    """How the output begins after this prompt; None for a model without reasoning, or with channels for it."""
    if text.thinking is None or text.tool_format.channels:
        return None
    end = text.tokenizer.encode_segments([Segment(text.thinking.end, True)])
    return Thinking(text.thinking, start_state(segments, text.thinking, continued), tuple(end))


def tool_use(body: ChatRequest | CompletionRequest, answer: Constraint) -> ToolUse:
    """What the request says of tools. Raises InvalidParameter for what contradicts itself."""
    tools = read_tools(body.tools)
    choice, field = _choice(body, bool(tools))
    usable = choice.select(tools, field)
    if usable and answer.spec is not None and answer.schema is None:
        name = (answer.field or "").partition(".")[0]
        raise InvalidParameter(f"{name}: together with tools, only a JSON schema or json_object can be asked for", name)
    return ToolUse(tools, usable, choice, body.parallel_tool_calls is not False)


def tools_to_tell(given: Sequence[ToolField] | None) -> ToolUse:
    """For a prompt alone: all may be called."""
    tools = read_tools(given)
    return ToolUse(tools, tools, _WORDS["auto"], True)


def read_tools(given: Sequence[ToolField] | None) -> list[Tool]:
    """The tools of a request. Raises InvalidParameter for names that are there twice, and odd parameters."""
    tools = []
    for entry in given or ():
        function = entry.function
        tools.append(Tool(function.name, function.description or "", function.parameters, bool(function.strict)))
    check_tools(tools)
    return tools


def _choice(body: ChatRequest | CompletionRequest, there_are_tools: bool) -> tuple[ToolChoice, str]:
    """And the field to name where it does not fit the tools."""
    given = body.tool_choice
    if given is None:
        return _WORDS["auto" if there_are_tools else "none"], "tool_choice"
    if not there_are_tools and given.type != "none":
        raise InvalidParameter("tool_choice: only with tools", "tool_choice")
    if given.function is not None:
        return ToolChoice.named(given.function.name), "tool_choice.function.name"
    if given.allowed_tools is not None:
        names = dict.fromkeys(tool.function.name for tool in given.allowed_tools.tools)
        return ToolChoice.allowed(names, given.allowed_tools.mode), "tool_choice.allowed_tools.tools"
    return _WORDS[given.type], "tool_choice"


def _text(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _answer_format(answer: Constraint, form: Format) -> FormatJson | None:
    """What the text is held to, as a format."""
    spec = answer.spec
    if spec is None:
        return None
    if answer.schema is not None:
        return {"type": "json_schema", "json_schema": answer.schema}
    match spec.kind:
        case "regex":
            return {"type": "regex", "pattern": spec.value}
        case "choice":
            return {"type": "or", "elements": [{"type": "const_string", "value": v} for v in json.loads(spec.value)]}
        case "structural_tag":
            found: FormatJson = json.loads(spec.value)
            return found
        case "json_object":
            return {"type": "json_schema", "json_schema": {"type": "object"}}
    field = (answer.field or "").partition(".")[0]
    raise InvalidParameter(f"{field}: cannot be asked of a model that answers in the manner of {form.name}", field)


def _properties(tool: Tool) -> list[tuple[str, Any]]:
    """Each property's name, as it stands in a pointer, and its schema as it stands alone: with the definitions."""
    properties = tool.schema.get("properties")
    if not isinstance(properties, dict):
        return []
    shared = {key: tool.schema[key] for key in ("$schema", "$defs", "definitions") if key in tool.schema}
    return [
        (name.replace("~", "~0").replace("/", "~1"), {**shared, **part} if isinstance(part, dict) else part)
        for name, part in properties.items()
    ]


def _pointer(found: FormatJson, schema: Any) -> str | None:
    """Where a schema stands in the grammar."""
    places: Sequence[str] = [
        f"{at}/json_schema"
        for at, node in parts(found)
        if node["type"] == "json_schema" and node["json_schema"] == schema
    ]
    return places[0] if places else None
