"""What follows from a graph: pure functions, each of which answers one question.

A *step* is a node that asks a model. Its *prefix* is all tokens up to its end, from which others may go on. A program
waits where it reads a value, so what it writes after that (in the same task, if it is async) comes after the step that
makes the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from msgspec import structs

from ..prompts.transcript import Open
from .graph import Graph, Node, Said, Written
from .placeholders import Ref


def merged(graph: Graph) -> Graph:
    """With texts that stand side by side in a branch as one text node, as they are encoded."""
    into: dict[int, int] = {}  # a text → the last text of its neighbourhood
    waiting: dict[str, list[int]] = {}  # branch → texts since its last step or fork
    for node in graph.nodes:
        if node.kind == "text":
            waiting.setdefault(node.branch, []).append(node.id)
            into |= dict.fromkeys(waiting[node.branch], node.id)
        elif node.is_step or node.kind == "fork":
            waiting.pop(node.branch, None)
    parts: dict[int, list[Node]] = {}
    for node in graph.nodes:
        parts.setdefault(into.get(node.id, node.id), []).append(node)
    number = {last: i for i, last in enumerate(sorted(parts))}
    new = {node.id: number[into.get(node.id, node.id)] for node in graph.nodes}
    nodes = tuple(_joined(parts[last], number[last], new) for last in sorted(parts))
    return replace(graph, nodes=_relinked(graph, nodes, new))


def _joined(group: list[Node], number: int, new: dict[int, int]) -> Node:
    first, last = group[0], group[-1]

    def numbers(of: Callable[[Node], Iterable[int]]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(new[id] for node in group for id in of(node)))

    return structs.replace(
        last,
        id=number,
        line=first.line,
        written=tuple(_renumbered(part, new) for node in group for part in node.written),
        needs=numbers(lambda node: node.needs),
        waits=numbers(lambda node: node.waits),
        within=tuple(new[id] for id in last.within),
    )


def _renumbered(part: Written, new: dict[int, int]) -> Written:
    if not isinstance(part, Said):
        return part
    return Said(
        tuple(
            piece._replace(nodes=tuple(new[id] for id in piece.nodes)) if isinstance(piece, Ref) else piece
            for piece in part.parts
        )
    )


def _relinked(graph: Graph, nodes: tuple[Node, ...], new: dict[int, int]) -> tuple[Node, ...]:
    """With the edges along branches, for which a text that was merged no longer stands in the way."""
    last: dict[str, int] = {}
    linked = []
    for node in nodes:
        before = last.get(node.branch)
        joined = node.after[1:] if node.kind == "join" else ()
        after = () if before is None else (before,)
        linked.append(structs.replace(node, after=(*after, *(new[id] for id in joined))))
        last[node.branch] = node.id
        if node.kind == "fork":
            last |= dict.fromkeys(node.branches, node.id)
    return tuple(linked)


def constant_prefix(graph: Graph) -> tuple[Written, ...]:
    """The longest beginning of the main branch that depends on no argument and on no model: what every run of the
    program begins with, whatever the arguments that are placeholders in this graph."""
    prefix: list[Written] = []
    for node in graph.nodes:
        if node.branch or node.kind == "fork":
            break
        for part in node.written:
            if not isinstance(part, Said):
                prefix.append(part)
            elif isinstance(part.parts[0], Ref):
                return tuple(prefix)
            else:
                prefix.append(Said(part.parts[:1]))
                if len(part.parts) > 1:
                    return tuple(prefix)
        if node.is_step:
            break
    while prefix and isinstance(prefix[-1], Open) and graph.ending is not None:
        prefix.pop()
    return tuple(prefix)


def going_on(graph: Graph) -> dict[int, int | None]:
    """Step → the step from whose tokens it goes on; None for those that go on from no model's."""
    found: dict[int, int | None] = {}
    nearest: dict[int, int | None] = {}  # node → the last step up to it
    for node in graph.nodes:
        before = nearest[node.after[0]] if node.after else None
        if node.is_step:
            found[node.id] = before
        nearest[node.id] = node.id if node.is_step else before
    return found


def parallel_groups(graph: Graph) -> list[tuple[Node, ...]]:
    """The steps in groups: those of one group may run at the same time, once the groups before it have ended."""
    before = going_on(graph)
    level: dict[int, int] = {}
    groups: list[list[Node]] = []
    awaited: dict[int, int] = {}  # flow → the last group of which it has read a value by now
    for node in graph.nodes:
        known = awaited.get(node.flow, awaited.get(graph.flows[node.flow], -1))
        awaited[node.flow] = max([known, *(level[id] for id in (*node.waits, *node.needs))])
        if node.is_step:
            own = before[node.id]
            level[node.id] = 1 + max(awaited[node.flow], -1 if own is None else level[own])
            if level[node.id] == len(groups):
                groups.append([])
            groups[level[node.id]].append(node)
    return [tuple(group) for group in groups]


def steps_left(graph: Graph) -> dict[int, int]:
    """Step → how many steps are still to come on the longest path from it, itself included. A program that is not
    static may have more."""
    readers: dict[int, dict[int, int]] = {}  # step → flow → the first node that it wrote once it had read the value
    begins: dict[int, int] = {}  # flow → its first node
    for node in graph.nodes:
        begins.setdefault(node.flow, node.id)
        for id in (*node.waits, *node.needs):
            readers.setdefault(id, {}).setdefault(node.flow, node.id)
    before = going_on(graph)
    left: dict[int, int] = {}
    after: dict[int, int] = {}  # step → the longest path from any that goes on from it
    longest = [0] * len(graph.flows)  # by flow: from any step that it, or a flow begun by it, writes from here on
    longest_from: dict[int, int] = {}  # the same for each node
    for node in reversed(graph.nodes):
        if node.is_step:
            read = [longest_from[reader] for reader in readers.get(node.id, {}).values()]
            left[node.id] = 1 + max([after.get(node.id, 0), *read])
            longest[node.flow] = max(longest[node.flow], left[node.id])
            if (own := before[node.id]) is not None:
                after[own] = max(after.get(own, 0), left[node.id])
        longest_from[node.id] = longest[node.flow]
        if begins[node.flow] == node.id:
            parent = graph.flows[node.flow]
            longest[parent] = max(longest[parent], longest[node.flow])
    return left


def last_uses(graph: Graph) -> dict[int, int | None]:
    """Step → the last step that goes on from its prefix, at first or second hand; None: it is used no more, as far as
    the graph tells."""
    order = {node.id: (at, node.id) for at, group in enumerate(parallel_groups(graph)) for node in group}
    before = going_on(graph)
    last: dict[int, int | None] = dict.fromkeys(before)
    for id in before:
        above = before[id]
        while above is not None:
            known = last[above]
            if known is None or order[known] < order[id]:
                last[above] = id
            above = before[above]
    return last


def ended_branches(graph: Graph) -> frozenset[str]:
    """Those that nothing can be written to any more: the joined ones, and in a static program all."""
    if graph.is_static:
        return frozenset(node.branch for node in graph.nodes)
    return frozenset(path for node in graph.of_kind("join") for path in node.branches)
