"""The bounded queue of sequences that wait for room, and the order in which they get it.

Order: priority, raised by one for every `ageing_s` waited, so that nobody starves; then whose turn it is among runs
(`runs`); then the longest cached prefix; then requests of one run side by side, those with the most steps before them
first, since the run ends with the longest of its branches; then arrival. Knows the prefix cache; nothing of plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..radix_cache.tree import RadixCache
from ..types import PAGE
from .sequence import Sequence

MATCHED_AT_MOST = 64
"""Sequences at the head whose cached prefix is looked up; the rest keep their order of arrival."""


class WaitingQueue:
    """Sequences in no particular order; `in_order` sorts when there is room for some of them."""

    def __init__(
        self,
        cache: RadixCache,
        ageing_s: float,
        clock: Callable[[], float],
        turn: Callable[[Sequence], tuple[int, bool]],
    ) -> None:
        self._cache = cache
        self._ageing_s = ageing_s
        self._clock = clock
        self._turn = turn
        self._items: dict[int, Sequence] = {}
        self._cached: dict[int, tuple[int, int]] = {}  # order → (tree version, cached tokens)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._items.values())

    def add(self, sequence: Sequence) -> None:
        self._items[sequence.order] = sequence

    def remove(self, sequence: Sequence) -> None:
        self._items.pop(sequence.order, None)
        self._cached.pop(sequence.order, None)

    def in_order(self) -> list[Sequence]:
        now = self._clock()
        items = sorted(self._items.values(), key=lambda s: (-self._rank(s, now), *self._turn(s), s.order))
        head = items[:MATCHED_AT_MOST]
        head.sort(
            key=lambda s: (
                *(-self._rank(s, now), *self._turn(s), -self._cached_tokens(s)),
                *(s.run.first if s.run is not None else 0, -s.request.ahead.steps, s.order),
            )
        )
        return head + items[MATCHED_AT_MOST:]

    def _rank(self, sequence: Sequence, now: float) -> int:
        return sequence.request.priority + int((now - sequence.arrival) / self._ageing_s)

    def _cached_tokens(self, sequence: Sequence) -> int:
        if not sequence.request.reuse:
            return 0
        version, length = self._cached.get(sequence.order, (-1, 0))
        if version != self._cache.version:
            length = self._cache.match(sequence.namespace, sequence.key, sequence.match_limit).length
            self._cached[sequence.order] = (self._cache.version, length)
        return length


def is_being_computed(running: Iterable[Sequence], sequence: Sequence, matched: int) -> bool:
    """One of them will publish at least one more whole page of this one's prefix than is cached now."""
    reach = matched // PAGE * PAGE + PAGE
    if reach > sequence.match_limit:
        return False
    ids = sequence.ids
    return any(
        other.computed < other.prompt_length
        and other.prompt_length >= reach
        and other.request.reuse
        and other.namespace == sequence.namespace
        and other.ids[reach - 1] == ids[reach - 1]
        and other.ids[:reach] == ids[:reach]
        for other in running
    )
