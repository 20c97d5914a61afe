"""Finds stop strings in the bytes of emitted tokens, as they come.

Knows nothing of tokens or text: stop strings and pieces are bytes, so a stop string may begin and end inside tokens
and inside characters.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidParameter
from ..types import StopMatch


class StopMatcher:
    """Watches one output for several stop strings.

    The match that ends first wins; of those that end together, the one that begins first (the longest). Only the last
    bytes are kept, one fewer than the longest stop string has. Raises `InvalidParameter` for an empty stop string.
    """

    __slots__ = ("_keep", "_stops", "_tail")

    def __init__(self, stops: Sequence[bytes]) -> None:
        if not all(stops):
            raise InvalidParameter("stop: a stop string must not be empty", "stop")
        self._stops = tuple(stops)
        self._keep = max(map(len, stops), default=1) - 1
        self._tail = b""

    def push(self, piece: bytes) -> StopMatch | None:
        """Take the next bytes. Returns the first match that ends in them; `trim` counts from its first byte to the end
        of `piece`. A match does not change the state: a caller that goes on all the same just pushes more."""
        if not self._stops:
            return None
        old = len(self._tail)
        window = self._tail + piece
        self._tail = window[-self._keep :] if self._keep else b""
        best: tuple[int, int, bytes] | None = None  # end, start, stop string
        for stop in self._stops:
            # A match that ended before this piece was reported then.
            start = window.find(stop, max(0, old - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        if best is None:
            return None
        return StopMatch(text=best[2].decode("utf-8", "replace"), trim=len(window) - best[1])

    def fork(self) -> StopMatcher:
        """An independent copy, in the same state."""
        copy = StopMatcher.__new__(StopMatcher)
        copy._stops, copy._keep, copy._tail = self._stops, self._keep, self._tail
        return copy
