"""Which unpinned leaf goes first.

Knows what a node shows of its use, not the tree: only leaves that may go are ever ranked.
"""

from __future__ import annotations

from typing import Protocol


class Used(Protocol):
    """What a policy sees of a node."""

    @property
    def last_access(self) -> float:
        """When it was last pinned or inserted, by the cache's clock."""

    @property
    def hits(self) -> int:
        """How many requests reused it."""

    @property
    def start(self) -> int:
        """Position of its first token."""

    @property
    def tokens(self) -> int:
        """Number of its tokens."""


class EvictionPolicy(Protocol):
    def rank(self, node: Used) -> tuple[float, ...]:
        """The lowest rank is evicted first; all ranks of one policy have the same length. Read when the node becomes a
        candidate, and again whenever it has been used since."""


class Lru:
    """The least recently used goes first."""

    def rank(self, node: Used) -> tuple[float, ...]:
        return (node.last_access,)


class Lfu:
    """The least often reused goes first; among equals the least recently used."""

    def rank(self, node: Used) -> tuple[float, ...]:
        return (node.hits, node.last_access)
