"""Tools for an engine on this machine: what the model is told of them, what holds its calls, and how they are read.

The manner of calling is that of the model's chat template (`grammar.tools`). Knows nothing of who carries a call out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from ..errors import InvalidParameter
from ..grammar.reasoning import Markers, ReasoningParser, State, start_state, with_thinking
from ..grammar.reasoning import detect as reasoning_of
from ..grammar.tools import (
    Event,
    Format,
    FormatJson,
    Parsed,
    Parser,
    ReasoningDelta,
    TextDelta,
    Tool,
    ToolChoice,
    check_tools,
    detect,
)
from ..types import (
    Call,
    Chunk,
    FinishReason,
    GrammarSpec,
    Message,
    Output,
    SamplingParams,
    Segment,
    ToolCall,
    ToolSpec,
    ToolUse,
)
from .templates import ChatTemplate
from .text_stops import TextStops, Written
from .tokenizer import Tokenizer
from .tool_prompt import with_tools

_TAIL = 64
"""Tokens at the end of a prompt in which the template may open or close a reasoning part."""


def with_stops(params: SamplingParams, stop_ids: tuple[int, ...]) -> SamplingParams:
    """`params`, stopping at these tokens too."""
    if not stop_ids:
        return params
    return replace(params, stop_token_ids=(*params.stop_token_ids, *stop_ids))


class Said(NamedTuple):
    """What a piece of the output adds: text as it was generated, text for the reader, who is not shown thoughts, calls
    that have become whole, and thoughts."""

    text: str
    content: str
    calls: list[ToolCall]
    reasoning: str = ""


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

    def grammar(self, use: ToolUse, ids: Sequence[int], answer: GrammarSpec | None = None) -> GrammarSpec:
        """What an answer to the prompt `ids` is held to; `answer`: what its text is, where it calls nothing."""
        tools, choice = _tools(use.tools), _choice(use)
        found = self._form.grammar(tools, choice, use.parallel, _answer_format(answer))
        assert found is not None, "there are tools, and they may be called"
        state = self._state(ids)
        after: tuple[int, ...] = ()
        if self._markers is not None and state == "undecided":
            found = with_thinking(found, self._markers)
        elif self._markers is not None and state == "open":
            after = tuple(self._tokenizer.encode(self._markers.end, specials=True))
        strict = any(tool.strict for tool in choice.select(tools)) or (answer is not None and answer.strict)
        return GrammarSpec("structural_tag", json.dumps(found), strict, after, tuple(sorted(self.shown)))

    def answer_grammar(self, ids: Sequence[int], answer: GrammarSpec | None) -> GrammarSpec | None:
        """What an answer without tools to the prompt `ids` is held to, once the model has thought. A grammar in EBNF or
        Lark cannot follow thoughts that may never begin; it then holds from the first token."""
        state = self._state(ids)
        if self._form.channels:
            inner = None if answer is None else _format_of(answer)
            found = self._form.grammar([], ToolChoice("none"), True, inner)
        elif answer is None or self._markers is None or state == "closed":
            return answer
        elif state == "open":
            return replace(answer, after=tuple(self._tokenizer.encode(self._markers.end, specials=True)))
        elif answer.kind in ("ebnf", "lark"):
            return answer
        else:
            found = with_thinking(_format_of(answer), self._markers)
        strict = answer is not None and answer.strict
        return GrammarSpec("structural_tag", json.dumps(found), strict, (), tuple(sorted(self.shown)))

    def answer_reader(self, call: Call) -> CallReader:
        """Reads an answer without tools: what is thought, and what is said."""
        parser = self._form.parser([], answer=call.grammar is not None) if self._form.channels else None
        return CallReader(parser, self._thought(call.ids))

    def reader(self, call: Call, use: ToolUse) -> CallReader:
        """Reads the answer to a call. Stop strings are looked for there: the engine is to be given none."""
        tools = _choice(use).select(_tools(use.tools))
        thought = self._thought(call.ids)
        stops = TextStops(call.sampling.stop, call.sampling.min_tokens) if call.sampling.stop else None
        return CallReader(self._form.parser(tools, answer=call.grammar is not None), thought, stops)

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

    def _thought(self, ids: Sequence[int]) -> ReasoningParser | None:
        state = self._state(ids)
        return ReasoningParser(self._markers, state) if self._markers is not None and state != "closed" else None

    def _state(self, ids: Sequence[int]) -> State:
        if self._markers is None or self._form.channels:
            return "closed"
        end = self._tokenizer.decode(ids[-_TAIL:], skip_special=False)
        return start_state([Segment(end, True)], self._markers)


class CallReader:
    """Reads one answer; what it says adds up to the same however the text is cut."""

    def __init__(self, parser: Parser | None, thought: ReasoningParser | None, stops: TextStops | None = None) -> None:
        """Without a `parser` there are no calls."""
        self._parser = parser
        self._thought = thought
        self._stops = stops
        self._written = Written()
        self._tokens = 0
        self._parsed = Parsed()
        self._given = 0  # calls that have been said

    def read(self, chunk: Chunk) -> Chunk:
        """The chunk of at most one token, with what it says; the last one, if it ends a stop string."""
        said = self.push(chunk.text, chunk.finish, tokens=len(chunk.ids))
        chunk = chunk._replace(text=said.text, content=said.content, calls=said.calls, reasoning=said.reasoning)
        if self._stops is None or self._stops.found is None:
            return chunk
        ids = () if isinstance(chunk.stop, int) else chunk.ids  # the end token comes after what is said
        return chunk._replace(finish="stop", stop=self._stops.found, ids=ids)

    def push(self, text: str, finish: FinishReason | None = None, *, tokens: int = 1) -> Said:
        """What is certain after this text, which so many tokens have brought; with `finish`, all that is left."""
        self._tokens += tokens
        found = self._events(text, finish)
        unsaid = 0
        if self._stops is not None:
            found = self._stops.push(found, self._tokens, last=finish is not None)
            unsaid = self._stops.held + sum(part.waiting for part in (self._thought, self._parser) if part is not None)
        self._parsed.add(found)
        content = "".join(event.text for event in found if isinstance(event, TextDelta))
        whole = self._parsed.calls[self._given :]
        whole = whole[: next((i for i, call in enumerate(whole) if not call.complete), len(whole))]
        self._given += len(whole)
        calls = [ToolCall(call.id, call.name, call.arguments) for call in whole]
        reasoning = "".join(event.text for event in found if isinstance(event, ReasoningDelta))
        return Said(self._written.push(text, unsaid), content, calls, reasoning)

    def _events(self, text: str, finish: FinishReason | None) -> list[Event]:
        cut = finish != "stop"
        thought: Sequence[Event] = [TextDelta(text)]
        if self._thought is not None:
            thought = self._thought.push(text) + (self._thought.finish(cut=cut) if finish else [])
        if self._parser is None:
            return [*thought]
        found: list[Event] = []
        for event in thought:
            found += self._parser.push(event.text) if isinstance(event, TextDelta) else [event]
        return found + (self._parser.finish(cut=cut) if finish else [])


def by_token(outputs: Iterable[Output]) -> Iterator[Output]:
    """The same, so that none has more than one token."""
    for output in outputs:
        scores = output.logprobs
        *first, last = range(max(1, len(output.tokens)))
        for at in first:
            score = None if scores is None else scores[at : at + 1]
            yield replace(output, tokens=output.tokens[at : at + 1], logprobs=score, finish=None, stop=None)
        yield replace(output, tokens=output.tokens[last:], logprobs=None if scores is None else scores[last:])


def _tools(specs: Sequence[ToolSpec]) -> list[Tool]:
    tools = [Tool(spec.name, spec.description, _schema(spec), spec.strict) for spec in specs]
    check_tools(tools)
    return tools


def _schema(spec: ToolSpec) -> dict[str, Any]:
    schema: Mapping[str, Any] = json.loads(spec.parameters)
    return dict(schema)


def _answer_format(spec: GrammarSpec | None) -> FormatJson | None:
    """Raises `InvalidParameter` for what cannot stand beside calls."""
    if spec is None:
        return None
    if spec.kind not in ("json_schema", "json_object"):
        raise InvalidParameter(f"{spec.kind}: together with tools, only a JSON schema or JSON object can be asked for")
    return _format_of(spec)


def _format_of(spec: GrammarSpec) -> FormatJson:
    """The same as a structural format. Raises `InvalidParameter` for what is none."""
    match spec.kind:
        case "json_schema" | "json_object":
            return {"type": "json_schema", "json_schema": json.loads(spec.value) if spec.value else {"type": "object"}}
        case "regex":
            return {"type": "regex", "pattern": spec.value}
        case "choice":
            return {"type": "or", "elements": [{"type": "const_string", "value": v} for v in json.loads(spec.value)]}
        case "structural_tag":
            found: FormatJson = json.loads(spec.value)
            return found
    raise InvalidParameter(f"{spec.kind}: cannot be asked of a model that answers in channels")


def _choice(use: ToolUse) -> ToolChoice:
    if use.choice in ("auto", "required"):
        return ToolChoice("auto" if use.choice == "auto" else "required")
    return ToolChoice.named(use.choice)
