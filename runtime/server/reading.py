"""What the tokens of a choice say: text of the answer, text of reasoning, calls of tools. Event by event, and the
events add up to the same message however the tokens are cut into steps.

Knows nothing of HTTP, and nothing of how any model writes its calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ...grammar.reasoning import ReasoningParser
from ...grammar.tools import CallStart, Event, Parser, ReasoningDelta, TextDelta
from ...types import FinishReason, StopMatch
from ..text_stops import TextStops
from .services import TextStream


class Stopped(NamedTuple):
    """The reader has found a stop string. The choice ends there, with so many of the tokens that were pushed last."""

    text: str
    tokens: int


class Reader(Protocol):
    """Reads one choice. `reasoning_tokens` counts those so far; None for a model that is not known to reason. `stopped`
    says that the choice is over, whatever the engine says."""

    @property
    def reasoning_tokens(self) -> int | None: ...

    @property
    def stopped(self) -> Stopped | None: ...

    def push(self, tokens: Sequence[int], finish: FinishReason | None, stop: StopMatch | None) -> list[Event]:
        """What these tokens add. The call with `finish` is the last."""


class PlainReader:
    """All is text of the answer."""

    reasoning_tokens = None
    stopped = None

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream

    def push(self, tokens: Sequence[int], finish: FinishReason | None, stop: StopMatch | None) -> list[Event]:
        text = self._stream.push(tokens, finish, stop)
        return [TextDelta(text)] if text else []


class ChatReader:
    """Text, reasoning and calls. `thinking` splits the reasoning off, `parser` the calls; None: there are none. `stops`
    are looked for here, and not by the engine.

    A token counts as reasoning if none has come yet that shows text of the answer, or a call.
    """

    def __init__(
        self,
        stream: TextStream,
        thinking: ReasoningParser | None,
        parser: Parser | None,
        stops: TextStops | None = None,
        *,
        thinks: bool | None,
    ) -> None:
        """`thinks`: whether the output begins inside the reasoning part; None: there can be none."""
        self._stream = stream
        self._thinking = thinking
        self._parser = parser
        self._stops = stops
        self._seen = 0
        self.stopped: Stopped | None = None
        self._thought = thinks
        self._before = 0  # tokens before the answer
        self._answering = thinks is None

    @property
    def reasoning_tokens(self) -> int | None:
        return None if self._thought is None else self._before if self._thought else 0

    @property
    def unsaid(self) -> int:
        """Characters at the end of the text that no event has, and that none may have: see `TextStops.held`."""
        if self._stops is None:
            return 0
        return self._stops.held + sum(part.waiting for part in (self._thinking, self._parser) if part is not None)

    def push(self, tokens: Sequence[int], finish: FinishReason | None, stop: StopMatch | None) -> list[Event]:
        events: list[Event] = []
        at = 0
        # One by one, so that what is counted, and where it stops, is up to the tokens alone.
        while (self._stops is not None or not self._answering) and at < len(tokens) - 1:
            events += self._looked_at(self._read(tokens[at : at + 1], None, None), at + 1)
            at += 1
            if self.stopped is not None:
                return events
        read = self._read(tokens[at:], finish, stop)
        end = 1 if stop is not None and stop.token is not None else 0  # an end token is no part of what is said
        return events + self._looked_at(read, len(tokens) - end, last=finish is not None)

    def _looked_at(self, events: list[Event], tokens: int, *, last: bool = False) -> list[Event]:
        """What may be said of the events of a push, of which so many tokens have been read."""
        if self._stops is None:
            return events
        said = self._stops.push(events, self._seen, last=last)
        if self._stops.found is not None:
            self.stopped = Stopped(self._stops.found, tokens)
        return said

    def _read(self, tokens: Sequence[int], finish: FinishReason | None, stop: StopMatch | None) -> list[Event]:
        self._seen += len(tokens)
        text = self._stream.push(tokens, finish, stop)
        events: list[Event] = [TextDelta(text)] if text else []
        if self._thinking is not None:
            events = [*self._thinking.push(text)] if text else []
            events += self._thinking.finish(cut=finish != "stop") if finish else []
        if self._parser is not None:
            events = [out for event in events for out in self._called(event)]
            events += self._parser.finish(cut=finish != "stop") if finish else []
        if not self._answering:
            self._count(events, len(tokens))
        return events

    def _called(self, event: Event) -> list[Event]:
        assert self._parser is not None
        return self._parser.push(event.text) if isinstance(event, TextDelta) else [event]

    def _count(self, events: Sequence[Event], tokens: int) -> None:
        self._thought = self._thought or any(isinstance(event, ReasoningDelta) for event in events)
        self._answering = any(isinstance(event, TextDelta | CallStart) for event in events)
        self._before += 0 if self._answering else tokens
