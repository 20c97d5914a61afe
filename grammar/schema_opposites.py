"""The complement of one branch: all values of its type that are not in it, as branches.

Knows nothing of sets as a whole.
"""

from __future__ import annotations

from typing import Any

from .schema_document import ANY_STATE, NO_STATE, Document
from .schema_sets import Arr, Bound, Branch, Contains, Num, Obj, Some, Str

_POSITIONS = 3  # after a prefix, how far an item that breaks the rule for items is looked for


class Inexpressible(Exception):
    """There is no way to write a complement. `args[0]` says of what."""


def opposites(kind: str, branch: Any, document: Document) -> list[Any]:
    """Every value of the type is in the branch or in one of these. Raises `Inexpressible`.

    Exact, except for items that follow a prefix, of which only the first few positions are looked at, and for names
    (`is_exact`)."""
    if kind == "null":
        return []
    if kind == "boolean":
        return [] if branch.values is None else [Branch(values=(other,)) for other in _other_booleans(branch)]
    if branch.values is not None:
        return [type(branch)(excluded=branch.values, at=branch.at)]
    found: list[Any] = [type(branch)(values=branch.excluded, at=branch.at)] if branch.excluded else []
    if kind == "number":
        return found + _numbers(branch)
    if kind == "string":
        return found + _strings(branch)
    return found + (_arrays(branch, document) if kind == "array" else _objects(branch, document))


def is_exact(branch: Any) -> bool:
    """Whether its opposites are just the values that are not in the branch, and not fewer."""
    if isinstance(branch, Arr):
        return not (branch.prefix and branch.items and branch.items != NO_STATE)
    return not (isinstance(branch, Obj) and (branch.names or any(branch.patterns.values())))


def _other_booleans(branch: Branch) -> list[bool]:
    return [value for value in (True, False) if branch.values is not None and value not in branch.values]


def _flipped(bound: Bound) -> Bound:
    return bound[0], not bound[1]


def _numbers(num: Num) -> list[Num]:
    found: list[Num] = []
    if num.whole is not None:
        found.append(Num(whole=not num.whole, at=num.at))
    if num.low is not None:
        found.append(Num(high=_flipped(num.low), at=num.at))
    if num.high is not None:
        found.append(Num(low=_flipped(num.high), at=num.at))
    found += [Num(not_multiples=(multiple,), at=num.at) for multiple in num.multiples]
    return found + [Num(multiples=(multiple,), at=num.at) for multiple in num.not_multiples]


def _strings(string: Str) -> list[Str]:
    if string.formats:
        raise Inexpressible(f"`format` {string.formats[0]!r}")
    found: list[Str] = []
    if string.low:
        found.append(Str(high=string.low - 1, at=string.at))
    if string.high is not None:
        found.append(Str(low=string.high + 1, at=string.at))
    found += [Str(not_patterns=(pattern,), at=string.at) for pattern in string.patterns]
    return found + [Str(patterns=(pattern,), at=string.at) for pattern in string.not_patterns]


def _arrays(array: Arr, document: Document) -> list[Arr]:
    if array.unique:
        raise Inexpressible("`uniqueItems`")
    found: list[Arr] = []
    if array.low:
        found.append(Arr(high=array.low - 1, at=array.at))
    if array.high is not None:
        found.append(Arr(low=array.high + 1, at=array.at))
    positions = [*enumerate(array.prefix)]
    if array.items == NO_STATE:
        found.append(Arr(low=len(array.prefix) + 1, at=array.at))
    elif array.items and not array.prefix:
        found.append(Arr(contains=(Contains(document.opposite(array.items, "items"), 1, None),), at=array.at))
    elif array.items:
        positions += [(len(array.prefix) + more, array.items) for more in range(_POSITIONS)]
    for at, state in positions:
        if state:
            prefix = (*(ANY_STATE,) * at, document.opposite(state, "items"))
            found.append(Arr(prefix=prefix, low=at + 1, at=array.at))
    for contains in array.contains:
        if contains.low:
            found.append(Arr(contains=(Contains(contains.state, 0, contains.low - 1),), at=array.at))
        if contains.high is not None:
            found.append(Arr(contains=(Contains(contains.state, contains.high + 1, None),), at=array.at))
    return found


def _objects(obj: Obj, document: Document) -> list[Obj]:
    if obj.narrow:
        raise Inexpressible("`patternProperties` that meet others")
    found = [Obj(props={name: NO_STATE}, at=obj.at) for name in obj.required]
    for name, state in obj.props.items():
        if state:
            found.append(Obj(props={name: document.opposite(state, "properties")}, required=(name,), at=obj.at))
    if obj.rest:
        other = document.opposite(obj.rest, "additionalProperties")
        found.append(Obj(some=(Some(frozenset(obj.props), tuple(obj.patterns), other),), at=obj.at))
    for pattern, state in obj.patterns.items():
        if state:
            other = document.opposite(state, "patternProperties")
            found.append(Obj(some=(Some(frozenset(), (), other, pattern),), at=obj.at))
    if obj.names:  # every name breaks the rule: one would be enough, but which of them?
        found.append(Obj(names=document.opposite(obj.names, "propertyNames"), low=1, at=obj.at))
    if obj.low:
        found.append(Obj(high=obj.low - 1, at=obj.at))
    if obj.high is not None:
        found.append(Obj(low=obj.high + 1, at=obj.at))
    for some in obj.some:
        if some.inside is not None:
            other = document.opposite(some.state, "not")
            found.append(Obj(patterns={some.inside: other}, at=obj.at))
            continue
        free = dict.fromkeys(some.patterns, ANY_STATE)
        rest = document.opposite(some.state, "not")
        found.append(Obj(props=dict.fromkeys(some.names, ANY_STATE), patterns=free, rest=rest, said=True, at=obj.at))
    return found
