"""Sets of JSON values: by type, each type a list of branches, each branch a conjunction of constraints of that type.

A branch that is `soft` stands for a type that no keyword spoke of, where keywords of other types did: the specification
lets it through, whoever wrote the schema hardly meant it. It is left out where a set has branches that are not soft.
`at` maps a keyword to the path of the schema that said it.

Knows nothing of documents or engines. The operations are in `schema_algebra`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from .schema_document import ANY_STATE, State

KINDS = ("null", "boolean", "number", "string", "array", "object")

Bound = tuple[Decimal, bool]
"""A value, and whether it is itself excluded."""


@dataclass(slots=True)
class Branch:
    """What all branches have. With `values` the branch is those values and no others; all else says nothing then."""

    soft: bool = False
    values: tuple[Any, ...] | None = None
    excluded: tuple[Any, ...] = ()
    at: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Num(Branch):
    whole: bool | None = None  # True: integers only; False: none of them
    low: Bound | None = None
    high: Bound | None = None
    multiples: tuple[Decimal, ...] = ()
    not_multiples: tuple[Decimal, ...] = ()


@dataclass(slots=True)
class Str(Branch):
    """Expressions are those of `pattern`, or names of formats."""

    low: int = 0
    high: int | None = None
    patterns: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    not_patterns: tuple[str, ...] = ()


@dataclass(slots=True)
class Contains:
    """At least `low` and at most `high` items satisfy `state`."""

    state: State
    low: int
    high: int | None


@dataclass(slots=True)
class Arr(Branch):
    prefix: tuple[State, ...] = ()
    items: State = ANY_STATE
    low: int = 0
    high: int | None = None
    unique: bool = False
    contains: tuple[Contains, ...] = ()
    open_prefix: bool = False  # a prefix stands there, and nothing was said of what follows it
    evaluated: float = 0  # how many items a keyword has spoken of; infinity: all


@dataclass(slots=True)
class Some:
    """At least one property satisfies `state`, of those whose name is not in `names`, matches no pattern of `patterns`
    and matches `inside` if that is given."""

    names: frozenset[str]
    patterns: tuple[str, ...]
    state: State
    inside: str | None = None


@dataclass(slots=True)
class Obj(Branch):
    """A name that `props` does not have is held to all `patterns` that it matches, or if there are none to `rest`.

    `said`: something was said of the rest. `spoken`: names and patterns that a keyword has spoken of; None: all."""

    props: dict[str, State] = field(default_factory=dict)
    patterns: dict[str, State] = field(default_factory=dict)
    rest: State = ANY_STATE
    said: bool = False
    required: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    names: State = ANY_STATE
    some: tuple[Some, ...] = ()
    narrow: bool = False  # fewer values than the schemas that were met
    spoken: tuple[frozenset[str], frozenset[str]] | None = (frozenset(), frozenset())


@dataclass(slots=True)
class Values:
    """`exact`: just the values of the schema; otherwise fewer (narrowed) or more (relaxed, and reported)."""

    parts: dict[str, list[Any]]  # kind → its branches
    exact: bool = True


_KIND_BRANCHES: dict[str, type[Branch]] = {
    "null": Branch, "boolean": Branch, "number": Num, "string": Str, "array": Arr, "object": Obj,
}  # fmt: skip

SOFT: dict[str, Branch] = {kind: branch(soft=True) for kind, branch in _KIND_BRANCHES.items()}
HARD: dict[str, Branch] = {kind: branch() for kind, branch in _KIND_BRANCHES.items()}
ANY = Values({kind: [SOFT[kind]] for kind in KINDS})
NOTHING = Values({})


def is_free(branch: Branch) -> bool:
    """Whether the branch is all values of its type."""
    if branch is SOFT.get(_kind_of(branch)) or branch is HARD.get(_kind_of(branch)):
        return True
    if branch.values is not None or branch.excluded:
        return False
    if isinstance(branch, Num):
        return branch.whole is None and not (branch.low or branch.high or branch.multiples or branch.not_multiples)
    if isinstance(branch, Str):
        bounds = branch.low or branch.high is not None
        return not (bounds or branch.patterns or branch.formats or branch.not_patterns)
    if isinstance(branch, Arr):
        bounds = branch.low or branch.high is not None
        return not (bounds or any(branch.prefix) or branch.items or branch.unique or branch.contains)
    if isinstance(branch, Obj):
        states = (*branch.props.values(), *branch.patterns.values(), branch.rest, branch.names)
        bounds = branch.low or branch.high is not None
        return not (bounds or branch.required or any(states) or branch.some)
    return True


def _kind_of(branch: Branch) -> str:
    return {Num: "number", Str: "string", Arr: "array", Obj: "object"}.get(type(branch), "null")
