"""Intersection, union, complement and emptiness of sets of JSON values.

Branches of one type meet pairwise, so that types never multiply with each other. All work is counted, and refused
beyond a bound: alternatives that meet alternatives grow like a product.

Knows nothing of documents beyond their states, nor of engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

from . import schema_text as text
from .schema_document import ANY_STATE, NO_STATE, Document, State, both
from .schema_numbers import admits_number, no_number
from .schema_opposites import Inexpressible, opposites
from .schema_opposites import is_exact as has_exact_opposites
from .schema_sets import ANY, HARD, KINDS, Arr, Bound, Branch, Num, Obj, Some, Str, Values
from .schema_values import identity, type_of

MAX_WORK = 60_000
"""Branches of one schema that may be met with each other, in all."""
MAX_BRANCHES = 200
"""Alternatives of one type that an intersection may come to."""
_LOOK_AHEAD = 3


class Busy(Exception):
    """A state that was only looked at is still being read."""


class TooMany(Exception):
    """Alternatives multiply beyond `MAX_BRANCHES`."""


class Overworked(Exception):
    """The schema asks for more than `MAX_WORK`."""


class Algebra:
    """`expand` gives the values of a state."""

    def __init__(self, document: Document, expand: Callable[[State], Values]) -> None:
        self.document = document
        self.expand = expand
        self.looking = 0  # above 0: states are expanded only to see whether they are empty
        self._work = 0

    # ---- sets ------------------------------------------------------------------------------------------------------

    def meet(self, first: Values, second: Values) -> Values:
        """What is in both. Raises `TooMany`."""
        if first is ANY:
            return second
        if second is ANY:
            return first
        parts: dict[str, list[Any]] = {}
        for kind in KINDS:
            ours, theirs = first.parts.get(kind), second.parts.get(kind)
            if not ours or not theirs:
                continue
            self._spend(len(ours) * len(theirs))
            found: list[Any] = []
            for one, other in product(ours, theirs):
                met = self.meet_branch(kind, one, other)
                if met is not None:
                    found.append(met)
                if len(found) > MAX_BRANCHES:
                    raise TooMany
            if found:
                parts[kind] = found
        return Values(parts, first.exact and second.exact)

    def join(self, sets: Iterable[Values]) -> Values:
        """What is in any. Listed values of one type become one branch."""
        parts: dict[str, list[Any]] = {}
        is_exact = True
        for values in sets:
            is_exact &= values.exact
            for kind, branches in values.parts.items():
                known = parts.setdefault(kind, [])
                known += [branch for branch in branches if not any(branch is other for other in known[-4:])]
        for kind, branches in parts.items():
            listed = [branch for branch in branches if branch.values is not None]
            if len(listed) > 1:
                union = {identity(value): value for branch in listed for value in branch.values}
                merged = type(listed[0])(all(b.soft for b in listed), tuple(union.values()), at=listed[0].at)
                parts[kind] = [merged, *(branch for branch in branches if branch.values is None)]
        return Values(parts, is_exact)

    def complement(self, values: Values) -> Values:
        """What is not in it. Raises `Inexpressible` or `TooMany`."""
        if not values.exact:
            raise Inexpressible("a part that is narrowed or relaxed")
        result = ANY
        is_exact = True
        for kind, branches in values.parts.items():
            for branch in branches:
                other = opposites(kind, branch, self.document)
                is_exact &= has_exact_opposites(branch)
                rest = {name: [HARD[name]] for name in KINDS if name != kind}
                result = self.meet(result, Values({**rest, kind: other} if other else rest))
        parts = {kind: [_softened(branch) for branch in found] for kind, found in result.parts.items()}
        return Values(parts, is_exact) if any(parts.values()) else Values({}, is_exact)

    def disjoint(self, first: Values, second: Values) -> bool:
        """True if no value is in both; False means only that it was not shown."""
        for kind, ours in first.parts.items():
            theirs = second.parts.get(kind, ())
            self._spend(len(ours) * len(theirs))
            for one in ours:
                for other in theirs:
                    met = self.meet_branch(kind, one, other)
                    if met is not None and not self.void(met):
                        return False
        return True

    def void(self, branch: Branch, depth: int = _LOOK_AHEAD) -> bool:
        """True if no value is in the branch; False means only that it was not shown."""
        if isinstance(branch, Obj) and branch.values is None:
            needed = [lookup(branch, name) for name in branch.required]
        elif isinstance(branch, Arr) and branch.values is None:
            needed = [*branch.prefix[: branch.low]] + [branch.items] * (branch.low > len(branch.prefix))
        else:
            return False
        return any(self._void_state(state, depth - 1) for state in needed)

    def _void_state(self, state: State, depth: int) -> bool:
        if state == NO_STATE:
            return True
        if not state or depth < 0:
            return False
        self._spend(1)
        self.looking += 1
        try:
            branches = [branch for found in self.expand(state).parts.values() for branch in found]
            return all(self.void(branch, depth) for branch in branches)
        except Busy:
            return False
        finally:
            self.looking -= 1

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > MAX_WORK:
            raise Overworked(f"has alternatives that meet more than {MAX_WORK} times")

    # ---- branches --------------------------------------------------------------------------------------------------

    def meet_branch(self, kind: str, first: Any, second: Any) -> Any:
        """The intersection of two branches of one type; None when it is empty."""
        if first is HARD[kind] or (first.soft and first is ANY.parts[kind][0]):
            return second if second.soft == (first.soft and second.soft) else _hardened(second)
        if second is HARD[kind] or (second.soft and second is ANY.parts[kind][0]):
            return self.meet_branch(kind, second, first)
        soft = first.soft and second.soft
        at = {**first.at, **second.at}
        if first.values is not None or second.values is not None:
            return self._listed(first, second, soft, at)
        excluded = tuple({identity(value): value for value in (*first.excluded, *second.excluded)}.values())
        if kind == "number":
            return meet_numbers(first, second, soft, excluded, at)
        if kind == "string":
            return meet_strings(first, second, soft, excluded, at)
        if kind == "array":
            return meet_arrays(first, second, soft, excluded, at)
        if kind == "object":
            return meet_objects(first, second, soft, excluded, at)
        return type(first)(soft, None, excluded, at)

    def _listed(self, first: Branch, second: Branch, soft: bool, at: dict[str, str]) -> Branch | None:
        listed, other = (first, second) if first.values is not None else (second, first)
        assert listed.values is not None
        if other.values is not None:
            allowed = set(map(identity, other.values))
            kept = tuple(value for value in listed.values if identity(value) in allowed)
        else:
            kept = tuple(value for value in listed.values if self.admits(other, value))
        self._spend(len(listed.values) // 8)
        return type(listed)(soft, kept, at=at) if kept else None

    def holds(self, state: State, value: Any) -> bool:
        """Whether a value is in a state."""
        if not state:
            return True
        self._spend(1)
        return any(self.admits(branch, value) for branch in self.expand(state).parts.get(type_of(value), ()))

    def admits(self, branch: Branch, value: Any) -> bool:
        """Whether a value of the branch's type is in the branch."""
        if branch.values is not None:
            return identity(value) in set(map(identity, branch.values))
        if branch.excluded and identity(value) in set(map(identity, branch.excluded)):
            return False
        if isinstance(branch, Num):
            return admits_number(branch, value)
        if isinstance(branch, Str):
            return admits_string(branch, value)
        if isinstance(branch, Arr):
            return self._admits_array(branch, value)
        return self._admits_object(branch, value) if isinstance(branch, Obj) else True

    def _admits_array(self, branch: Arr, value: list[Any]) -> bool:
        if len(value) < branch.low or (branch.high is not None and len(value) > branch.high):
            return False
        if branch.unique and len(set(map(identity, value))) < len(value):
            return False
        for contains in branch.contains:
            found = sum(self.holds(contains.state, item) for item in value)
            if found < contains.low or (contains.high is not None and found > contains.high):
                return False
        return all(self.holds(item_state(branch, at), item) for at, item in enumerate(value))

    def _admits_object(self, branch: Obj, value: dict[str, Any]) -> bool:
        if len(value) < branch.low or (branch.high is not None and len(value) > branch.high):
            return False
        if any(name not in value for name in branch.required):
            return False
        if not all(self.holds(branch.names, name) for name in value):
            return False
        for some in branch.some:
            if not any(qualifies(some, name) and self.holds(some.state, value[name]) for name in value):
                return False
        return all(self.holds(lookup(branch, name), inner) for name, inner in value.items())


def _hardened(branch: Any) -> Any:
    return _copied(branch, soft=False) if branch.soft else branch


def _softened(branch: Any) -> Any:
    return branch if branch.soft else _copied(branch, soft=True)


def _copied(branch: Any, *, soft: bool) -> Any:
    fields = {name: getattr(branch, name) for name in branch.__dataclass_fields__}
    return type(branch)(**{**fields, "soft": soft})


def lookup(branch: Obj, name: str) -> State:
    """What a property has to satisfy."""
    if name in branch.props:
        return branch.props[name]
    state, matched = ANY_STATE, False
    for pattern, held in branch.patterns.items():
        if text.searches(pattern, name):
            state, matched = both(state, held), True
    return state if matched else branch.rest


def qualifies(some: Some, name: str) -> bool:
    """Whether the property may be the one that is wanted."""
    if name in some.names or any(text.searches(pattern, name) for pattern in some.patterns):
        return False
    return some.inside is None or text.searches(some.inside, name)


def item_state(branch: Arr, at: int) -> State:
    return branch.prefix[at] if at < len(branch.prefix) else branch.items


def tighter(first: Bound | None, second: Bound | None, sign: int) -> Bound | None:
    """Of two lower (sign 1) or upper (sign -1) bounds the one that allows less."""
    if first is None or second is None:
        return first or second
    return max(first, second, key=lambda bound: (sign * bound[0], bound[1]))


def least(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else min(first, second)


def _union(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys((*first, *second))) if first and second else first or second


def meet_numbers(a: Num, b: Num, soft: bool, excluded: tuple[Any, ...], at: dict[str, str]) -> Num | None:
    if a.whole is not None and b.whole is not None and a.whole != b.whole:
        return None
    met = Num(soft, None, excluded, at, a.whole if b.whole is None else b.whole)
    met.low, met.high = tighter(a.low, b.low, 1), tighter(a.high, b.high, -1)
    met.multiples = _union(a.multiples, b.multiples)
    met.not_multiples = _union(a.not_multiples, b.not_multiples)
    return None if no_number(met) else met


def meet_strings(a: Str, b: Str, soft: bool, excluded: tuple[Any, ...], at: dict[str, str]) -> Str | None:
    met = Str(soft, None, excluded, at, max(a.low, b.low), least(a.high, b.high))
    if met.high is not None and met.low > met.high:
        return None
    met.patterns, met.formats = _union(a.patterns, b.patterns), _union(a.formats, b.formats)
    met.not_patterns = _union(a.not_patterns, b.not_patterns)
    return None if set(met.patterns) & set(met.not_patterns) else met


def admits_string(string: Str, value: str) -> bool:
    if len(value) < string.low or (string.high is not None and len(value) > string.high):
        return False
    wanted = all(text.searches(pattern, value) for pattern in string.patterns)
    wanted = wanted and all(text.has_format(name, value) for name in string.formats)
    return wanted and not any(text.searches(pattern, value) for pattern in string.not_patterns)


def meet_arrays(a: Arr, b: Arr, soft: bool, excluded: tuple[Any, ...], at: dict[str, str]) -> Arr | None:
    length = max(len(a.prefix), len(b.prefix))
    met = Arr(soft, None, excluded, at, tuple(both(item_state(a, n), item_state(b, n)) for n in range(length)))
    met.items = both(a.items, b.items)
    met.low, met.high = max(a.low, b.low), least(a.high, b.high)
    for index, state in enumerate((*met.prefix, met.items)):
        if state == NO_STATE:
            met.high = least(met.high, index)
            break
    if met.high is not None and met.low > met.high:
        return None
    met.unique = a.unique or b.unique
    met.contains = (*a.contains, *b.contains)
    met.open_prefix = (a.open_prefix or b.open_prefix) and not met.items
    met.evaluated = max(a.evaluated, b.evaluated)
    return met


def meet_objects(a: Obj, b: Obj, soft: bool, excluded: tuple[Any, ...], at: dict[str, str]) -> Obj | None:
    """Exact, except that a name which matches a pattern of one side is held to the other side's rest even if it
    matches a pattern there (`narrow`), unless the rest says nothing."""
    props = {name: both(lookup(a, name), lookup(b, name)) for name in (*a.props, *b.props)}
    met = Obj(soft, None, excluded, at, props)
    met.required = _union(a.required, b.required)
    for pattern in (*a.patterns, *b.patterns):
        met.patterns[pattern] = both(a.patterns.get(pattern, a.rest), b.patterns.get(pattern, b.rest))
    met.narrow = a.narrow or b.narrow or _mixes(a, b) or _mixes(b, a)
    met.rest, met.said = both(a.rest, b.rest), a.said or b.said
    met.low, met.high = max(a.low, b.low), least(a.high, b.high)
    if met.high is not None and max(met.low, len(met.required)) > met.high:
        return None
    if any(lookup(met, name) == NO_STATE for name in met.required):
        return None
    met.names, met.some = both(a.names, b.names), (*a.some, *b.some)
    if a.spoken is None or b.spoken is None:
        met.spoken = None
    else:
        met.spoken = a.spoken[0] | b.spoken[0], a.spoken[1] | b.spoken[1]
    return met


def _mixes(a: Obj, b: Obj) -> bool:
    return bool(a.rest and a.patterns and b.patterns.keys() - a.patterns.keys())
