"""The tree as a picture: the nodes near the roots, as many as are wanted. Reads, and changes nothing."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

from .node import Namespace, Node
from .tree import RadixCache

BREADTH = 256
"""Children of one node that are shown at most: the newest."""


class NodeView(NamedTuple):
    """`parent` is the index of its parent's view, -1 for a root. `hidden` counts the children that are not shown."""

    node: Node
    parent: int
    depth: int  # of the tree: a root has 0
    hidden: int


class Snapshot(NamedTuple):
    nodes: list[NodeView]  # parents before their children
    namespaces: int  # in all; those that were first asked for are shown


def snapshot(cache: RadixCache, most: int, only: Namespace | None = None) -> Snapshot:
    """At most `most` nodes, level by level: about a microsecond each. `only`: those of one namespace."""
    roots = [root for root in cache.roots() if only in (None, root.namespace)]
    pending = deque((root, -1, 0) for root in roots[:most])
    views: list[NodeView] = []
    room = most - len(pending)
    while pending:
        node, parent, depth = pending.popleft()
        shown = list(islice(reversed(node.children.by_page.values()), min(BREADTH, room)))
        room -= len(shown)
        place = len(views)
        views.append(NodeView(node, parent, depth, len(node.children) - len(shown)))
        pending.extend((child, place, depth + 1) for child in shown)
    return Snapshot(views, len(roots))
