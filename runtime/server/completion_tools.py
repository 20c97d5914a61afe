"""Tools and reasoning of a completion: an extension for programs that carry token ids and still want calls held and
read, or thoughts told apart from the answer.

The prompt says of the tools what it says; nothing is added to it. The text stays as it was generated, calls included,
so that it goes with the token ids; beside it stand the text without the calls, and the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...errors import InvalidParameter
from ...grammar.tools import Event, Parsed
from ...types import FinishReason, SamplingParams, Segment, StopMatch
from ..text_stops import Written
from .constraints import Constraint
from .prompts import Prompt
from .reading import ChatReader, PlainReader, Reader, Stopped
from .schemas import CompletionRequest
from .services import Text, TextStream
from .tool_use import Held, ToolUse, thinking_of, tool_use
from .wire import FunctionCall, ToolCall

_TAIL = 64
"""Tokens at the end of a prompt in which the template may open or close a reasoning part."""


class WrittenReader:
    """As another reader, and keeps the text as it was generated until it is taken."""

    def __init__(self, reader: ChatReader, stream: TextStream) -> None:
        self._reader = reader
        self._stream = stream
        self._text = Written()
        self._written = ""

    @property
    def reasoning_tokens(self) -> int | None:
        return self._reader.reasoning_tokens

    @property
    def stopped(self) -> Stopped | None:
        return self._reader.stopped

    def push(self, tokens: Sequence[int], finish: FinishReason | None, stop: StopMatch | None) -> list[Event]:
        events = self._reader.push(tokens, finish, stop)
        if self.stopped is not None:
            tokens, finish, stop = tokens[: self.stopped.tokens], None, None
        self._written += self._text.push(self._stream.push(tokens, finish, stop), self._reader.unsaid)
        return events

    def take(self) -> str:
        """The text since it was taken before."""
        written, self._written = self._written, ""
        return written


class CallFolder:
    """Adds up the events of one choice."""

    def __init__(self) -> None:
        self._parsed = Parsed()
        self._given = 0

    def add(self, events: Sequence[Event]) -> list[ToolCall]:
        """The calls that have become whole. One that is cut off never does."""
        self._parsed.add(events)
        calls = self._parsed.calls[self._given :]
        whole = calls[: next((i for i, call in enumerate(calls) if not call.complete), len(calls))]
        self._given += len(whole)
        return [ToolCall(call.id, FunctionCall(call.name, call.arguments)) for call in whole]


@dataclass(slots=True)
class Reading:
    """What a completion is held to. `reader(sampling)` makes the reader of the next choice; where there are tools,
    `written` has all that were made."""

    held: Held
    reader: Callable[[SamplingParams], Reader]
    written: list[WrittenReader] = field(default_factory=list)


def reading(text: Text, body: CompletionRequest, found: Constraint, prompts: Sequence[Prompt]) -> Reading:
    """Raises InvalidParameter for tools that contradict themselves, or with several prompts."""
    tools = tool_use(body, found)
    if not tools.tools and not body.reasoning:
        free = Held(found.spec, found.places, found.expected, frozenset(), [])
        return Reading(free, lambda sampling: PlainReader(text.stream(sampling.stop, frozenset())))
    if len(prompts) > 1:
        name = "tools" if tools.tools else "reasoning"
        raise InvalidParameter(f"{name}: only with one prompt", name)
    return _with_tools(text, tools, found, prompts[0])


def _with_tools(text: Text, tools: ToolUse, found: Constraint, prompt: Prompt) -> Reading:
    end = text.tokenizer.decode(prompt.ids[-_TAIL:], skip_special=False)
    thinking = thinking_of(text, [Segment(end, True)], continued=False)
    held = tools.held(text.tool_format, found, thinking, text.tokenizer.id_of_special)

    def make(sampling: SamplingParams) -> Reader:
        stop = held.for_engine(sampling).stop
        reader = tools.reader(text.stream(stop, held.shown), text.tool_format, found, thinking, sampling)
        written = WrittenReader(reader, text.stream(stop, held.shown))
        made.written.append(written)
        return written

    made = Reading(held, make)
    return made
