"""Makes the views of the cache, between two steps. Reads, and changes nothing.

What a caller may see is decided elsewhere.
"""

from __future__ import annotations

from ..radix_cache.reuse import ReuseDistances
from ..radix_cache.snapshot import snapshot
from ..radix_cache.tree import Namespace, RadixCache
from ..types import PAGE
from .cache_view import Reuse, SizePoint, Tree, TreeNode
from .runs import Runs

MOST_NODES = 500
"""Nodes of one snapshot. It looks at these and at no others: half a millisecond between two steps, of two that it may
take."""


def view_tree(cache: RadixCache, runs: Runs, now: float, tenant: str | None = None) -> Tree:
    """`tenant`: only what is this one's."""
    seen = snapshot(cache, MOST_NODES, None if tenant is None else Namespace(tenant))
    nodes = []
    for node, parent, depth, hidden in seen.nodes:
        leases, program = 0, node.label
        for run in runs.holders(node):
            leases, program = leases + 1, program or run.program.name
        nodes.append(
            TreeNode(
                parent=None if parent < 0 else parent,
                depth=depth,
                start=node.start,
                tokens=node.tokens,
                pages=len(node.pages),
                idle_s=max(0.0, now - node.last_access),  # to round it would cost more than all the rest
                locks=node.locks,
                hits=node.hits,
                leases=leases,
                hidden=hidden,
                program=program,
                tenant=node.namespace.tenant,
            )
        )
    return Tree(nodes, seen.namespaces, cache.pool.total, cache.cached, cache.pool.free)


def view_reuse(reuse: ReuseDistances, pages: int) -> Reuse:
    """For sizes up to four times that of the cache as it is, or more if that would help."""
    points = [SizePoint(point.pages, point.pages * PAGE, round(point.hit_rate, 6)) for point in reuse.curve(4 * pages)]
    return Reuse(points, pages, reuse.asked, reuse.one_in)
