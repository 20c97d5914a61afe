"""The pages of one sequence while it runs.

Knows page numbers and the prefix cache; nothing of tensors, rows or scheduling. The ledger of `pages`, as half-open
ranges:

    [0, shared)           owned by the tree, held by our pin on `node`
    [shared, len(pages))  owned by us: published to the tree, or given back to the pool

Pages may be given away while a pass that uses them is still under way: passes run in the order of their plans, so
whoever gets such a page writes to it later.
"""

from __future__ import annotations

from ..radix_cache.tree import Insertion, Key, Match, Namespace, Node, RadixCache
from ..types import PAGE
from .plan import Copy


class PageTable:
    """One running sequence's claim on the pool: perhaps `adopt`, then `grow` and `publish`, and `release` once."""

    __slots__ = ("cache", "namespace", "node", "pages", "shared")

    def __init__(self, cache: RadixCache, namespace: Namespace) -> None:
        self.cache = cache
        self.namespace = namespace
        self.pages: list[int] = []
        self.shared = 0
        self.node: Node | None = None

    def adopt(self, match: Match) -> Copy | None:
        """Share the pages of a match. A part of a page is reused by the copy that is returned; the caller keeps the
        match's node pinned until that copy has run. Needs one free page then; raises `OutOfPages`."""
        copy = None
        if match.tail is not None:
            page, length = match.tail
            (fresh,) = self.cache.pool.take(1)
            copy = Copy(page, fresh, length)
        self.cache.pin(match.node, hit=True)
        self.node = match.node
        self.pages = list(match.pages)
        self.shared = len(self.pages)
        if copy is not None:
            self.pages.append(copy.dst)
        return copy

    def missing(self, tokens: int) -> int:
        """Pages that `grow(tokens)` would take."""
        return max(0, -(-tokens // PAGE) - len(self.pages))

    def grow(self, tokens: int) -> None:
        """Cover positions 0 … tokens - 1. Raises `OutOfPages` and changes nothing if the pool has too few."""
        missing = self.missing(tokens)
        if missing:
            self.pages += self.cache.pool.take(missing)

    def publish(self, key: Key, computed: int) -> None:
        """Give the tree every whole page of the first `computed` tokens, so that others share them from now on."""
        whole = computed // PAGE
        if whole <= self.shared:
            return
        insertion = self._insert(key.prefix(whole * PAGE), self.pages[:whole])
        if self.node is None:
            self.cache.pin(insertion.node)
        else:
            self.cache.repin(self.node, insertion.node)
        self.node = insertion.node
        self.pages[:whole] = insertion.pages
        self.shared = whole
        self.cache.pool.give(insertion.duplicates)

    def _insert(self, key: Key, pages: list[int]) -> Insertion:
        return self.cache.insert(self.namespace, key, pages, held=self.node)

    def release(self, key: Key, computed: int, *, keep: bool) -> Node | None:
        """Let go of everything. With `keep`, what was computed stays in the tree, the last part of a page included, and
        the node that ends with it is returned."""
        kept = None
        used = -(-computed // PAGE)
        if keep and computed > 0:
            insertion = self._insert(key.prefix(computed), self.pages[:used])
            kept = insertion.node
            self.cache.pool.give(insertion.duplicates)
            self.cache.pool.give(self.pages[used:])
        else:
            self.cache.pool.give(self.pages[self.shared :])
        if self.node is not None:
            self.cache.unpin(self.node)
        self.node = None
        self.pages = []
        self.shared = 0
        return kept

    @property
    def owned(self) -> list[int]:
        """The pages that are ours and not the tree's."""
        return self.pages[self.shared :]
