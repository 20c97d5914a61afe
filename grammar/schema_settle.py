"""Sets of values made ready to be written: constraints that no engine has become ones that each has.

`contains` becomes positions, `uniqueItems` of few listed values becomes their sequences, `propertyNames` becomes
patterns, a property that is wanted somewhere becomes a required one. All of these let through the same values or
fewer. Soft branches go where others are, objects and tuples of which nothing else is said are closed. Then it is
found out which states have a value at all.

Knows nothing of engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

from . import schema_text as text
from .regex import literal
from .schema_algebra import least, lookup, qualifies
from .schema_document import ANY_STATE, NO_STATE, Part, State, both
from .schema_names import held_to_names, without_overlaps
from .schema_numbers import listed_numbers
from .schema_read import Reader
from .schema_sets import KINDS, Arr, Branch, Contains, Obj, Some, Str
from .schema_values import identity
from .string_formats import FORMATS

POSITIONS = 8
"""How far into an array an item that it must contain may stand."""
MAX_LISTED = 4
"""Values of which an array of different items may be made."""
_MAX_ARRAYS = 64
_MAX_BOUND = 40  # of a length that is compared with a pattern

Settled = list[tuple[str, Any]]
"""(kind, branch) pairs."""


class Settler:
    """Settles each state once. `closed`: undeclared properties, and items after a prefix, of which nothing is said stay
    out. `alive` are the states that have a value, once `reach` has run."""

    def __init__(self, reader: Reader, *, closed: bool) -> None:
        self.reader = reader
        self._closed = closed
        self._settled: dict[State, Settled] = {}
        self.alive: set[State] = set()
        self.uses: dict[State, int] = {}

    def __getitem__(self, state: State) -> Settled:
        return self._settled[state]

    def keyword(self, part: Part) -> str:
        """See `Document.keyword`."""
        return self.reader.document.keyword(part)

    def reach(self, root: State) -> None:
        """Settles `root` and all below it."""
        order: list[State] = []
        waiting = [root]
        self.uses[root] = 1
        while waiting:
            state = waiting.pop()
            order.append(state)
            self._settled[state] = settled = self._settle(state)
            for _, branch in settled:
                for child in children(branch):
                    if child not in self.uses:
                        self.uses[child] = 0
                        waiting.append(child)
                    self.uses[child] += 1
        order.reverse()
        changed = True
        while changed:
            changed = False
            for state in order:
                if state not in self.alive and any(self._lives(branch) for _, branch in self._settled[state]):
                    self.alive.add(state)
                    changed = True

    def _lives(self, branch: Branch) -> bool:
        return all(state in self.alive for state in needed(branch))

    # ---- one state -------------------------------------------------------------------------------------------------

    def _settle(self, state: State) -> Settled:
        if not state:
            return []  # any value: written as such
        values = self.reader.expand(state)
        hard = any(not branch.soft for branches in values.parts.values() for branch in branches)
        settled: Settled = []
        for kind in KINDS:
            for branch in values.parts.get(kind, ()):
                if hard and branch.soft:
                    continue
                branch = self._without_needless(branch)
                if kind == "string" and branch.values is None:
                    branch = self._string(branch)
                    if branch is None:
                        continue
                if kind == "number" and branch.values is None and listed_numbers(branch) == []:
                    continue
                if branch.values is not None or kind not in ("array", "object"):
                    settled.append((kind, branch))
                else:
                    found = self._arrays(branch) if kind == "array" else self._objects(branch)
                    settled += [(kind, one) for one in found]
        return settled

    def _without_needless(self, branch: Any) -> Any:
        """Without excluded values that other constraints leave out anyway."""
        if not branch.excluded:
            return branch
        others = replace(branch, excluded=())
        admits = self.reader.algebra.admits
        return replace(branch, excluded=tuple(value for value in branch.excluded if admits(others, value)))

    def _string(self, string: Str) -> Str | None:
        """The same strings: listed where they can be, and else without what must not match. None: there are none."""
        for pattern in string.patterns:
            few = text.listed(pattern)
            if few is not None:
                kept = tuple(value for value in few if self.reader.algebra.admits(string, value))
                return Str(values=kept, at=string.at) if kept else None
            lengths = text.expression(pattern).lengths
            if (lengths.high is not None and lengths.high < string.low) or (
                string.high is not None and lengths.low > string.high
            ):
                return None
        if _is_torn(string):
            return None
        return _without_opposites(string) if string.not_patterns else string

    # ---- arrays ----------------------------------------------------------------------------------------------------

    def _arrays(self, array: Arr) -> list[Arr]:
        if self._closed and array.open_prefix and array.low <= len(array.prefix):
            array = replace(array, items=NO_STATE)  # undeclared items stay out, as undeclared properties do
        found = [array]
        for contains in array.contains:
            found = [wider for one in found for wider in self._containing(one, contains)][: _MAX_ARRAYS + 1]
        if len(found) > _MAX_ARRAYS:
            return [array]
        found = [replace(one, contains=()) for one in found]
        if array.unique:
            found = [different for one in found for different in self._different(one)]
        return found

    def _containing(self, array: Arr, contains: Contains) -> Iterator[Arr]:
        """Arrays of which it can be seen that they contain what they should."""
        wanted, low, high = contains.state, contains.low, contains.high
        surely = sum(state == wanted for state in array.prefix[: array.low])
        surely += max(0, array.low - len(array.prefix)) if array.items == wanted else 0
        if high is None and surely >= low:
            yield array
        elif high is None and array.items == wanted and not array.prefix:
            yield replace(array, low=max(array.low, low))
        elif high is None and low == 1:
            for at in range(POSITIONS):
                yield from _with_items(array, {at: wanted}, None, at + 1)
        else:
            unwanted = ANY_STATE if high is None else self.reader.document.opposite(wanted, "maxContains")
            for length in range(low, low + 1 if high is None else min(high, low + POSITIONS) + 1):
                yield from _with_items(array, dict.fromkeys(range(length), wanted), unwanted, length)

    def _different(self, array: Arr) -> list[Arr]:
        """Every sequence of different values, where few are listed; otherwise the array as it is."""
        most = array.high
        if most is not None and most <= 1:
            return [replace(array, unique=False)]
        parts = self.reader.expand(array.items).parts if array.items and not array.prefix else {}
        listed = {identity(value): value for found in parts.values() for b in found for value in b.values or ()}
        if "null" in parts:
            listed[None] = None
        open_ended = any(b.values is None for kind, found in parts.items() if kind != "null" for b in found)
        if not parts or open_ended or len(listed) > MAX_LISTED:
            return [array]
        states = [self._constant(array, value) for value in listed.values()]
        last = len(states) if most is None else min(most, len(states))
        return [
            replace(array, prefix=chosen, items=NO_STATE, low=len(chosen), high=len(chosen), unique=False)
            for length in range(array.low, last + 1)
            for chosen in permutations(states, length)
        ]

    def _constant(self, array: Arr, value: Any) -> State:
        path = f"{array.at.get('uniqueItems', '#')}/uniqueItems/{identity(value)!r}"
        return self.reader.document.state(path, {"const": value})

    # ---- objects ---------------------------------------------------------------------------------------------------

    def _objects(self, obj: Obj) -> list[Obj]:
        found = [obj]
        for some in obj.some:
            found = [wider for one in found for wider in _with_some(one, some)][: _MAX_ARRAYS + 1]
        if len(found) > _MAX_ARRAYS:
            return [kept for one in [obj] if (kept := self._object(one)) is not None]
        return [done for one in found if (done := self._object(replace(one, some=()))) is not None]

    def _object(self, obj: Obj) -> Obj | None:
        props = {name: lookup(obj, name) for name in dict.fromkeys((*obj.props, *obj.required))}
        obj = replace(obj, props=props)
        declared = any(state != NO_STATE for state in props.values())
        if self._closed and not obj.said and (declared or obj.patterns):
            obj.rest = NO_STATE
        if obj.names:
            obj = held_to_names(obj, self.reader)
        obj = without_overlaps(obj)
        if obj.high == len(obj.required):  # nothing but what is required
            obj = replace(obj, props={name: obj.props[name] for name in obj.required}, patterns={}, rest=NO_STATE)
            obj.high = None
        if any(obj.props[name] == NO_STATE for name in obj.required):
            return None
        obj.low = 0 if obj.low <= len(obj.required) else obj.low
        return obj


def _is_torn(string: Str) -> bool:
    """Whether two of its patterns and formats, or one and its bounds, can be shown to have no text in common."""
    patterns = (*string.patterns, *(f"^(?:{FORMATS[name]})$" for name in string.formats))
    if patterns and string.high is not None and string.high <= _MAX_BOUND:
        patterns = (*patterns, f"^[\\s\\S]{{{string.low},{string.high}}}$")
    return any(text.apart(one, other) for one, other in combinations(patterns, 2))


def _without_opposites(string: Str) -> Str | None:
    """The same strings, described by one expression; the branch as it is where that would be too large."""
    excluded = tuple(f"^{literal(value)}$" for value in string.excluded)
    try:
        pattern = text.combined(string.patterns, (*string.not_patterns, *excluded), string.formats)
    except text.Unsupported:
        return string
    if pattern is None:
        return None
    return replace(string, patterns=(pattern,), formats=(), not_patterns=(), excluded=())


def _with_some(obj: Obj, some: Some) -> Iterator[Obj]:
    """Objects with one declared property that is the wanted one; or where none need stand, with no others than such."""
    for name in dict.fromkeys((*obj.props, *obj.required)):
        if qualifies(some, name):
            props = {**obj.props, name: both(lookup(obj, name), some.state)}
            yield replace(obj, props=props, required=tuple(dict.fromkeys((*obj.required, name))))
    by_pattern = some.inside is not None and [*obj.patterns] == [some.inside]
    if obj.required or obj.names or (obj.patterns and not by_pattern) or (obj.rest == NO_STATE and not by_pattern):
        return
    props = dict.fromkeys((*obj.props, *some.names), NO_STATE)
    wanted = both(obj.patterns[some.inside] if by_pattern and some.inside else obj.rest, some.state)
    patterns = dict.fromkeys(some.patterns, NO_STATE)
    if some.inside is not None:
        patterns, wanted = {some.inside: wanted}, NO_STATE
    yield replace(obj, props=props, patterns=patterns, rest=wanted, said=True, low=max(obj.low, 1))


def _with_items(array: Arr, wanted: dict[int, State], others: State | None, low: int) -> Iterator[Arr]:
    """The array with some items held to more, and all others to `others`; nothing if that cannot be."""
    length = max(len(array.prefix), max(wanted, default=-1) + 1)
    prefix: list[State] = []
    for at in range(length):
        state = array.prefix[at] if at < len(array.prefix) else array.items
        prefix.append(both(state, wanted.get(at, others or ANY_STATE)))
    done = replace(array, prefix=tuple(prefix), items=both(array.items, others or ANY_STATE), low=max(array.low, low))
    for at, state in enumerate((*prefix, done.items)):
        if state == NO_STATE:
            done.high = least(done.high, at)
            break
    if done.high is None or done.low <= done.high:
        yield done


def children(branch: Branch) -> list[State]:
    """The states below a branch, without that of any value."""
    if branch.values is not None:
        return []
    if isinstance(branch, Arr):
        states = [*branch.prefix, branch.items]
    elif isinstance(branch, Obj):
        states = [*branch.props.values(), *branch.patterns.values(), branch.rest]
    else:
        return []
    return [state for state in states if state and state != NO_STATE]


def needed(branch: Branch) -> list[State]:
    """The states that every value of the branch has a value of."""
    if branch.values is not None:
        return []
    if isinstance(branch, Arr):
        states = [*branch.prefix[: branch.low]] + [branch.items] * (branch.low > len(branch.prefix))
    elif isinstance(branch, Obj):
        states = [branch.props[name] for name in branch.required]
        open_names = [*branch.patterns.values(), branch.rest]
        if branch.low > len([state for state in branch.props.values() if state != NO_STATE]):
            states += [state for state in open_names if state != NO_STATE][:1] or [NO_STATE]
    else:
        return []
    return [state for state in states if state]
