"""One run of an agent program, as the scheduler knows it.

Knows nodes of the tree; nothing of sequences or of other runs.
"""

from __future__ import annotations

from typing import NamedTuple

from ..radix_cache.tree import Node
from ..types import PAGE
from .run_records import Program

WORTH = 1e12
"""Of the oldest run's lease; the k-th run's is less by k."""


class RunKey(NamedTuple):
    tenant: str
    run: str


class Lease:
    """The tokens up to the end of `node`, as it was."""

    __slots__ = ("end", "node")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.end = node.end

    @property
    def whole(self) -> bool:
        """Nothing of it has been evicted; the last part of a page may have become part of a longer prefix."""
        return self.node.alive and self.node.end > self.end - PAGE


class Run:
    """A run that has requests under way, or leases."""

    __slots__ = (
        "came_back", "first", "idle_since", "key", "leases", "open", "over", "pause_s", "program", "resident", "since",
        "width",
    )  # fmt: skip

    def __init__(self, key: RunKey, program: Program, first: int) -> None:
        self.key = key
        self.program = program
        self.first = first  # order of its first request
        self.open: set[int] = set()  # orders of the requests under way
        self.leases: list[Lease] = []  # the newest last
        self.width = 1  # the most requests that were under way at once: so many prefixes it may stand on
        self.came_back = False
        self.resident = False
        self.since = 0.0  # when it got its place
        self.idle_since = 0.0
        self.pause_s = 0.0  # how long it said that it would stay away
        self.over = False  # it said that nothing more will come

    @property
    def worth(self) -> float:
        return WORTH - self.first
