"""What must hold of the pool and the tree after every operation.

Knows nothing of how the tree reaches such a state. Everything is recomputed from the nodes; nothing is repaired.
"""

from __future__ import annotations

from ..errors import CacheCorrupt
from ..types import PAGE
from .candidates import Candidates
from .key import PAGE_BYTES, TOKEN_BYTES, common_tokens
from .node import Node
from .pool import PagePool


def check_pages(pool: PagePool, owned: set[int], running: list[int]) -> None:
    """Every page is free, in the tree or with a running sequence, and in one place only."""
    free = pool.free_pages()
    places = f"{len(free)} free + {len(owned)} cached + {len(running)} running, {pool.total} in all"
    if len(free) + len(owned) + len(running) != pool.total:
        raise CacheCorrupt(f"pages are not conserved: {places}")
    everywhere = {*free, *owned, *running}
    if len(everywhere) != pool.total:
        raise CacheCorrupt(f"pages are in two places: {places}, {len(everywhere)} distinct")
    if everywhere and not 0 <= min(everywhere) <= max(everywhere) < pool.total:
        raise CacheCorrupt(f"pages {min(everywhere)} to {max(everywhere)} in a pool of {pool.total}")


def check_tree(roots: list[Node], owned: set[int], evictable: int, candidates: Candidates) -> None:
    """Structure, index, locks, and the two sums kept beside them."""
    pages: list[int] = []
    free_pages = 0
    free_leaves: list[Node] = []
    for root in roots:
        if root.parent is not None or root.run or root.pages or root.start:
            raise CacheCorrupt(f"{root} is a root with tokens or a parent")
        pending = [root]
        while pending:  # no recursion: a path may be longer than Python's stack
            node = pending.pop()
            _check_locks(node)
            _check_children(node)
            if node is not root:
                _check_run(node)
                pages += node.pages
                if not node.locks:
                    free_pages += len(node.pages)
                    if not node.children:
                        free_leaves.append(node)
            pending += node.children
    if len(pages) != len(owned) or set(pages) != owned:
        raise CacheCorrupt(f"{len(pages)} pages in nodes, {len(set(pages))} distinct, {len(owned)} counted as cached")
    if free_pages != evictable:
        raise CacheCorrupt(f"{free_pages} pages in unpinned nodes, {evictable} counted as evictable")
    valid = candidates.valid()
    if len(valid) != len(candidates) or {*map(id, valid)} != {*map(id, free_leaves)} or len(valid) != len(free_leaves):
        raise CacheCorrupt(f"{len(free_leaves)} unpinned leaves, {len(valid)} candidates, {len(candidates)} counted")


def _check_locks(node: Node) -> None:
    below = sum(child.locks for child in node.children)
    if node.pins < 0 or node.locks != node.pins + below:
        raise CacheCorrupt(f"{node}: {node.locks} locks, but {node.pins} pins on it and {below} locks below")
    if not node.alive:
        raise CacheCorrupt(f"{node} is in the tree and counts as gone")


def _check_run(node: Node) -> None:
    if not node.tokens or len(node.run) % TOKEN_BYTES or len(node.pages) != -(-node.tokens // PAGE):
        raise CacheCorrupt(f"{node}: {len(node.run)} bytes in {len(node.pages)} pages")
    if node.start % PAGE or node.parent is None or node.start != node.parent.end:
        raise CacheCorrupt(f"{node} does not begin on a page boundary at the end of {node.parent}")
    if node.ends_inside and node.children:
        raise CacheCorrupt(f"{node} ends inside a page and has children")


def _check_children(node: Node) -> None:
    children = node.children
    if children.ordered != sorted(children.by_page):
        raise CacheCorrupt(f"{node}: {len(children.ordered)} keys in order, {len(children.by_page)} indexed")
    for first, child in children.by_page.items():
        if child.parent is not node or child.namespace != node.namespace or child.run[:PAGE_BYTES] != first:
            raise CacheCorrupt(f"{child} is indexed wrongly under {node}")
    for left, right in zip(children.ordered, children.ordered[1:], strict=False):
        # Neighbours in order share the most, so these pairs stand for all.
        if common_tokens(left, right) >= PAGE:
            raise CacheCorrupt(f"{node}: two children share a whole page")
