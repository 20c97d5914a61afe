"""The leaves that may be evicted, in the order of the policy.

Knows nothing of the tree: who is a candidate, `tree` decides.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from .node import Node
from .policy import EvictionPolicy


class Candidates:
    """A heap whose outdated entries stay until they surface. All operations cost O(log n), amortised.

    An entry is valid while its number is the node's `ticket`. Withdrawing a node, or offering it again with a new rank,
    only changes the ticket. When outdated entries outnumber the valid ones, the heap is built anew.
    """

    __slots__ = ("_count", "_heap", "_policy", "_serial")

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[tuple[float, ...], int, Node]] = []
        self._serial = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def offer(self, node: Node) -> None:
        """Make `node` a candidate, or rank it anew if it is one. Equal ranks go in the order of being offered."""
        if not node.ticket:
            self._count += 1
        self._serial += 1
        node.ticket = self._serial
        heappush(self._heap, ((node.worth, *self._policy.rank(node)), self._serial, node))
        if len(self._heap) > 2 * self._count + 64:
            self._heap = [entry for entry in self._heap if entry[2].ticket == entry[1]]
            heapify(self._heap)

    def withdraw(self, node: Node) -> None:
        """`node` is no candidate any more; nothing happens if it was none."""
        if node.ticket:
            node.ticket = 0
            self._count -= 1

    def pop(self) -> Node | None:
        """The candidate of the lowest rank, withdrawn; None if there is none."""
        while self._heap:
            _, serial, node = heappop(self._heap)
            if node.ticket == serial:
                self.withdraw(node)
                return node
        return None

    def valid(self) -> list[Node]:
        """All candidates, each as often as it has a valid entry. For integrity checks."""
        return [node for _, serial, node in self._heap if node.ticket == serial]
