"""What was evicted, and when: so that a miss can be told from what was never there.

A ring of the pages that left the tree last, by their marks. Tokens and pages are not kept, so a ghost says that exactly
these tokens were there, and nothing of what they were. Knows nothing of requests.
"""

from __future__ import annotations

from array import array
from typing import Final, Literal, NamedTuple

from .key import PAGE_BYTES, TOKEN_BYTES
from .marks import mark_before, marks_of, next_mark
from .node import Node

EvictionCause = Literal["evicted", "superseded", "reset"]

GHOST_BYTES: Final = 240
"""What one ghost takes at most, while the index grows: its place in the ring, its entry in the index, both numbers of
that. Two thirds of it later on."""

GHOSTS: Final = 32_768
"""Eight megabytes of them, for half a million tokens that are gone."""

_CAUSES: Final[tuple[EvictionCause, ...]] = ("evicted", "superseded", "reset")


class Ghost(NamedTuple):
    """A page that is gone. Times are the tree's clock's."""

    cause: EvictionCause
    left: float
    idle_s: float  # how long it had not been used when it went


class Ghosts:
    """Those of the last `most` pages that left. Noting one and finding one cost less than a microsecond."""

    __slots__ = ("_causes", "_idle", "_left", "_marks", "_next", "_slots", "most")

    def __init__(self, most: int = GHOSTS) -> None:
        if most < 1:
            raise ValueError(f"a ring of {most} ghosts")
        self.most = most
        self._slots: dict[int, int] = {}  # mark → its newest slot
        self._next = 0
        self._marks = array("q")
        self._left = array("d")
        self._idle = array("f")
        self._causes = bytearray()

    def __len__(self) -> int:
        return len(self._slots)

    def left(self, leaf: Node, keep: int, cause: EvictionCause, now: float) -> None:
        """The pages of `leaf` after the first `keep` are about to go."""
        idle_s = now - leaf.last_access
        marks = marks_of(leaf)
        if leaf.ends_inside:
            rest = leaf.run[len(marks) * PAGE_BYTES :]
            self._note(next_mark(marks[-1] if marks else mark_before(leaf), rest), cause, now, idle_s)
        for mark in reversed(marks[keep:]):  # the first pages last: they are what is looked for first
            self._note(mark, cause, now, idle_s)

    def _note(self, mark: int, cause: EvictionCause, now: float, idle_s: float) -> None:
        slot = self._next
        if slot == len(self._marks):
            self._marks.append(mark)
            self._left.append(now)
            self._idle.append(idle_s)
            self._causes.append(_CAUSES.index(cause))
        else:
            before = self._marks[slot]
            if self._slots.get(before) == slot:
                del self._slots[before]
            self._marks[slot], self._left[slot], self._idle[slot] = mark, now, idle_s
            self._causes[slot] = _CAUSES.index(cause)
        self._slots[mark] = slot
        self._next = (slot + 1) % self.most

    def find(self, mark: int) -> Ghost | None:
        """When the page last left that ends the prefix marked so."""
        slot = self._slots.get(mark)
        if slot is None:
            return None
        return Ghost(_CAUSES[self._causes[slot]], self._left[slot], self._idle[slot])

    def follow(self, last: int, run: bytes) -> tuple[int, Ghost | None]:
        """How many leading tokens of `run` were there once, and the ghost of the first page of them. `run` begins on a
        page boundary, after the page marked `last`."""
        first: Ghost | None = None
        if not self._slots:
            return 0, first
        at = 0
        while len(page := run[at : at + PAGE_BYTES]) == PAGE_BYTES:
            mark = next_mark(last, page)
            ghost = self.find(mark)
            if ghost is None:
                break
            first = first or ghost
            last, at = mark, at + PAGE_BYTES
        for size in range(min(len(page), PAGE_BYTES - TOKEN_BYTES), 0, -TOKEN_BYTES):
            ghost = self.find(next_mark(last, page[:size]))
            if ghost is not None:
                return (at + size) // TOKEN_BYTES, first or ghost
        return at // TOKEN_BYTES, first
