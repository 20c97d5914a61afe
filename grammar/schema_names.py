"""The rules for names of an object made such that engines have them: no name can match two.

`propertyNames` becomes patterns, patterns that may match the same name are parted, and a declared name is taken out of
the patterns that it matches.

Knows nothing of engines.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from . import schema_text as text
from .regex import literal
from .schema_algebra import lookup
from .schema_document import ANY_STATE, NO_STATE, State, both
from .schema_read import Reader
from .schema_sets import Obj, Str

_MAX_PATTERNS = 4  # that are parted


def held_to_names(obj: Obj, reader: Reader) -> Obj:
    """Without `propertyNames`, if that can be: declared names are looked at, for others its rule becomes a pattern.

    `obj.props` is changed."""
    for name in obj.props:
        if not reader.algebra.holds(obj.names, name):
            obj.props[name] = NO_STATE
    branches = reader.expand(obj.names).parts.get("string", [])
    if all(branch.values is not None for branch in branches):
        for name in dict.fromkeys(value for branch in branches for value in branch.values):
            obj.props.setdefault(name, lookup(obj, name))
        return replace(obj, patterns={}, rest=NO_STATE, names=ANY_STATE, said=True)
    if obj.rest == NO_STATE and not obj.patterns:
        return replace(obj, names=ANY_STATE)
    rule = _rule(branches)
    if rule is None:
        return obj
    wanted, unwanted, formats = rule
    patterns: dict[str, State] = {}
    try:
        for pattern, state in obj.patterns.items():
            found = text.combined((pattern, *wanted), unwanted, formats)
            if found is not None:
                patterns[found] = state
        if obj.rest != NO_STATE:
            others = (*unwanted, *obj.patterns)
            found = wanted[0] if len(wanted) == 1 and not others and not formats else None
            found = found or text.combined(wanted, others, formats)
            if found is not None:
                patterns[found] = obj.rest
    except text.Unsupported:
        return obj
    return replace(obj, patterns=patterns, rest=NO_STATE, names=ANY_STATE, said=True)


def _rule(branches: list[Str]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] | None:
    """(patterns that names match, that they do not, formats); None where there are several ways."""
    if len(branches) != 1:
        return None
    string = branches[0]
    wanted = string.patterns
    if string.low or string.high is not None:
        bounds = f"^[\\s\\S]{{{string.low},{'' if string.high is None else string.high}}}$"
        lengths = text.expression(wanted[0]).lengths if len(wanted) == 1 else None
        high_implied = string.high is None or (lengths and lengths.high is not None and lengths.high <= string.high)
        if lengths is None or lengths.low < string.low or not high_implied:
            wanted = (*wanted, bounds)
    unwanted = (*string.not_patterns, *(f"^{literal(name)}$" for name in string.excluded))
    return wanted, unwanted, string.formats


def without_overlaps(obj: Obj) -> Obj:
    """The same object with patterns that cannot match one name, nor a declared one; as it is where that is too much.

    `obj.props` is changed."""
    patterns = obj.patterns
    if not patterns:
        return obj
    for pattern in patterns:  # names that can be counted are declared
        for name in text.listed(pattern) or ():
            obj.props.setdefault(name, lookup(obj, name))
    patterns = {pattern: state for pattern, state in patterns.items() if text.listed(pattern) is None}
    pairs = combinations(patterns.items(), 2)
    if any(a != b and not text.apart(one, other) for (one, a), (other, b) in pairs):
        if len(patterns) > _MAX_PATTERNS:
            return obj
        try:
            patterns = _parted(patterns)
        except text.Unsupported:
            return obj
    outside: dict[str, State] = {}
    for pattern, state in patterns.items():
        names = [name for name, held in obj.props.items() if held != state and text.searches(pattern, name)]
        try:
            found = text.combined((pattern,), tuple(f"^{literal(name)}$" for name in names)) if names else pattern
        except text.Unsupported:
            found = pattern
        if found is not None:
            outside[found] = state
    return replace(obj, patterns=outside)


def _parted(patterns: dict[str, State]) -> dict[str, State]:
    """One pattern for each way in which a name may match some and not others."""
    parts: dict[str, State] = {}
    for size in range(1, len(patterns) + 1):
        for chosen in combinations(patterns, size):
            found = text.combined(chosen, tuple(pattern for pattern in patterns if pattern not in chosen))
            if found is not None:
                state = ANY_STATE
                for pattern in chosen:
                    state = both(state, patterns[pattern])
                parts[found] = state
    return parts
