"""One run of tokens in the tree, and the index of a node's children.

Knows nothing of locks' meaning, eviction or the pool: `tree` keeps those right.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple

from ..types import PAGE
from .key import PAGE_BYTES, TOKEN_BYTES, Key, nearest


class Namespace(NamedTuple):
    """What may share a prefix. Namespaces never see each other: each has a root of its own."""

    tenant: str = ""
    adapter: str = ""


class Children:
    """The children of one node, by the bytes of their first page (fewer than a page for a leaf that ends there)."""

    __slots__ = ("by_page", "ordered")

    def __init__(self) -> None:
        self.by_page: dict[bytes, Node] = {}
        self.ordered: list[bytes] = []  # the keys of `by_page`, sorted

    def __len__(self) -> int:
        return len(self.ordered)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.by_page.values())

    def add(self, child: Node) -> None:
        first = child.run[:PAGE_BYTES]
        self.by_page[first] = child
        insort(self.ordered, first)

    def replace(self, child: Node) -> None:
        """Put `child` in the place of the one with the same first page."""
        self.by_page[child.run[:PAGE_BYTES]] = child

    def remove(self, child: Node) -> None:
        first = child.run[:PAGE_BYTES]
        del self.by_page[first]
        del self.ordered[bisect_left(self.ordered, first)]

    def nearest(self, page: bytes) -> tuple[Node | None, int]:
        """The child that shares the most leading tokens with `page`, and how many; (None, 0) if none shares any."""
        if not self.ordered:
            return None, 0
        i, shared = nearest(self.ordered, page)
        return (self.by_page[self.ordered[i]], shared) if shared else (None, 0)

    def within(self, page: bytes) -> list[Node]:
        """The children that end inside a page and hold nothing but a strict prefix of `page`; at most 15."""
        found = (self.by_page.get(page[:size]) for size in range(TOKEN_BYTES, len(page), TOKEN_BYTES))
        return [child for child in found if child is not None]


class Node:
    """The tokens at positions `start` … `end` - 1 of some sequences, and the pages that hold their keys and values.

    Read it, pin it; only the tree writes to it. `locks` counts the pins on this node and below it, `pins` those on
    this node itself. A root has no tokens.
    """

    __slots__ = (
        "alive", "children", "hits", "label", "last_access", "locks", "marks", "namespace", "pages", "parent", "pins",
        "run", "start", "ticket", "worth",
    )  # fmt: skip

    def __init__(self, namespace: Namespace, parent: Node | None, start: int, run: bytes, pages: list[int]) -> None:
        self.namespace = namespace
        self.parent = parent
        self.start = start
        self.run = run
        self.pages = pages
        self.children = Children()
        self.locks = 0
        self.pins = 0
        self.hits = 0
        self.last_access = 0.0
        self.ticket = 0  # number of its valid entry among the eviction candidates; 0: it is none
        self.worth = 0.0  # what evicting it would cost whoever needs it again; see `RadixCache.value`
        self.label = ""  # the caller's, for views
        self.marks: list[int] = []  # of its first whole pages, as many as were asked for; see `marks`
        self.alive = True

    @property
    def tokens(self) -> int:
        return len(self.run) // TOKEN_BYTES

    @property
    def end(self) -> int:
        return self.start + self.tokens

    @property
    def ends_inside(self) -> bool:
        """Whether the last page is only partly filled."""
        return self.tokens % PAGE != 0

    def path(self) -> list[Node]:
        """From the root's child down to this node; empty for a root."""
        found = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            found.append(node)
            node = node.parent
        found.reverse()
        return found

    def prefix(self) -> Key:
        """All tokens from position 0 to `end`. Costs a copy: for listeners and views."""
        return Key(b"".join(node.run for node in self.path()))

    def __repr__(self) -> str:
        held = f"{len(self.pages)} pages, {len(self.children)} children, {self.locks} locks"
        return f"Node({self.start}..{self.end}, {held})"
