"""What the tokens of a choice say: text of the answer, text of reasoning, calls of tools. Event by event, and the
events add up to the same message however the tokens are cut into steps.

Knows nothing of HTTP, and nothing of how any model writes its calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...grammar.reasoning import ReasoningParser
from ...grammar.tools import CallStart, Event, Parser, ReasoningDelta, TextDelta
from ...types import FinishReason, StopMatch
from .services import TextStream


class Reader(Protocol):
    """Reads one choice. `reasoning_tokens` counts those so far; None for a model that is not known to reason."""

    @property
    def reasoning_tokens(self) -> int | None: ...

    def push(self, tokens: Sequence[int], finish: FinishReason | None, stop: StopMatch | None) -> list[Event]:
        """What these tokens add. The call with `finish` is the last."""


class PlainReader:
    """All is text of the answer."""

    reasoning_tokens = None

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream

    def push(self, tokens: Sequence[int], finish: FinishReason | None, stop: StopMatch | None) -> list[Event]:
        text = self._stream.push(tokens, finish, stop)
        return [TextDelta(text)] if text else []


class ChatReader:
    """Text, reasoning and calls. `thinking` splits the reasoning off, `parser` the calls; None: there are none.

    A token counts as reasoning if none has come yet that shows text of the answer, or a call.
    """

    def __init__(
        self, stream: TextStream, thinking: ReasoningParser | None, parser: Parser | None, *, thinks: bool | None
    ) -> None:
        """`thinks`: whether the output begins inside the reasoning part; None: there can be none."""
        self._stream = stream
        self._thinking = thinking
        self._parser = parser
        self._thought = thinks
        self._before = 0  # tokens before the answer
        self._answering = thinks is None

    @property
    def reasoning_tokens(self) -> int | None:
        return None if self._thought is None else self._before if self._thought else 0

    def push(self, tokens: Sequence[int], finish: FinishReason | None, stop: StopMatch | None) -> list[Event]:
        events: list[Event] = []
        at = 0
        while not self._answering and at < len(tokens) - 1:  # one by one, so that the count is that of the tokens alone
            events += self._read(tokens[at : at + 1], None, None)
            at += 1
        return events + self._read(tokens[at:], finish, stop)

    def _read(self, tokens: Sequence[int], finish: FinishReason | None, stop: StopMatch | None) -> list[Event]:
        text = self._stream.push(tokens, finish, stop)
        events: list[Event] = [TextDelta(text)] if text else []
        if self._thinking is not None:
            events = [*self._thinking.push(text)] if text else []
            events += self._thinking.finish() if finish else []
        if self._parser is not None:
            events = [out for event in events for out in self._called(event)]
            events += self._parser.finish() if finish else []
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
