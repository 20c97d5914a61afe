"""Intersections and differences of regular expressions, through automata, written as an expression again.

Bounded: beyond `MAX_STATES` states, or an expression of `MAX_PARTS` parts, there is no answer. What must not match is
read in its widest sense, what must match in its narrowest, so that the result holds in every dialect.

Knows nothing of schemas or engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Listed
from itertools import pairwise

from . import char_sets as cs
from .char_sets import CharSet
from .regex import Regex
from .regex_syntax import Alternatives, Chars, Node, Repeat, Sequence

MAX_STATES = 100
MAX_PARTS = 3_000
MAX_LISTED = 32
_MAX_NODES = 3_000  # of one expression's own automaton

_Positions = frozenset[int]


class TooLarge(Exception):
    """The automaton, or what would be written for it, passes the bounds."""


class _Automaton:
    """An expression as a graph: from each place, steps that take nothing, and steps that take a character."""

    def __init__(self, node: Node, *, wide: bool, limit: int | None = _MAX_NODES) -> None:
        self._wide = wide
        self._limit = limit
        self.free: list[list[int]] = []
        self.steps: list[list[tuple[CharSet, int]]] = []
        first = self._place()
        self.last = self._add(node, first)
        self.start = self.closed([first])

    def _place(self) -> int:
        if self._limit is not None and len(self.free) >= self._limit:
            raise TooLarge
        self.free.append([])
        self.steps.append([])
        return len(self.free) - 1

    def _add(self, node: Node, at: int) -> int:
        """Adds `node` after the place `at`; returns the place after it."""
        if isinstance(node, Chars):
            end = self._place()
            self.steps[at].append((node.outer if self._wide else node.inner, end))
            return end
        if isinstance(node, Sequence):
            for item in node.items:
                at = self._add(item, at)
            return at
        if isinstance(node, Alternatives):
            end = self._place()
            for option in node.options:
                start = self._place()
                self.free[at].append(start)
                self.free[self._add(option, start)].append(end)
            return end
        assert isinstance(node, Repeat), "anchors are gone by now"
        for _ in range(node.low):
            at = self._add(node.item, at)
        if node.high is None:
            loop = self._place()
            self.free[at].append(loop)
            end = self._place()
            self.free[loop].append(end)
            self.free[self._add(node.item, loop)].append(loop)
            return end
        ends = [at]
        for _ in range(node.low, node.high):
            at = self._add(node.item, at)
            ends.append(at)
        end = self._place()
        for place in ends:
            self.free[place].append(end)
        return end

    def closed(self, places: Listed[int]) -> _Positions:
        seen = set(places)
        waiting = [*places]
        while waiting:
            for place in self.free[waiting.pop()]:
                if place not in seen:
                    seen.add(place)
                    waiting.append(place)
        return frozenset(seen)

    def next(self, places: _Positions, char: int) -> _Positions:
        """Where `char` leads from any of `places`."""
        ends = [end for place in places for chars, end in self.steps[place] if _holds(chars, char)]
        return self.closed(ends)


class Matching:
    """Whether texts match an expression as a whole, in time that grows with the text only; in every dialect."""

    def __init__(self, regex: Regex) -> None:
        self._automaton = _Automaton(regex.node, wide=False, limit=None)

    def __call__(self, text: str) -> bool:
        automaton = self._automaton
        places = automaton.start
        for char in text:
            places = automaton.next(places, ord(char))
            if not places:
                return False
        return automaton.last in places


def _holds(chars: CharSet, char: int) -> bool:
    return any(low <= char <= high for low, high in chars)


def combined(wanted: Listed[Regex], unwanted: Listed[Regex]) -> Regex | None:
    """All texts that every one of `wanted` matches and none of `unwanted`; None when there are none.

    Raises `TooLarge`."""
    return _written(*_product(wanted, unwanted))


def disjoint(first: Regex, second: Regex) -> bool:
    """Whether no text matches both. Raises `TooLarge`."""
    return not _product([first, second], [], any_final=True)[1]


def _product(
    wanted: Listed[Regex], unwanted: Listed[Regex], *, any_final: bool = False
) -> tuple[dict[tuple[int, int], list[CharSet]], set[int], int]:
    """(edges, final states, how many states) of the automaton that follows all expressions at once; with `any_final`
    no further than to the first final state."""
    automata = [_Automaton(regex.node, wide=False) for regex in wanted]
    refused = [_Automaton(regex.node, wide=True) for regex in unwanted]
    every = [*automata, *refused]
    classes = _classes([chars for automaton in every for steps in automaton.steps for chars, _ in steps])
    start = tuple(automaton.start for automaton in every)
    numbers = {start: 0}
    waiting = [start]
    edges: dict[tuple[int, int], list[CharSet]] = {}
    finals: set[int] = set()
    while waiting:
        state = waiting.pop()
        if all(a.last in at for a, at in zip(automata, state, strict=False)) and not any(
            a.last in at for a, at in zip(refused, state[len(automata) :], strict=True)
        ):
            finals.add(numbers[state])
            if any_final:
                break
        for chars in classes:
            after = tuple(a.next(at, chars[0][0]) for a, at in zip(every, state, strict=True))
            if not all(after[: len(automata)]):
                continue
            if after not in numbers:
                if len(numbers) >= MAX_STATES:
                    raise TooLarge
                numbers[after] = len(numbers)
                waiting.append(after)
            edges.setdefault((numbers[state], numbers[after]), []).append(chars)
    return edges, finals, len(numbers)


def _classes(sets: list[CharSet]) -> list[CharSet]:
    """All characters, parted so that each set holds all or none of a part."""
    cuts = sorted(
        {0, 0xD800, 0xE000, 0x110000, *(edge for chars in sets for low, high in chars for edge in (low, high + 1))}
    )
    distinct = list(dict.fromkeys(sets))
    parts: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    for low, end in pairwise(cuts):
        if low != 0xD800:
            parts.setdefault(tuple(_holds(chars, low) for chars in distinct), []).append((low, end - 1))
    return [cs.make(ranges) for ranges in parts.values()]


# ---- the automaton as an expression: states are taken out one by one ---------------------------------------------

_EMPTY = Sequence([])


def _written(edges: dict[tuple[int, int], list[CharSet]], finals: set[int], count: int) -> Regex | None:
    live = _leading(edges, finals)
    if 0 not in live:
        return None
    paths: dict[tuple[int, int], Node] = {}
    for (start, end), sets in edges.items():
        if start in live and end in live:
            chars = cs.make(span for chars in sets for span in chars)
            paths[start, end] = Chars(chars, chars)
    first, last = count, count + 1
    paths[first, 0] = _EMPTY
    for final in finals & live:
        paths[final, last] = _EMPTY
    left = set(live)
    while left:
        state = _cheapest(paths, left)
        left.remove(state)
        _take_out(paths, state)
    return Regex(paths[first, last])


def _leading(edges: dict[tuple[int, int], list[CharSet]], finals: set[int]) -> set[int]:
    """States from which a final one can be reached."""
    live = set(finals)
    while True:
        more = {start for start, end in edges if end in live} - live
        if not more:
            return live
        live |= more


def _cheapest(paths: dict[tuple[int, int], Node], left: set[int]) -> int:
    """The state whose removal makes the fewest new paths."""
    before, after = Counter[int](), Counter[int]()
    for start, end in paths:
        if start != end:
            after[start] += 1
            before[end] += 1
    return min(left, key=lambda state: before[state] * after[state])


def _take_out(paths: dict[tuple[int, int], Node], state: int) -> None:
    loop = paths.pop((state, state), None)
    before = [(start, paths.pop((start, end))) for start, end in [*paths] if end == state]
    after = [(end, paths.pop((start, end))) for start, end in [*paths] if start == state]
    middle: list[Node] = [] if loop is None else [Repeat(loop, 0, None)]
    for start, head in before:
        for end, tail in after:
            node = _sequence([head, *middle, tail])
            known = paths.get((start, end))
            paths[start, end] = node if known is None else _either(known, node)
    if sum(map(_size, paths.values())) > MAX_PARTS:
        raise TooLarge


def _sequence(items: list[Node]) -> Node:
    flat = [part for item in items for part in (item.items if isinstance(item, Sequence) else [item])]
    return flat[0] if len(flat) == 1 else Sequence(flat)


def _either(first: Node, second: Node) -> Node:
    if isinstance(first, Chars) and isinstance(second, Chars):
        union = cs.union(first.inner, second.inner)
        return Chars(union, union)
    options = [
        part for node in (first, second) for part in (node.options if isinstance(node, Alternatives) else [node])
    ]
    return Alternatives(options)


def _size(node: Node) -> int:
    if isinstance(node, Sequence):
        return 1 + sum(map(_size, node.items))
    if isinstance(node, Alternatives):
        return 1 + sum(map(_size, node.options))
    return 1 + _size(node.item) if isinstance(node, Repeat) else 1


def few(node: Node) -> tuple[str, ...] | None:
    """All texts that an expression matches, in every dialect; None when they are more than `MAX_LISTED`."""
    if isinstance(node, Chars):
        if node.inner != node.outer or sum(high - low + 1 for low, high in node.inner) > MAX_LISTED:
            return None
        return tuple(chr(code) for low, high in node.inner for code in range(low, high + 1))
    found: tuple[str, ...] = ()
    if isinstance(node, Alternatives):
        for option in node.options:
            part = few(option)
            if part is None or len(found) + len(part) > MAX_LISTED:
                return None
            found += part
        return tuple(dict.fromkeys(found))
    if isinstance(node, Repeat):
        if node.high is None or node.high > 8:
            return None
        node = Alternatives([Sequence([node.item] * times) for times in range(node.low, node.high + 1)])
        return few(node)
    found = ("",)
    for item in node.items if isinstance(node, Sequence) else ():
        part = few(item)
        if part is None or len(found) * len(part) > MAX_LISTED:
            return None
        found = tuple(dict.fromkeys(head + tail for head in found for tail in part))
    return found
