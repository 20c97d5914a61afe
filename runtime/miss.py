"""Why the prefix cache did not have more of a prompt: looked into once, when its sequence gets room.

Knows sequences, the tree and its ghosts; nothing of text, messages or who may see what. Costs some microseconds, and
a tenth of a millisecond at most where a prompt has left a path that is cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from ..radix_cache.key import PAGE_BYTES, TOKEN_BYTES, common_tokens
from ..radix_cache.marks import first_mark, marks_after, marks_to
from ..radix_cache.reuse import ReuseDistances
from ..radix_cache.tree import EvictionCause, Match, Node, RadixCache
from ..types import PAGE
from .trace import Miss

if TYPE_CHECKING:
    from .sequence import Sequence

SHOWN = 24
"""Token ids that are told of each side of a divergence."""

COMPARED = 1024
"""Tokens after a divergence that are looked at for what both sides have in common."""

ALIKE = 8
"""Tokens in a row that two texts share when they are alike there."""

LITTLE = 8
"""Prompts that share less than a page at their beginning, and less than this part of what follows, have nothing to do
with each other."""

NAMESPACES = 16
"""Other namespaces that are looked into."""

NEVER_OR_NO_MORE: Final = ("cold", "diverged", "evicted")
"""Causes that are told apart from being in another namespace."""

_REASONS: Final[dict[EvictionCause, str]] = {"evicted": "pressure", "superseded": "superseded", "reset": "reset"}


class WhyMiss:
    """Told of sequences that get room, of prefixes that are kept, and of sequences that are over.

    Until a sequence is over only its own namespace is looked into: what others hold has no part in how long it takes to
    its last token."""

    def __init__(self, cache: RadixCache, clock: Callable[[], float]) -> None:
        self.reuse = ReuseDistances()
        self._cache = cache
        self._clock = clock

    def admitted(self, sequence: Sequence, match: Match, disk: int, running: Iterable[Sequence]) -> None:
        """Note the miss of a sequence that begins with `match`, `disk` tokens of which have come from disk."""
        data, boundary = sequence.key.data, match.length // PAGE
        known = marks_to(match.node, boundary * PAGE)
        if sequence.request.reuse:
            last = known[-1] if known else first_mark(sequence.namespace)
            self.reuse.ask(known + marks_after(last, data[boundary * PAGE_BYTES :]))
            match.node.label = match.node.label or sequence.request.origin.program
        found = self._miss(sequence, match, known, running)
        sequence.notes.miss = replace(
            found,
            matched=match.length,
            copied=match.tail[1] if match.tail else 0,
            disk=disk,
            ours=tuple(sequence.ids[found.at : found.at + SHOWN]),
        )

    def kept(self, sequence: Sequence, node: Node) -> None:
        """What was computed of a sequence stays in the tree, up to `node`."""
        self.reuse.fill(marks_to(node, sequence.computed))
        node.label = sequence.request.origin.program or node.label

    def over(self, sequence: Sequence) -> None:
        """All its tokens are there. Note what of its prompt other namespaces have, for operators."""
        found = sequence.notes.miss
        if found is not None and found.cause in NEVER_OR_NO_MORE:
            sequence.notes.miss = replace(found, elsewhere=self._elsewhere(sequence, found.at))

    # ---- the causes, in the order in which they count ----------------------------------------------------------------

    def _miss(self, sequence: Sequence, match: Match, known: list[int], running: Iterable[Sequence]) -> Miss:
        at = match.length
        if not sequence.request.reuse:
            return Miss(at=0, cause="disabled", lost=self._longest(sequence, sequence.match_limit))
        if (found := self._limited(sequence, at)) is not None:
            return found
        if lost := self._in_flight(sequence, at, running):
            return Miss(at=at, cause="in_flight", reason="sibling", lost=lost)
        return self._evicted(sequence, at, known) or self._new(sequence, match)

    def _longest(self, sequence: Sequence, limit: int) -> int:
        return self._cache.match(sequence.namespace, sequence.key, limit).length

    def _limited(self, sequence: Sequence, at: int) -> Miss | None:
        """All that may be reused is reused, or there is no room to hold on to it."""
        limit = sequence.match_limit
        if at >= limit:
            lost = self._longest(sequence, len(sequence.ids) - 1) - at
            return Miss(at=at, cause="limit", reason="prompt_logprobs" if lost else "last", lost=lost)
        if not at and (lost := self._longest(sequence, limit)):
            return Miss(at=0, cause="limit", reason="no_room", lost=lost)
        return None

    @staticmethod
    def _in_flight(sequence: Sequence, at: int, running: Iterable[Sequence]) -> int:
        """Tokens more that running sequences have, which the tree does not have yet."""
        ids, most = sequence.ids, at
        for other in running:
            if (
                other.namespace == sequence.namespace  # first: nothing of another's is looked at
                and other.request.reuse
                and len(other.ids) > at
                and other.ids[at] == ids[at]
                and other.ids[:at] == ids[:at]
            ):
                most = max(most, common_tokens(other.key.data, sequence.key.data))
        return min(most, sequence.match_limit) - at

    def _evicted(self, sequence: Sequence, at: int, known: list[int]) -> Miss | None:
        ghosts = self._cache.ghosts
        if ghosts is None or not len(ghosts):
            return None
        last = known[-1] if known else first_mark(sequence.namespace)
        end = sequence.match_limit * TOKEN_BYTES
        tokens, ghost = ghosts.follow(last, sequence.key.data[len(known) * PAGE_BYTES : end])
        lost = len(known) * PAGE + tokens - at
        if ghost is None or lost <= 0:
            return None
        age = max(0.0, self._clock() - ghost.left)
        return Miss(
            at=at, cause="evicted", reason=_REASONS[ghost.cause], age_s=age, idle_s=max(0.0, ghost.idle_s), lost=lost
        )

    def _new(self, sequence: Sequence, match: Match) -> Miss:
        """Never there: on a way of its own from here, or from the start."""
        at = match.length
        theirs = _nearest(match, sequence.key.data)
        if not theirs:
            return Miss(at=at, cause="cold", reason="goes_on" if at else "empty")
        alike = shared_tokens(sequence.key.data[at * TOKEN_BYTES :], theirs)
        if at < PAGE and LITTLE * alike < min(len(sequence.ids) - at, COMPARED):
            return Miss(at=at, cause="cold", reason="unlike")
        shown = np.frombuffer(theirs[: SHOWN * TOKEN_BYTES], np.int32).tolist()
        return Miss(at=at, cause="diverged", lost=alike, theirs=tuple(shown))

    def _elsewhere(self, sequence: Sequence, at: int) -> int:
        """The most tokens that another namespace has, if these are a page more."""
        others = (root.namespace for root in self._cache.roots(NAMESPACES))
        matches = (
            self._cache.match(other, sequence.key, sequence.prompt_length - 1).length
            for other in others
            if other != sequence.namespace
        )
        most = max(matches, default=0)
        return most if most >= at + PAGE else 0


def _nearest(match: Match, data: bytes) -> bytes:
    """Up to `COMPARED` tokens of the cached path that has most in common with `data`, from the end of the match on.
    Where several are equally near it is the newest."""
    node, at = match.node, match.length * TOKEN_BYTES
    run = node.run[at - node.start * TOKEN_BYTES :]
    parts: list[bytes] = [run] if run else []
    left = COMPARED * TOKEN_BYTES - len(run)
    if not run and len(node.children):
        below, _ = node.children.nearest(data[at : at + PAGE_BYTES])
        node = below or _newest(node)
        parts.append(node.run)
        left -= len(node.run)
    while left > 0 and len(node.children):
        node = _newest(node)
        parts.append(node.run)
        left -= len(node.run)
    return b"".join(parts)[: COMPARED * TOKEN_BYTES]


def _newest(node: Node) -> Node:
    return next(reversed(node.children.by_page.values()))


def shared_tokens(ours: bytes, theirs: bytes) -> int:
    """How many of our tokens stand in theirs too, in rows of at least `ALIKE`, wherever these are."""
    a, b = _rows(ours), _rows(theirs)
    if not a.size or not b.size:
        return 0
    b.sort()
    begins = b[np.minimum(np.searchsorted(b, a), b.size - 1)] == a
    change = np.zeros(a.size + ALIKE, np.int64)
    change[: a.size] += begins
    change[ALIKE:] -= begins
    return int(np.count_nonzero(np.cumsum(change)))


def _rows(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """A hash of each `ALIKE` tokens in a row."""
    ids = np.frombuffer(data[: COMPARED * TOKEN_BYTES], np.int32).astype(np.uint64)
    if ids.size < ALIKE:
        return ids[:0]
    rows = np.zeros(ids.size - ALIKE + 1, np.uint64)
    for i in range(ALIKE):
        rows = rows * np.uint64(0x9E3779B97F4A7C15) + ids[i : i + rows.size]
    return rows
