"""What a schema means: each part of a document becomes the set of its values.

All of the specification's keywords are read here; what has no exact or narrower reading is given up through
`Problems`, which refuses under `strict` and otherwise takes note.

Knows nothing of engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..types import Relaxed
from . import schema_typed
from .schema_algebra import Algebra, Busy, Overworked, TooMany
from .schema_document import NO_STATE, Document, Part, Remote, State, holder, subschemas
from .schema_keywords import DEFINITIONS, IDENTIFIERS, NEVER_ENFORCED, OF
from .schema_opposites import Inexpressible
from .schema_sets import ANY, KINDS, NOTHING, SOFT, Arr, Obj, Values
from .schema_values import Schema, mapping, names, pointer, refuse, shown

MAX_STATES = 5_000
"""Combinations of parts of one schema that are looked at."""


class Problems:
    """What cannot be enforced: an error under `strict`, else noted once per place."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.found: dict[tuple[str, str], str] = {}

    def give_up(self, path: str, keyword: str, reason: str) -> None:
        if self.strict:
            refuse(path, keyword, f"cannot be enforced: {reason}")
        self.note(path, keyword, reason)

    def note(self, path: str, keyword: str, reason: str) -> None:
        self.found.setdefault((path, keyword), reason)

    def relaxed(self, more: Mapping[tuple[str, str], str]) -> tuple[Relaxed, ...]:
        """These, and what was left out in writing."""
        found = {**more, **self.found}
        return tuple(Relaxed(path, keyword, found[path, keyword]) for path, keyword in {**self.found, **more})


class Reader:
    """Expands states, each once."""

    def __init__(self, document: Document, problems: Problems) -> None:
        self.document = document
        self.problems = problems
        self.algebra = Algebra(document, self.expand)
        self._states: dict[State, Values] = {}
        self._parts: dict[Part, Values] = {}
        self._open: set[Part] = set()
        self._depth = 0

    def expand(self, state: State) -> Values:
        """The values of a state. Raises `GrammarInvalid`."""
        if not state:
            return ANY
        if len(state) == 1:
            return self._part(state[0])
        found = self._states.get(state)
        if found is None:
            if len(self._states) >= MAX_STATES:
                refuse(
                    state[0].path,
                    self.document.keyword(state[0]),
                    f"combines with others in more than {MAX_STATES} ways",
                )
            found = ANY
            for part in state:
                found = self._meet(found, self._part(part), part.path, "allOf")
            self._states[state] = found
        return found

    def _meet(self, first: Values, second: Values, path: str, keyword: str) -> Values:
        try:
            return self.algebra.meet(first, second)
        except TooMany:
            self.problems.give_up(path, keyword, "its alternatives multiply to more than 200")
            return Values(first.parts, False)

    def _part(self, part: Part) -> Values:
        found = self._parts.get(part)
        if found is not None:
            return found
        if part in self._open:
            if self.algebra.looking:
                raise Busy
            refuse(part.path, "$ref", "leads back to itself")
        if self._depth >= self.document.max_depth:
            refuse(part.path, self.document.keyword(part), f"is nested more than {self.document.max_depth} deep")
        self._open.add(part)
        self._depth += 1
        try:
            found = self._read(part.node, part.path) if part.yes else self._opposite(part)
        except Overworked as error:
            refuse(part.path, self.document.keyword(part), str(error))
        finally:
            self._depth -= 1
            self._open.discard(part)
        self._parts[part] = found
        return found

    def _opposite(self, part: Part) -> Values:
        if part is NO_STATE[0]:
            return NOTHING
        negated = self._negated(self.expand(part.of), part.path, part.why)
        return _unknown() if negated is None else negated

    def _negated(self, values: Values, path: str, keyword: str) -> Values | None:
        """The complement; None when it was given up."""
        try:
            return self.algebra.complement(values)
        except Inexpressible as error:
            self.problems.give_up(path, keyword, f"the opposite of {error} cannot be written")
        except TooMany:
            self.problems.give_up(path, keyword, "its alternatives multiply to more than 200")
        return None

    # ---- one schema ------------------------------------------------------------------------------------------------

    def _read(self, node: Any, path: str) -> Values:
        if isinstance(node, bool):
            return ANY if node else NOTHING
        if not isinstance(node, dict):
            refuse(path, holder(path), f"holds {shown(node)}, and a schema is an object or a boolean")
        if "$ref" in node and self.document.draft <= 7:
            return self._reference(node["$ref"], path, "$ref")
        _check_form(node, path)
        result = ANY
        own = "properties" if "properties" in node else next((name for name in node if name in _TYPED), None)
        late: list[str] = []
        for keyword in node:
            if keyword in _APPLICATORS:
                result = self._meet(result, _APPLICATORS[keyword](self, node, path, keyword), path, keyword)
            elif keyword == own:  # here, so that the order of properties is that of the text
                result = self._meet(result, self._own(node, path), path, keyword)
            elif keyword in _LATE:
                late.append(keyword)
            elif keyword in NEVER_ENFORCED:
                self.problems.give_up(path, keyword, "it is of draft-03")
                result = Values(result.parts, False)
        for keyword in late:
            result = self._unevaluated(result, node, path, keyword)
        return result

    def _own(self, node: Schema, path: str) -> Values:
        """The keywords that speak of one type, and listed values."""
        result = schema_typed.typed(self, node, path)
        for keyword in ("const", "enum"):
            if keyword in node:
                listed = schema_typed.listed(node, keyword, path)
                result = self._meet(listed, result, path, keyword)
        return result

    def _below(self, node: Any, path: str) -> Values:
        return self.expand(self.document.state(path, node))

    def _reference(self, ref: Any, path: str, keyword: str) -> Values:
        try:
            place, target = self.document.resolve(ref, path)
        except Remote:
            self.problems.give_up(path, keyword, f"{ref[:80]!r} is not in this document, and none is fetched")
            return _unknown()
        return self._below(target, place)

    def ref(self, node: Schema, path: str, keyword: str) -> Values:
        return self._reference(node[keyword], path, keyword)

    def dynamic_ref(self, node: Schema, path: str, keyword: str) -> Values:
        ref = node[keyword]
        if not isinstance(ref, str):
            refuse(path, keyword, f"is a string, not {shown(ref)}")
        if not self.document.dynamic_is_static(ref):
            self.problems.give_up(path, keyword, "what it means depends on the place that it is read from")
            return _unknown()
        return self._reference(ref, path, keyword)

    # ---- combinations ----------------------------------------------------------------------------------------------

    def _branches(self, node: Schema, path: str, keyword: str) -> list[State]:
        branches = node[keyword]
        if not isinstance(branches, list) or not branches:
            refuse(path, keyword, "is a list of at least one schema")
        return [self.document.state(f"{path}/{keyword}/{at}", branch) for at, branch in enumerate(branches)]

    def all_of(self, node: Schema, path: str, keyword: str) -> Values:
        result = ANY
        for state in self._branches(node, path, keyword):
            result = self._meet(result, self.expand(state), path, keyword)
        return result

    def any_of(self, node: Schema, path: str, keyword: str) -> Values:
        return self.algebra.join([self.expand(state) for state in self._branches(node, path, keyword)])

    def one_of(self, node: Schema, path: str, keyword: str) -> Values:
        """Each branch without the others, as far as they overlap."""
        sets = [self.expand(state) for state in self._branches(node, path, keyword)]
        overlaps: list[list[int]] = [[] for _ in sets]
        for at in range(len(sets)):
            for other in range(at):
                if not self.algebra.disjoint(sets[at], sets[other]):
                    overlaps[at].append(other)
                    overlaps[other].append(at)
        if not any(overlaps):
            return self.algebra.join(sets)
        alone: list[Values] = []
        for at, values in enumerate(sets):
            for other in overlaps[at]:
                try:
                    values = self.algebra.meet(values, self.algebra.complement(sets[other]))
                except (Inexpressible, TooMany) as error:
                    why = f"the opposite of {error}" if error.args else "what is in neither"
                    reason = (
                        f"branches {min(at, other)} and {max(at, other)} may both match, and {why} cannot be written"
                    )
                    self.problems.give_up(f"{path}/oneOf", "oneOf", reason)
                    return Values(self.algebra.join(sets).parts, False)
            alone.append(values)
        return self.algebra.join(alone)

    def negation(self, node: Schema, path: str, keyword: str) -> Values:
        inner = node[keyword]
        if isinstance(inner, dict) and inner.keys() == {"not"}:  # what is narrowed has no opposite, but itself
            return _unspoken(self._below(inner["not"], f"{path}/not/not"))
        negated = self._negated(self._below(inner, f"{path}/{keyword}"), path, keyword)
        return _unknown() if negated is None else negated

    def condition(self, node: Schema, path: str, keyword: str) -> Values:
        """`if`, with what there is of `then` and `else`."""
        if "then" not in node and "else" not in node:
            return ANY
        met = self._below(node["if"], f"{path}/if")
        unmet = self._negated(met, path, "if")
        if unmet is None:
            return _unknown()
        then = self._below(node.get("then", True), f"{path}/then")
        other = self._below(node.get("else", True), f"{path}/else")
        sides = self._meet(met, then, path, "then"), self._meet(unmet, other, path, "else")
        return self.algebra.join(sides)

    def dependencies(self, node: Schema, path: str, keyword: str) -> Values:
        result = ANY
        for name, needed in mapping(node, keyword, path).items():
            at = {keyword: path}
            if isinstance(needed, list):
                held = _objects([Obj(required=tuple(dict.fromkeys((name, *names(needed, keyword, path)))), at=at)])
            elif isinstance(needed, str) and keyword == "dependencies":  # draft-03, still met with
                held = _objects([Obj(required=(name, needed), at=at)])
            elif keyword == "dependentRequired":
                refuse(f"{path}/{keyword}/{pointer(name)}", keyword, f"holds {shown(needed)}, and not a list of names")
            else:
                below = self._below(needed, f"{path}/{keyword}/{pointer(name)}")
                held = self._meet(below, _objects([Obj(required=(name,), at=at)]), path, keyword)
            without = _objects([Obj(props={name: NO_STATE}, at=at)])
            result = self._meet(result, self.algebra.join([without, held]), path, keyword)
        if result is ANY:
            return result
        # Other types are free: they stand in both alternatives.
        objects = result.parts.get("object", [])
        return Values({**{kind: [SOFT[kind]] for kind in KINDS}, "object": objects}, result.exact)

    def _unevaluated(self, values: Values, node: Schema, path: str, keyword: str) -> Values:
        """Holds what no other keyword of this schema has spoken of to the schema of `keyword`."""
        state = self.document.state(f"{path}/{keyword}", node[keyword])
        kind = "object" if keyword == "unevaluatedProperties" else "array"
        narrowed: list[Any] = []
        branches = values.parts.get(kind, [])
        # Where alternatives overlap, what one has spoken of counts for the other: that is not looked at.
        one_way = len(branches) < 2 and not any(isinstance(branch, Arr) and branch.contains for branch in branches)
        for branch in branches:
            rest: Any
            if branch.values is not None:
                sure = tuple(value for value in branch.values if self._all_hold(state, value))
                one_way = one_way and len(sure) == len(branch.values)
                rest = type(branch)(values=sure)
            elif isinstance(branch, Obj) and branch.spoken is not None:
                spoken, patterns = branch.spoken
                rest = Obj(props=dict.fromkeys(spoken, ()), patterns=dict.fromkeys(patterns, ()), rest=state, said=True)
                rest.spoken, rest.at = None, {keyword: path}
            elif isinstance(branch, Arr) and branch.evaluated != float("inf"):
                rest = Arr(prefix=((),) * int(branch.evaluated), items=state, evaluated=float("inf"))
                rest.at = {keyword: path}
            else:
                narrowed.append(branch)
                continue
            met = self.algebra.meet_branch(kind, branch, rest)
            if met is not None:
                narrowed.append(met)
        return Values({**values.parts, kind: narrowed}, values.exact and one_way)

    def _all_hold(self, state: State, value: Any) -> bool:
        """Whether everything inside a listed value is in a state, whatever has been spoken of."""
        return all(self.algebra.holds(state, inner) for inner in (value.values() if isinstance(value, dict) else value))


def _unspoken(values: Values) -> Values:
    """The same values, of whose properties and items nothing was said: `not` says nothing of them."""
    parts = dict(values.parts)
    parts["object"] = [replace(b, spoken=(frozenset(), frozenset())) for b in parts.get("object", [])]
    parts["array"] = [replace(b, evaluated=0) for b in parts.get("array", [])]
    return Values(parts, values.exact)


def _unknown() -> Values:
    return Values(ANY.parts, False)


def _check_form(node: Schema, path: str) -> None:
    """What no other reading looks at: identifiers, and schemas that nothing may refer to."""
    for keyword in IDENTIFIERS & node.keys():
        if not isinstance(node[keyword], str):
            refuse(path, keyword, f"is a text, not {shown(node[keyword])}")
    for keyword in DEFINITIONS:
        if keyword in node:
            mapping(node, keyword, path)
    for at, inner in subschemas(node, path):
        # Names stand in `dependencies` too; whether `items` may be a list, the draft says, and its reading.
        other = (isinstance(inner, (list, str)) and at.startswith(f"{path}/dependencies/")) or at == f"{path}/items"
        if not (isinstance(inner, (dict, bool)) or other):
            refuse(at, holder(at), f"holds {shown(inner)}, and a schema is an object or a boolean")


def _objects(branches: list[Any]) -> Values:
    return Values({**{kind: [SOFT[kind]] for kind in KINDS}, "object": branches})


_APPLICATORS: dict[str, Callable[[Reader, Schema, str, str], Values]] = {
    "$ref": Reader.ref,
    "$dynamicRef": Reader.dynamic_ref,
    "$recursiveRef": Reader.dynamic_ref,
    "allOf": Reader.all_of,
    "anyOf": Reader.any_of,
    "oneOf": Reader.one_of,
    "not": Reader.negation,
    "if": Reader.condition,
    "dependentRequired": Reader.dependencies,
    "dependentSchemas": Reader.dependencies,
    "dependencies": Reader.dependencies,
}

_LATE = frozenset(("unevaluatedProperties", "unevaluatedItems"))
_TYPED = frozenset(("type", "enum", "const")).union(*OF.values()) - _APPLICATORS.keys() - _LATE - NEVER_ENFORCED
