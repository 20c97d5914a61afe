"""The tree as a picture: the nodes near the roots, as many as are wanted. Reads, and changes nothing."""

from __future__ import annotations

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
    """At most `most` nodes, level by level. Looks at those and at no other, whatever the size of the tree: half a
    microsecond each. `only`: those of one namespace."""
    nodes = cache.roots(most) if only is None else cache.roots_of([only])
    parents, depths, hidden = [-1] * len(nodes), [0] * len(nodes), list[int]()
    namespaces = cache.namespaces if only is None else len(nodes)
    room = most - len(nodes)
    for place, node in enumerate(nodes):  # it grows meanwhile
        children = node.children.by_page
        count = min(len(children), BREADTH, room)
        hidden.append(len(children) - count)
        if count:
            nodes += islice(reversed(children.values()), count)
            parents += [place] * count
            depths += [depths[place] + 1] * count
            room -= count
    return Snapshot(list(map(NodeView._make, zip(nodes, parents, depths, hidden, strict=True))), namespaces)
