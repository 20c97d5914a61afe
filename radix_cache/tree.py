"""The prefix tree: match, pin, insert, split and evict over token ids.

Knows nothing of requests, tensors or devices, and never looks into a page: it trusts that the pages it is given hold
the keys and values of the tokens it is given. One thread uses it.

    [0, length)              of a match: may be reused
    [0, length // 16 * 16)   in whole pages of the tree, shared as they are while the node is pinned
    the rest                 in the first slots of one more page, to be copied by the caller

A page has one owner: the pool, a node, or a running sequence. `docs/radix_cache.md` draws the structure rules.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from ..errors import CacheCorrupt
from ..types import PAGE
from .candidates import Candidates
from .ghosts import EvictionCause, Ghosts
from .integrity import check_pages, check_tree
from .key import PAGE_BYTES, TOKEN_BYTES, Ids, Key, common_tokens
from .node import Namespace, Node
from .policy import EvictionPolicy, Lru
from .pool import PagePool

__all__ = ["EvictionCause", "Insertion", "Key", "Listener", "Match", "Namespace", "Node", "RadixCache"]


class Match(NamedTuple):
    """The longest reusable prefix. Valid until the tree next changes; pin `node` to keep it."""

    node: Node  # pin this, and `pages` and the page of `tail` stay
    length: int  # tokens that may be reused
    pages: list[int]  # the length // 16 whole pages, in order; the list is the caller's
    tail: tuple[int, int] | None  # (page, n): the last n = length % 16 tokens are the first of this page, to be copied


class Insertion(NamedTuple):
    node: Node  # covers the whole sequence: pin this, then unpin what was pinned before
    pages: list[int]  # the page table from now on; all of it is the tree's
    duplicates: list[int]  # the caller's pages that the tree had no need of; the caller gives them back


class Listener(Protocol):
    """Told of what enters and leaves the tree, while it happens; must not call the tree back."""

    def inserted(self, node: Node, pages: Sequence[int]) -> None:
        """`pages` are the last pages of `node`, new in the tree. Read `node.namespace`, `node.prefix()`."""

    def evicted(self, node: Node, pages: Sequence[int], cause: EvictionCause) -> None:
        """`pages`, the last of `node`, are about to go back to the pool; `node` still holds them."""


class _Walk(NamedTuple):
    """How far a sequence is in the tree."""

    node: Node  # the deepest node that is covered whole and ends on a page boundary
    length: int  # tokens up to the end of `node`
    pages: list[int]  # the pages of these tokens
    child: Node | None  # the child of `node` that covers more of the sequence
    shared: int  # how many tokens of it


class RadixCache:
    """Token sequences and the pages that hold them. Costs are per call, for n tokens and d nodes on the path:
    match and insert O(n) at the speed of memcmp, plus O(d log siblings); pin and unpin O(d)."""

    def __init__(
        self,
        pool: PagePool,
        policy: EvictionPolicy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        listener: Listener | None = None,
        ghosts: Ghosts | None = None,
    ) -> None:
        self.pool = pool
        self.policy: EvictionPolicy = Lru() if policy is None else policy
        self.listener = listener
        self.ghosts = ghosts
        self._clock = clock
        self._roots: dict[Namespace, Node] = {}
        self._candidates = Candidates(self.policy)
        self._owned: set[int] = set()
        self._evictable = 0
        self._version = 0

    @property
    def cached(self) -> int:
        """Pages that the tree owns."""
        return len(self._owned)

    @property
    def evictable(self) -> int:
        """Pages that `evict` could free now."""
        return self._evictable

    @property
    def version(self) -> int:
        """Changes whenever the result of some match may have changed."""
        return self._version

    def match(self, ns: Namespace, ids: Key | Ids, limit: int | None = None) -> Match:
        """The longest prefix of `ids`, at most `limit` tokens, that the tree holds. Counts as no use of it.

        A prompt's last token must be computed to have its logits: callers pass `limit=len(ids) - 1`.
        """
        data = Key.of(ids).data
        if limit is not None:
            data = data[: max(0, limit) * TOKEN_BYTES]
        node, length, pages, child, shared = self._walk(self._root(ns), data)
        if child is None:
            return Match(node, length, pages, None)
        whole, rest = divmod(shared, PAGE)
        pages += child.pages[:whole]
        return Match(child, length + shared, pages, (child.pages[whole], rest) if rest else None)

    def pin(self, node: Node, *, hit: bool = False) -> None:
        """Keep the pages of `node` and of all nodes above it until `unpin`. Pins are counted. Counts as a use; `hit`
        says that a request reuses the prefix, which is what frequency means. Raises `CacheCorrupt` if `node` is gone.
        """
        self._lock(node)
        now = self._clock()
        above: Node | None = node
        while above is not None:
            above.last_access = now
            above.hits += hit
            above = above.parent

    def unpin(self, node: Node) -> None:
        """Undo one `pin`. Raises `CacheCorrupt` if there is none."""
        if node.pins <= 0:
            raise CacheCorrupt(f"{node} has {node.pins} pins and was unpinned")
        node.pins -= 1
        above: Node | None = node
        while above is not None:
            above.locks -= 1
            if not above.locks:
                self._evictable += len(above.pages)
                self._offer_if_free(above)
            above = above.parent

    def repin(self, old: Node, new: Node) -> None:
        """Move one pin from `old` to `new`, as after an insertion, without counting a use."""
        if old is not new:
            self._lock(new)
            self.unpin(old)

    def insert(self, ns: Namespace, ids: Key | Ids, pages: Sequence[int], *, held: Node | None = None) -> Insertion:
        """Give the tree computed tokens. `pages` covers exactly `ids`: ceil(len(ids) / 16) pages in position order,
        of which those that the tree holds already are the tree's own or become duplicates.

        Whoever goes on writing to the last page inserts whole pages only. `held` is the node that the caller has
        pinned for this sequence, if the copy of its tail has run: then that tail may be superseded although it is
        pinned. An insertion that adds nothing does not change the version. Raises `CacheCorrupt`, and changes nothing,
        if pages and tokens do not fit together or the tree owns a page in another place.
        """
        data = Key.of(ids).data
        given = list(pages)
        tokens = len(data) // TOKEN_BYTES
        if len(given) != -(-tokens // PAGE):
            raise CacheCorrupt(f"insert: {len(given)} pages for {tokens} tokens")
        base, length, table, child, shared = self._walk(self._root(ns), data)
        complete = length + shared == tokens
        if child is not None:
            # A part of a page counts only if it is all that is left of the sequence.
            table += child.pages[: -(-shared // PAGE) if complete else shared // PAGE]
        known = len(table)
        duplicates = [] if given[:known] == table else [a for a, b in zip(given, table, strict=False) if a != b]
        new = given[known:]
        self._refuse_owned(duplicates, new)
        if complete:
            node = base if child is None else child
            self._touch(node)
            return Insertion(node, table, duplicates)
        if child is not None and shared >= PAGE:
            base = self._cut(child, shared, held)
        node = self._attach(base, data[known * PAGE_BYTES :], new)
        return Insertion(node, given if not duplicates else table + new, duplicates)

    def value(self, node: Node, worth: float) -> None:
        """Say how much `node` is worth: among leaves that may go, those of least worth go first, and only among equals
        does the policy decide. No pin: what is worth most goes too, when there is nothing else. A new node is worth 0;
        a node that is split or grows keeps its worth at its end."""
        if worth != node.worth:
            node.worth = worth
            self._offer_if_free(node)

    def evict(self, n: int) -> int:
        """Free `n` pages, or all that can be freed if these are fewer; returns how many.

        Leaves go in the order of the policy. A leaf is trimmed from its end, page by page, so that no more goes than
        is needed; what is left of it is the first candidate for the next call.
        """
        return self._free(n, "evicted")

    def reset(self) -> int:
        """Drop everything that is not pinned; returns the number of pages freed."""
        freed = self._free(self._evictable, "reset")
        for ns, root in list(self._roots.items()):
            if not root.locks and not root.children:
                root.alive = False
                del self._roots[ns]
        return freed

    def roots(self, most: int | None = None) -> list[Node]:
        """One for each namespace that was ever asked for; the first `most`. For views and statistics."""
        return list(islice(self._roots.values(), most))

    def roots_of(self, namespaces: Iterable[Namespace]) -> list[Node]:
        """The roots of those of `namespaces` that were ever asked for."""
        return [root for root in map(self._roots.get, namespaces) if root is not None]

    @property
    def namespaces(self) -> int:
        """How many have a root."""
        return len(self._roots)

    def check_integrity(self, running: Iterable[int]) -> None:
        """Verify that every page is free, in the tree or in `running` (the pages owned by running sequences), and all
        rules of the structure. Raises `CacheCorrupt` with the numbers. Costs a walk over the whole tree."""
        check_pages(self.pool, self._owned, list(running))
        check_tree(self.roots(), self._owned, self._evictable, self._candidates)

    # The walk, and what changes the structure

    def _root(self, ns: Namespace) -> Node:
        root = self._roots.get(ns)
        if root is None:
            root = self._roots[ns] = Node(ns, None, 0, b"", [])
        return root

    @staticmethod
    def _walk(root: Node, data: bytes) -> _Walk:
        node, at, end, pages = root, 0, len(data), list[int]()
        while at < end:
            page = data[at : at + PAGE_BYTES]
            child = node.children.by_page.get(page)
            if child is None:
                child, shared = node.children.nearest(page)
                return _Walk(node, at // TOKEN_BYTES, pages, child, shared)
            run = child.run
            if len(run) % PAGE_BYTES or not data.startswith(run, at):
                return _Walk(node, at // TOKEN_BYTES, pages, child, common_tokens(run, data, at))
            pages += child.pages
            node, at = child, at + len(run)
        return _Walk(node, at // TOKEN_BYTES, pages, None, 0)

    def _refuse_owned(self, duplicates: list[int], new: list[int]) -> None:
        """Raise if a page that must be the caller's belongs to the tree, or is named twice."""
        theirs = set(new)
        theirs.update(duplicates)
        if len(theirs) != len(new) + len(duplicates):
            raise CacheCorrupt(f"insert: {len(new) + len(duplicates)} pages of the caller, {len(theirs)} distinct")
        if not self._owned.isdisjoint(theirs):
            raise CacheCorrupt(f"insert: the tree owns pages {sorted(self._owned & theirs)} in another place already")

    def _cut(self, child: Node, shared: int, held: Node | None) -> Node:
        """A node that ends on the page boundary at or before `shared` tokens of `child`, to hang something new on."""
        if shared == child.tokens and (not child.locks or (child is held and child.locks == 1)):
            # All of the leaf is a prefix of what comes: its last page is needed no more.
            self._trim(child, 1, "superseded")
            return child
        return self._split(child, shared // PAGE)

    def _split(self, node: Node, at: int) -> Node:
        """Cut `node` before its page number `at`. Pins hold all of a node, so `node` itself becomes the lower part and
        the part above is a new node, which is returned."""
        cut = at * PAGE_BYTES
        upper = Node(node.namespace, node.parent, node.start, node.run[:cut], node.pages[:at])
        upper.locks = node.locks
        upper.hits = node.hits
        upper.label = node.label
        upper.marks = node.marks[:at]
        assert node.parent is not None
        node.parent.children.replace(upper)
        node.parent = upper
        node.start += at * PAGE
        node.run = node.run[cut:]
        node.pages = node.pages[at:]
        node.marks = node.marks[at:]
        upper.children.add(node)
        return upper

    def _attach(self, base: Node, run: bytes, pages: list[int]) -> Node:
        """Put `run` under `base`, which ends on a page boundary; returns the node that ends with it."""
        for leaf in base.children.within(run[:PAGE_BYTES]):
            if not leaf.locks:
                self._trim(leaf, 1, "superseded")
        if base.parent is not None and not base.children and base.locks <= 1:
            # A leaf that at most the inserting sequence itself has pinned grows, so that a long sequence that is
            # inserted page by page stays one node.
            node = base
            node.run += run
            node.pages += pages
        else:
            node = Node(base.namespace, base, base.end, run, pages)
            base.children.add(node)
        if not node.locks:
            self._evictable += len(pages)
        self._owned.update(pages)
        self._version += 1
        self._touch(node)
        if self.listener is not None:
            self.listener.inserted(node, pages)
        return node

    def _free(self, n: int, cause: EvictionCause) -> int:
        freed = 0
        while freed < n and (leaf := self._candidates.pop()) is not None:
            count = min(n - freed, len(leaf.pages))
            self._trim(leaf, count, cause)
            freed += count
        return freed

    def _trim(self, leaf: Node, count: int, cause: EvictionCause) -> None:
        """Give the last `count` pages of a leaf to the pool; without pages it leaves the tree. A leaf that is pinned
        keeps at least one."""
        keep = len(leaf.pages) - count
        gone = leaf.pages[keep:]
        if self.listener is not None:
            self.listener.evicted(leaf, gone, cause)
        if self.ghosts is not None:
            self.ghosts.left(leaf, keep, cause, self._clock())
        parent = leaf.parent
        assert parent is not None
        if keep:
            leaf.run = leaf.run[: keep * PAGE_BYTES]
            leaf.pages = leaf.pages[:keep]
            leaf.marks = leaf.marks[:keep]
            self._offer_if_free(leaf)
        else:
            parent.children.remove(leaf)
            self._candidates.withdraw(leaf)
            leaf.alive = False
            self._offer_if_free(parent)
        self._owned.difference_update(gone)
        if not leaf.locks:
            self._evictable -= count
        self._version += 1
        self.pool.give(gone)

    # Locks and use

    def _lock(self, node: Node) -> None:
        if not node.alive:
            raise CacheCorrupt(f"{node} has left the tree and was pinned")
        node.pins += 1
        above: Node | None = node
        while above is not None:
            if not above.locks:
                self._evictable -= len(above.pages)
                self._candidates.withdraw(above)
            above.locks += 1
            above = above.parent

    def _touch(self, node: Node) -> None:
        now = self._clock()
        above: Node | None = node
        while above is not None:
            above.last_access = now
            above = above.parent
        self._offer_if_free(node)

    def _offer_if_free(self, node: Node) -> None:
        """Only leaves are candidates, so no node goes before those below it."""
        if not node.locks and not node.children and node.parent is not None:
            self._candidates.offer(node)
