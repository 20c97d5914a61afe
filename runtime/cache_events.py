"""Who is told of what enters and leaves the prefix tree, and the count of what left. Knows pages and nodes only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from ..radix_cache.tree import EvictionCause, Listener, Node
from ..types import EVICTION_AGES, Stats


class Listeners:
    """Tells several, in their order."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = list(listeners)

    def add(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def inserted(self, node: Node, pages: Sequence[int]) -> None:
        for listener in self._listeners:
            listener.inserted(node, pages)

    def evicted(self, node: Node, pages: Sequence[int], cause: EvictionCause) -> None:
        for listener in self._listeners:
            listener.evicted(node, pages, cause)


class EvictionCounts:
    """Pages that left, by cause, and by how long they had not been used."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._causes: dict[str, int] = {}
        self._ages = [0] * (len(EVICTION_AGES) + 1)
        self._seconds = 0.0

    def inserted(self, node: Node, pages: Sequence[int]) -> None:
        """Nothing leaves."""

    def evicted(self, node: Node, pages: Sequence[int], cause: EvictionCause) -> None:
        self._causes[cause] = self._causes.get(cause, 0) + len(pages)
        if cause == "evicted":
            age = max(0.0, self._clock() - node.last_access)
            self._ages[bisect_left(EVICTION_AGES, age)] += len(pages)
            self._seconds += age * len(pages)

    def count(self, stats: Stats) -> None:
        """Put the figures where they are asked for."""
        stats.evictions = dict(self._causes)
        stats.eviction_ages = list(self._ages)
        stats.eviction_age_seconds = self._seconds
