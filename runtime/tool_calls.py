"""Tools for an engine on this machine: what the model is told of them, what holds its calls, and how they are read.

The manner of calling is that of the model's chat template (`grammar.tools`). Knows nothing of who carries a call out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ..grammar.reasoning import Markers, ReasoningParser, State, start_state, with_thinking
from ..grammar.reasoning import detect as reasoning_of
from ..grammar.tools import Event, Format, Parsed, Parser, TextDelta, Tool, ToolChoice, check_tools, detect
from ..types import GrammarSpec, Message, SamplingParams, Segment, ToolCall, ToolSpec, ToolUse
from .templates import ChatTemplate
from .tokenizer import Tokenizer
from .tool_prompt import with_tools

_TAIL = 64
"""Tokens at the end of a prompt in which the template may open or close a reasoning part."""


def with_stops(params: SamplingParams, stop_ids: tuple[int, ...]) -> SamplingParams:
    """`params`, stopping at these tokens too."""
    if not stop_ids:
        return params
    return msgspec.structs.replace(params, stop_token_ids=(*params.stop_token_ids, *stop_ids))


class Said(NamedTuple):
    """What a piece of the output adds: text for the reader, and calls that have become whole."""

    content: str
    calls: list[ToolCall]


class ToolManner:
    """How one model is told of tools and calls them."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._form: Format = detect(template.source, template.specials)
        self._markers: Markers | None = reasoning_of(template.source)
        self._template = template
        self._tokenizer = tokenizer

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], prompt: bool) -> list[Segment]:
        """The conversation, told of the tools. Raises `TemplateFailed`, `InvalidParameter`."""
        known = _tools(tools)
        given, told = with_tools(self._form, messages, known)
        return self._template.render(given, add_generation_prompt=prompt, tools=told)

    def grammar(self, use: ToolUse, ids: Sequence[int]) -> GrammarSpec:
        """What an answer to the prompt `ids` is held to."""
        tools, choice = _tools(use.tools), _choice(use)
        found = self._form.grammar(tools, choice, use.parallel)
        assert found is not None, "there are tools, and they may be called"
        state = self._state(ids)
        after: tuple[int, ...] = ()
        if self._markers is not None and state == "undecided":
            found = with_thinking(found, self._markers)
        elif self._markers is not None and state == "open":
            after = tuple(self._tokenizer.encode(self._markers.end, specials=True))
        strict = any(tool.strict for tool in choice.select(tools))
        return GrammarSpec("structural_tag", json.dumps(found), strict, after, tuple(sorted(self.shown)))

    def reader(self, use: ToolUse, ids: Sequence[int]) -> CallReader:
        """Reads the answer to the prompt `ids`."""
        tools = _choice(use).select(_tools(use.tools))
        state = self._state(ids)
        thought = ReasoningParser(self._markers, state) if self._markers is not None and state != "closed" else None
        return CallReader(self._form.parser(tools), thought)

    @property
    def shown(self) -> frozenset[int]:
        """Special tokens whose text the reader has to see."""
        texts = [*self._form.specials, *((self._markers.start, self._markers.end) if self._markers else ())]
        found = (self._tokenizer.id_of_special(text) for text in texts)
        return frozenset(token for token in found if token is not None)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer with calls, besides the model's own end tokens."""
        found = (self._tokenizer.id_of_special(text) for text in self._form.stops)
        return tuple(token for token in found if token is not None)

    def _state(self, ids: Sequence[int]) -> State:
        if self._markers is None or self._form.channels:
            return "closed"
        end = self._tokenizer.decode(ids[-_TAIL:], skip_special=False)
        return start_state([Segment(end, True)], self._markers)


class CallReader:
    """Reads one answer as it comes; what it says adds up to the same however the text is cut."""

    def __init__(self, parser: Parser, thought: ReasoningParser | None) -> None:
        self._parser = parser
        self._thought = thought
        self._parsed = Parsed()
        self._given = 0  # calls that have been said

    def push(self, text: str, last: bool = False) -> Said:
        """What is certain after this text; with `last`, all that is left."""
        pieces = [text]
        if self._thought is not None:
            events = self._thought.push(text) + (self._thought.finish() if last else [])
            pieces = [event.text for event in events if isinstance(event, TextDelta)]  # a reader is not shown thoughts
        found: list[Event] = [event for piece in pieces for event in self._parser.push(piece)]
        if last:
            found += self._parser.finish()
        self._parsed.add(found)
        content = "".join(event.text for event in found if isinstance(event, TextDelta))
        whole = self._parsed.calls[self._given :]
        whole = whole[: next((i for i, call in enumerate(whole) if not call.complete), len(whole))]
        self._given += len(whole)
        return Said(content, [ToolCall(call.id, call.name, call.arguments) for call in whole])


def _tools(specs: Sequence[ToolSpec]) -> list[Tool]:
    tools = [Tool(spec.name, spec.description, _schema(spec), spec.strict) for spec in specs]
    check_tools(tools)
    return tools


def _schema(spec: ToolSpec) -> dict[str, Any]:
    schema: Mapping[str, Any] = json.loads(spec.parameters)
    return dict(schema)


def _choice(use: ToolUse) -> ToolChoice:
    if use.choice in ("auto", "required"):
        return ToolChoice("auto" if use.choice == "auto" else "required")
    return ToolChoice.named(use.choice)
