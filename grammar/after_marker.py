"""A grammar that holds from a marker on, such as the end of a reasoning part. Before it the output is free.

The marker is a sequence of token ids; it has been generated as soon as the newest tokens are its ids. Until then every
token may come but those that end a generation, and padding: a model that would end inside its reasoning has not
answered yet. Only what follows the marker reaches the grammar.

Knows nothing of engines.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..types import Relaxed
from .base import Compiled, MaskRow, Matcher
from .vocabulary import Vocabulary


class Marker:
    """A marker, and how much of it the newest tokens are (the automaton of Knuth, Morris and Pratt)."""

    def __init__(self, ids: Sequence[int], vocabulary: Vocabulary) -> None:
        if not ids or not all(vocabulary.is_free(token) for token in ids):
            raise ValueError(f"a marker is made of tokens that may come before it, not {list(ids)[:16]}")
        self.ids = tuple(ids)
        self.free = vocabulary.free_mask
        self.is_free = vocabulary.is_free
        self._borders = _borders(self.ids)

    def advance(self, seen: int, token: int) -> int:
        """How many of its ids have been seen after `token`, when `seen` had been before."""
        while seen and self.ids[seen] != token:
            seen = self._borders[seen]
        return seen + (self.ids[seen] == token)


class AfterMarkerMatcher:
    """See `base.Matcher`. `seen` holds, for the start and each free token, how much of the marker had been seen."""

    def __init__(self, marker: Marker, inner: Matcher, seen: list[int], held: int) -> None:
        self._marker = marker
        self._inner = inner
        self._seen = seen
        self._held = held  # tokens that the grammar has accepted

    @property
    def _open(self) -> bool:
        return self._seen[-1] < len(self._marker.ids)

    @property
    def completed(self) -> bool:
        return not self._open and self._inner.completed

    @property
    def terminated(self) -> bool:
        return self._inner.terminated

    def try_accept(self, ids: Sequence[int]) -> int:
        at = 0
        while self._open and at < len(ids):
            if not self._marker.is_free(ids[at]):
                return at
            self._seen.append(self._marker.advance(self._seen[-1], ids[at]))
            at += 1
        if at == len(ids):
            return at
        accepted = self._inner.try_accept(ids[at:])
        self._held += accepted
        return at + accepted

    def fill_mask(self, row: MaskRow) -> None:
        if not self._open:
            self._inner.fill_mask(row)
            return
        free = self._marker.free
        if row.shape != free.shape or row.dtype != np.int32:
            raise ValueError(f"a mask row is {list(free.shape)} int32, not {list(row.shape)} {row.dtype}")
        row[:] = free

    def rollback(self, n: int) -> None:
        accepted = len(self._seen) - 1 + self._held
        if not 0 <= n <= accepted:
            raise ValueError(f"{n} of {accepted} accepted tokens cannot be undone")
        held = min(n, self._held)
        if held:
            self._inner.rollback(held)
            self._held -= held
        if n > held:
            del self._seen[held - n :]

    def fork(self) -> AfterMarkerMatcher:
        return AfterMarkerMatcher(self._marker, self._inner.fork(), list(self._seen), self._held)

    def forced_tokens(self) -> list[int]:
        return [] if self._open else self._inner.forced_tokens()

    def forced_text(self) -> str:
        return "" if self._open else self._inner.forced_text()


class AfterMarker:
    """See `base.Compiled`."""

    def __init__(self, marker: Marker, inner: Compiled) -> None:
        self._marker = marker
        self._inner = inner
        self.size_bytes = inner.size_bytes

    @property
    def relaxed(self) -> tuple[Relaxed, ...]:
        return self._inner.relaxed

    def matcher(self) -> AfterMarkerMatcher:
        return AfterMarkerMatcher(self._marker, self._inner.matcher(), [0], 0)


def _borders(ids: tuple[int, ...]) -> list[int]:
    """Number of ids seen → the longest proper part that is both a start of the marker and an end of what was seen."""
    borders = [0, 0]
    for seen in range(1, len(ids)):
        length = borders[seen]
        while length and ids[length] != ids[seen]:
            length = borders[length]
        borders.append(length + (ids[length] == ids[seen]))
    return borders
