"""Drafts from what was said before: the longest end of a text that stood elsewhere, and what followed it there.

Agents repeat themselves: quotes of tool results, edited code, the same JSON record after record. A text is indexed by
its runs of a few tokens, each pointing to the place after its last occurrence; the match is then measured backwards.
A suffix automaton would find the longest match always; this takes a third of its memory and half of its time
(docs/decisions/0012-suffix-index.md).

Knows token ids only.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from .draft import Offer

LONG, SHORT = 8, 3
"""Tokens of the runs that are indexed; a shorter match says nothing."""

MEASURED = 32
"""The longest match that is told from longer ones."""

TOKEN_BYTES = array("i").itemsize

END = -1
"""Between two texts."""


class SuffixIndex:
    """Token ids that grow at their end; of more than `capacity` only the newest half is kept."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._ids = array("i")
        self._after: dict[bytes, int] = {}  # a run of tokens → position after its last occurrence
        self._indexed = 0  # runs that end before this position are in the index

    def __len__(self) -> int:
        return len(self._ids)

    def extend(self, ids: Iterable[int]) -> None:
        """More of the text that is at the end."""
        self._ids.extend(ids)
        if len(self._ids) > self._capacity:
            self._ids = self._ids[-(self._capacity // 2) :]
            self._after.clear()
            self._indexed = 0
        self._index()

    def close(self) -> None:
        """The text is over; another one follows."""
        self.extend((END,))

    def offer(self, tail: Sequence[int], limit: int) -> Offer | None:
        """What followed the longest known end of `tail`, at most `limit` tokens."""
        last = array("i", tail[-LONG:])
        for size in (LONG, SHORT):
            at = self._after.get(last[-size:].tobytes()) if len(last) >= size else None
            if at is None:
                continue
            tokens = self._ids[at : at + limit].tolist()
            if END in tokens:
                tokens = tokens[: tokens.index(END)]
            if tokens:
                return Offer(tokens, self._measure(tail, at, size))
        return None

    def _measure(self, tail: Sequence[int], at: int, size: int) -> int:
        """How many tokens before `at` are the end of `tail`."""
        longest = min(len(tail), at, MEASURED)
        ids = self._ids
        while size < longest and ids[at - size - 1] == tail[-size - 1]:
            size += 1
        return size

    def _index(self) -> None:
        """Runs that are followed by something: the last one of the text is not, yet."""
        first, end = self._indexed, len(self._ids)
        start = max(0, first - LONG)
        data = self._ids[start:].tobytes()
        after = self._after
        for size in (LONG, SHORT):
            width = size * TOKEN_BYTES
            for at in range(max(first, size), end):
                stop = (at - start) * TOKEN_BYTES
                after[data[stop - width : stop]] = at
        self._indexed = end


class Memory:
    """One index for each (tenant, program), the least recently used forgotten first."""

    def __init__(self, capacity: int = 1 << 14, programs: int = 16) -> None:
        self._capacity = capacity
        self._programs = programs
        self._known: dict[tuple[str, str], SuffixIndex] = {}

    def remember(self, tenant: str, program: str, ids: Sequence[int]) -> None:
        """A text that was generated."""
        index = self._known.pop((tenant, program), None) or SuffixIndex(self._capacity)
        self._known[tenant, program] = index  # the newest last
        index.extend(ids)
        index.close()
        if len(self._known) > self._programs:
            del self._known[next(iter(self._known))]

    def offer(self, tenant: str, program: str, tail: Sequence[int], limit: int) -> Offer | None:
        """As `SuffixIndex.offer`, from what the program said before."""
        index = self._known.get((tenant, program))
        return None if index is None else index.offer(tail, limit)
