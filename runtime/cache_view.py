"""How the cache looks from outside: a snapshot of the tree, and the hit rate that other sizes would have.

Structs only, that cross to the API process; never a token or a text. `cache_look` makes them.
"""

from __future__ import annotations

from msgspec import Struct

from ..types import PAGE


class TreeNode(Struct, omit_defaults=True, gc=False):
    """A run of tokens of the tree. `parent` is the index of its parent's entry; null: a root, which has no tokens.

    `locks` counts running requests that use it; `leases` runs that will go on from its end. `hits` counts requests
    that reused it, `hidden` children that are not shown. `program` is of the last request that named one.
    """

    parent: int | None
    depth: int
    start: int
    tokens: int
    pages: int
    idle_s: float
    locks: int = 0
    hits: int = 0
    leases: int = 0
    hidden: int = 0
    program: str = ""
    tenant: str = ""


class Tree(Struct):
    """The nodes nearest to the roots, parents before children."""

    nodes: list[TreeNode]
    tenants: int  # that have a root
    pages_total: int
    pages_cached: int
    pages_free: int
    page_tokens: int = PAGE


class SizePoint(Struct):
    """`hit_rate` is the share of the asked-for pages that a cache of this size would have had."""

    pages: int
    tokens: int
    hit_rate: float


class Reuse(Struct):
    """From the distances between uses of the same page, of which one in `one_in` is followed. Assumes LRU."""

    points: list[SizePoint]
    pages_total: int  # of the cache as it is
    asked_pages: int
    one_in: int
    page_tokens: int = PAGE
