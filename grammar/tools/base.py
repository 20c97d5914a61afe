"""What every tool format has in common: tools, the caller's choice, the events of a parsed answer, and the two faces of
a format — the grammar that holds the model to it, and the parser that reads what came.

How the server uses it:

    tools = [Tool(...), ...]; check_tools(tools)
    choice = ToolChoice("auto"); usable = choice.select(tools)
    form = detect(template, specials)                          # grammar/tools/families.py
    spec = form.grammar(usable, choice, parallel, answer)      # a format (grammar/formats.py), or None: nothing to hold
    parser = form.parser(usable, answer=answer is not None)
    for text in pieces: events = parser.push(text)
    events = parser.finish(cut=whether the answer was broken off)

The markers that `Format.declared` names have to be declared (`GrammarSpec.specials`) and shown as text to the parser,
where the tokenizer has them as special tokens. A reasoning part is taken off first (`grammar/reasoning.py`), unless the
format has `channels`.

Knows nothing of requests, protocols, token ids or engines.
"""

from __future__ import annotations

import re
import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from ...errors import InvalidParameter
from .reader import Reader, Script

Mode = Literal["none", "auto", "required", "named"]
FormatJson = dict[str, Any]
"""A structural format, see grammar/formats.py."""

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is the JSON schema of its arguments; None: it takes none."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of the arguments object; always of type object."""
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return (
            {**self.parameters, "type": "object"}
            if "type" in self.parameters
            else {"type": "object", **self.parameters}
        )


def check_tools(tools: Sequence[Tool], field: str = "tools") -> None:
    """Raises `InvalidParameter` for a name that is malformed or stands twice, or parameters that are no object."""
    seen: set[str] = set()
    for at, tool in enumerate(tools):
        place = f"{field}[{at}].function"
        if not _NAME.fullmatch(tool.name):
            raise InvalidParameter(f"{place}.name: 1 to 64 letters, digits, `_`, `-` or `.`", f"{place}.name")
        if tool.name in seen:
            raise InvalidParameter(f"{place}.name: two tools are named {tool.name!r}", f"{place}.name")
        seen.add(tool.name)
        kind = "object" if tool.parameters is None else tool.parameters.get("type", "object")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            raise InvalidParameter(f"{place}.parameters.type: has to be object", f"{place}.parameters.type")


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What the caller leaves to the model. `names`: the only tools that may be called; empty: all.

    none: no call. auto: text, calls or both. required: at least one call. named: exactly one call, of that tool.
    """

    mode: Mode = "auto"
    names: tuple[str, ...] = ()

    @classmethod
    def named(cls, name: str) -> ToolChoice:
        return cls("named", (name,))

    @classmethod
    def allowed(cls, names: Iterable[str], mode: Literal["auto", "required"]) -> ToolChoice:
        return cls(mode, tuple(names))

    def select(self, tools: Sequence[Tool], field: str = "tool_choice") -> list[Tool]:
        """The tools that may be called, in the order of `tools`. Raises `InvalidParameter` where the choice names a
        tool that is not there, or asks for a call and there is no tool."""
        known = {tool.name for tool in tools}
        for name in self.names:
            if name not in known:
                raise InvalidParameter(f"{field}: there is no tool named {name!r}", field)
        if self.mode == "none":
            return []
        if self.mode != "auto" and not tools:
            raise InvalidParameter(f"{field}: asks for a call, but there are no tools", field)
        return [tool for tool in tools if not self.names or tool.name in self.names]


class TextDelta(NamedTuple):
    """Text of the answer. White space next to a call is layout, and is left out."""

    text: str


class ReasoningDelta(NamedTuple):
    """Text of the reasoning part; comes only from formats with `channels`."""

    text: str


class CallStart(NamedTuple):
    """Once a call, before its arguments. `call` counts from 0."""

    call: int
    id: str
    name: str


class ArgumentsDelta(NamedTuple):
    """A piece of the JSON text of a call's arguments; never empty."""

    call: int
    text: str


class CallEnd(NamedTuple):
    """Nothing more comes for this call. `complete` is False where the text ended inside it."""

    call: int
    complete: bool = True


Event = TextDelta | ReasoningDelta | CallStart | ArgumentsDelta | CallEnd


@dataclass(slots=True)
class ParsedCall:
    id: str
    name: str
    arguments: str = ""  # JSON text as generated; a part of it if not `complete`
    complete: bool = False


@dataclass(slots=True)
class Parsed:
    """A whole answer: the fold of its events."""

    content: str = ""
    reasoning: str = ""
    calls: list[ParsedCall] = field(default_factory=list)

    def add(self, events: Iterable[Event]) -> Parsed:
        for event in events:
            match event:
                case TextDelta(text):
                    self.content += text
                case ReasoningDelta(text):
                    self.reasoning += text
                case CallStart(_, id, name):
                    self.calls.append(ParsedCall(id, name))
                case ArgumentsDelta(call, text):
                    self.calls[call].arguments += text
                case CallEnd(call, complete):
                    self.calls[call].complete = complete
        return self


class Writer:
    """Collects events. Adjacent pieces of one kind become one event; blanks wait until it is known what follows."""

    def __init__(self, style: IdStyle) -> None:
        self._style = style
        self._events: list[Event] = []
        self._blanks = ""
        self._calls = 0
        self._open = False

    @property
    def waiting(self) -> int:
        return len(self._blanks)

    def text(self, text: str) -> None:
        body = text.rstrip(" \t\r\n")
        if body:
            self._add(TextDelta(self._blanks + body))
            self._blanks = text[len(body) :]
        else:
            self._blanks += text

    def reasoning(self, text: str) -> None:
        if text:
            self._add(ReasoningDelta(text))

    def start(self, name: str) -> None:
        self._blanks = ""
        self._open = True
        self._events.append(CallStart(self._calls, self._style.new(), name))
        self._calls += 1

    def arguments(self, text: str) -> None:
        if text:
            self._add(ArgumentsDelta(self._calls - 1, text))

    def end(self, complete: bool) -> None:
        self._open = False
        self._events.append(CallEnd(self._calls - 1, complete))

    def close(self) -> None:
        assert not self._open, "a call was left open"
        if self._blanks and not self._calls:
            self._add(TextDelta(self._blanks))
        self._blanks = ""

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _add(self, event: TextDelta | ReasoningDelta | ArgumentsDelta) -> None:
        last = self._events[-1] if self._events else None
        if type(last) is type(event):
            assert isinstance(last, TextDelta | ReasoningDelta | ArgumentsDelta)
            self._events[-1] = last._replace(text=last.text + event.text)
        else:
            self._events.append(event)


class IdStyle(NamedTuple):
    """How a family writes the ids of calls: some templates refuse other ids."""

    prefix: str = "call_"
    length: int = 24

    def new(self) -> str:
        return self.prefix + "".join(secrets.choice(_LETTERS) for _ in range(self.length))


class Parser:
    """Reads one answer as it comes. However the text is cut, the events fold to the same message.

    Never raises on any text: what is no call is text, and a call that breaks off yields what was there, once its name
    is known. Before that, it depends on how the text ended: an answer that is over has no call there, so it is text; in
    one that was cut it may have become one, so it is neither.
    """

    def __init__(self, script: Script[None], reader: Reader, writer: Writer) -> None:
        self._script: Script[None] | None = script
        self._reader = reader
        self._writer = writer

    @property
    def waiting(self) -> int:
        """Characters that were pushed, and are held back."""
        return self._reader.waiting + self._writer.waiting

    def push(self, text: str) -> list[Event]:
        """What is certain after this text; what may be a part of a marker waits."""
        assert self._script is not None, "text after the end"
        self._reader.feed(text)
        next(self._script)
        return self._writer.take()

    def finish(self, *, cut: bool = False) -> list[Event]:
        """All that was held back; if the answer was `cut`, without what may have become a call. The last call."""
        assert self._script is not None, "finished twice"
        self._reader.close(cut=cut)
        for _ in self._script:
            raise AssertionError("a script that waits for text after the end")
        self._script = None
        self._writer.close()
        return self._writer.take()


class Format(ABC):
    """How one family of models writes calls.

    name: as in settings
    specials: markers that may be special tokens in the family's tokenizers; `declared` says which to declare and show
    stops: end markers of a turn with calls, besides the model's own end tokens; they are not part of the text
    in_template: the family's templates state tools; otherwise `default.tools_prompt` and its companions do
    channels: the whole output is made of channels. The grammar then holds from the first token, reasoning included
        (`grammar` never gives None), and the parser is needed in any case and gives `ReasoningDelta`s
    """

    name: ClassVar[str]
    specials: ClassVar[tuple[str, ...]] = ()
    stops: ClassVar[tuple[str, ...]] = ()
    in_template: ClassVar[bool] = True
    channels: ClassVar[bool] = False
    ids: ClassVar[IdStyle] = IdStyle()

    def grammar(
        self, tools: Sequence[Tool], choice: ToolChoice, parallel: bool = True, answer: FormatJson | None = None
    ) -> FormatJson | None:
        """The structural format of an answer. Every argument is held to its tool's schema, whatever the choice.

        `answer` is the format of `response_format`: the model then gives either calls, or that answer and nothing
        else. `parallel=False`: at most one call. None: free text, nothing to hold the output to.
        """
        usable = choice.select(tools)
        many = parallel and choice.mode != "named"
        if not usable:
            return answer
        if choice.mode != "auto":
            return self.calls(usable, many)
        if answer is None:
            return self.free(usable, many)
        return {"type": "or", "elements": [self.calls_beside_answer(usable, many), answer]}

    def parser(self, tools: Sequence[Tool], *, answer: bool = False) -> Parser:
        """For one output. `tools` are those that may be called: others are no calls. `answer`: the grammar had one, so
        calls are only at the start of the text."""
        reader, writer = Reader(), Writer(self.ids)
        names = frozenset(tool.name for tool in tools)
        return Parser(self._top(names, reader, writer, answer), reader, writer)

    def declared(self, answer: bool) -> tuple[str, ...]:
        """Markers that the output may be written with; `answer`: the grammar has one."""
        return self.specials

    def new_id(self) -> str:
        """An id for a call that the family's templates accept."""
        return self.ids.new()

    @abstractmethod
    def calls(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        """One call, or several if `many`, and nothing else."""

    @abstractmethod
    def free(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        """Text until a call opens, then calls."""

    def calls_beside_answer(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        """`calls`, written so that they cannot be taken for a JSON answer."""
        return self.calls(tools, many)

    @abstractmethod
    def read(self, names: frozenset[str], reader: Reader, writer: Writer, answer: bool) -> Script[None]:
        """Reads the whole answer into the writer; text in which there can be no call may be left unread."""

    def _top(self, names: frozenset[str], reader: Reader, writer: Writer, answer: bool) -> Script[None]:
        if names or self.channels:
            yield from self.read(names, reader, writer, answer)
        yield from reader.rest(writer.text)
