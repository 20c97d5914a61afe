"""Stop strings in what an answer says: its text and its reasoning, never the inside of a call.

The engine looks for stop strings in the bytes of tokens, and cannot tell a call from text. Where there may be calls it
is therefore given none, and whoever reads the calls looks here. Knows nothing of tokens but their number.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..grammar.tools import Event, ReasoningDelta, TextDelta


class TextStops:
    """Watches one answer. The match that ends first wins; of those that end together, the one that begins first.

    `found` is the stop string, once there is one; nothing is said from its beginning on. `held` counts the characters
    at the end of what has come that are not said: what may begin a stop string, or all from the match on.
    """

    def __init__(self, stops: Sequence[bytes], min_tokens: int = 0) -> None:
        """Matches that end before there are `min_tokens` do not count."""
        self.found: str | None = None
        self._stops = tuple(stop.decode() for stop in stops)
        self._min_tokens = min_tokens
        self._tail = ""
        self._kind: type[TextDelta] | type[ReasoningDelta] = TextDelta

    @property
    def held(self) -> int:
        return len(self._tail)

    def push(self, events: Sequence[Event], tokens: int, *, last: bool = False) -> list[Event]:
        """What may be said of the events, when there are so many tokens; with `last`, all up to a match."""
        said: list[Event] = []
        for event in events:
            if isinstance(event, TextDelta | ReasoningDelta) and isinstance(event, self._kind):
                said += self._look(event.text, tokens)
            else:
                said += self._release()
                if isinstance(event, TextDelta | ReasoningDelta):
                    self._kind = type(event)
                    said += self._look(event.text, tokens)
                else:
                    said.append(event)
            if self.found is not None:
                return said
        return said + (self._release() if last else [])

    def _look(self, text: str, tokens: int) -> list[Event]:
        old, window = len(self._tail), self._tail + text
        ends: list[tuple[int, int, str]] = []  # end, start, stop string
        for stop in self._stops:
            # A match that ended in the tail has been judged.
            start = window.find(stop, max(0, old - len(stop) + 1))
            if start >= 0:
                ends.append((start + len(stop), start, stop))
        if ends and tokens >= self._min_tokens:
            _, start, self.found = min(ends)
        else:
            start = len(window) - self._begun(window)
        self._tail = window[start:]
        return [self._kind(window[:start])] if start else []

    def _begun(self, window: str) -> int:
        """How many characters at the end may begin a stop string."""
        most = max(map(len, self._stops), default=1) - 1
        return next(
            (size for size in range(min(most, len(window)), 0, -1) if self._starts(window[len(window) - size :])), 0
        )

    def _starts(self, end: str) -> bool:
        return any(len(stop) > len(end) and stop.startswith(end) for stop in self._stops)

    def _release(self) -> list[Event]:
        tail, self._tail = self._tail, ""
        return [self._kind(tail)] if tail else []


class Written:
    """The text of an answer as it was generated, calls included, without what is not certain to be said."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str, unsaid: int) -> str:
        """What is certain, if `unsaid` characters at the end are not."""
        whole = self._held + text
        certain = max(0, len(whole) - unsaid)
        self._held = whole[certain:]
        return whole[:certain]
