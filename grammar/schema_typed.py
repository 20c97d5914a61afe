"""The keywords of single types, and listed values, read into branches.

Knows nothing of combinations; what is below a keyword becomes a state and is not looked at here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Protocol

from . import schema_text as text
from .schema_algebra import tighter
from .schema_document import ANY_STATE, NO_STATE, Document, State, both
from .schema_keywords import NUMBER_FORMATS, OF, TYPES
from .schema_numbers import no_number
from .schema_sets import HARD, KINDS, NOTHING, SOFT, Arr, Bound, Branch, Contains, Num, Obj, Str, Values
from .schema_values import Schema, count, is_number, mapping, names, pointer, refuse, shown, type_of
from .string_formats import string_format


class Notes(Protocol):
    """See `schema_read.Problems`."""

    def give_up(self, path: str, keyword: str, reason: str) -> None: ...

    def note(self, path: str, keyword: str, reason: str) -> None: ...


class Reading(Protocol):
    """The reader as these functions see it."""

    @property
    def document(self) -> Document: ...

    @property
    def problems(self) -> Notes: ...


def types_of(node: Schema, path: str) -> tuple[str, ...] | None:
    """The value of `type` as a tuple; None when there is none."""
    if "type" not in node:
        return None
    value = node["type"]
    listed = value if isinstance(value, list) else [value]
    for name in listed:
        if name not in TYPES:
            refuse(path, "type", f"is one of {', '.join(TYPES)}, not {shown(name)}")
    if not listed:
        refuse(path, "type", "is an empty list")
    return tuple(listed)


def typed(reader: Reading, node: Schema, path: str) -> Values:
    """What `type` and the keywords of single types let through together."""
    types = types_of(node, path)
    parts: dict[str, list[Any]] = {}
    is_exact = True
    for kind in KINDS:
        whole = None
        if types is not None and kind not in types:
            if kind != "number" or "integer" not in types:
                continue
            whole = True
        free = SOFT if types is None else HARD
        keys = OF.get(kind)
        if keys is None or (keys.isdisjoint(node) and not (kind == "number" and "format" in node)):
            parts[kind] = [Num(whole=True, at={"type": path}) if whole else free[kind]]
            continue
        read = _READERS[kind]
        branch, as_said = read(reader, node, path, whole) if kind == "number" else read(reader, node, path)
        is_exact &= as_said
        if branch is None:
            continue
        parts[kind] = [free[kind] if branch is HARD[kind] else branch]
    return Values(parts, is_exact) if parts or not is_exact else NOTHING


def listed(node: Schema, keyword: str, path: str) -> Values:
    """The values of `enum` or `const`."""
    values = [node[keyword]] if keyword == "const" else node[keyword]
    if not isinstance(values, list):
        refuse(path, keyword, f"is a list, not {shown(values)}")
    by_kind: dict[str, list[Any]] = {}
    for value in values:
        by_kind.setdefault(type_of(value), []).append(value)
    at = {keyword: path}
    return Values({kind: [type(HARD[kind])(values=tuple(found), at=at)] for kind, found in by_kind.items()})


# ---- numbers -------------------------------------------------------------------------------------------------------


def _number(reader: Reading, node: Schema, path: str, whole: bool | None) -> tuple[Num | Branch | None, bool]:
    low = _bound(node, path, "minimum", "exclusiveMinimum", 1)
    high = _bound(node, path, "maximum", "exclusiveMaximum", -1)
    as_said = True
    given = node.get("format")
    if isinstance(given, str) and given in NUMBER_FORMATS:
        limits = NUMBER_FORMATS[given]
        if limits is not None and whole:
            low = tighter(low, (Decimal(limits[0]), False), 1)
            high = tighter(high, (Decimal(limits[1]), False), -1)
            as_said = False
        elif limits is not None:
            reader.problems.note(path, "format", f"{given!r} speaks of integers: without that type an annotation")
    elif "format" in node and "string" not in (types_of(node, path) or ("string",)):
        _check_unknown_format(reader, given, path)
    multiple = node.get("multipleOf", 1)
    if not is_number(multiple) or multiple <= 0 or not math.isfinite(multiple):
        refuse(path, "multipleOf", f"is a number above 0, not {shown(multiple)}")
    if "multipleOf" not in node or (whole and multiple == 1):
        multiples: tuple[Decimal, ...] = ()
    else:
        multiples = (Decimal(str(multiple)),)
    if low is None and high is None and not multiples:
        return (Num(whole=True, at={"type": path}) if whole else HARD["number"]), as_said
    number = Num(
        at={**_places(node, "number", path), "type": path}, whole=whole, low=low, high=high, multiples=multiples
    )
    return (None if no_number(number) else number), as_said


def _places(node: Schema, kind: str, path: str) -> Mapping[str, str]:
    return dict.fromkeys(OF[kind] & node.keys(), path)


def _bound(node: Schema, path: str, keyword: str, exclusive: str, sign: int) -> Bound | None:
    found: list[Bound | None] = [None, None]
    flag = node.get(exclusive)
    for at, key in enumerate((keyword, exclusive)):
        if key not in node or (key == exclusive and isinstance(flag, bool)):
            continue
        value = node[key]
        if not is_number(value) or not math.isfinite(value):
            refuse(path, key, f"is a number, not {shown(value)}")
        # Draft-04: a boolean says whether the bound beside it is exclusive.
        found[at] = (Decimal(str(value)), key == exclusive or flag is True)
    return tighter(found[0], found[1], sign)


# ---- strings -------------------------------------------------------------------------------------------------------


def _string(reader: Reading, node: Schema, path: str) -> tuple[Str | Branch | None, bool]:
    low, high = count(node, "minLength", path) or 0, count(node, "maxLength", path)
    as_said = True
    patterns: tuple[str, ...] = ()
    if "pattern" in node:
        known = pattern_of(reader, node["pattern"], path, "pattern")
        patterns = (node["pattern"],) if known else ()
        as_said = known
    formats: tuple[str, ...] = ()
    given = node.get("format")
    if isinstance(given, str) and string_format(given) is not None:
        formats = (given,)
    elif "format" in node and not (isinstance(given, str) and given in NUMBER_FORMATS):
        _check_unknown_format(reader, given, path)
    if high is not None and low > high:
        return None, as_said
    if not (low or high is not None or patterns or formats):
        return HARD["string"], as_said
    at = _places(node, "string", path)
    return Str(at=at, low=low, high=high, patterns=patterns, formats=formats), as_said


def _check_unknown_format(reader: Reading, given: Any, path: str) -> None:
    """A format is an annotation by the specification, unless who reads the schema asserts it: those in
    `string_formats` are asserted, all others stay annotations, under `strict` too, and are always reported."""
    if not isinstance(given, str):
        refuse(path, "format", f"is a string, not {shown(given)}")
    if string_format(given) is None:
        reader.problems.note(path, "format", f"{given[:40]!r} is not a known format, and so an annotation")


def pattern_of(reader: Reading, pattern: Any, path: str, keyword: str) -> bool:
    """Whether a pattern can be enforced; if not, it has been given up."""
    if not isinstance(pattern, str):
        refuse(path, keyword, f"is a string, not {shown(pattern)}")
    try:
        text.expression(pattern)
    except text.Invalid as error:
        refuse(path, keyword, f"is no regular expression, {shown(pattern)}: {error}")
    except text.Unsupported as error:
        reader.problems.give_up(path, keyword, f"{shown(pattern)}: {error}")
        return False
    return True


# ---- arrays --------------------------------------------------------------------------------------------------------


def _array(reader: Reading, node: Schema, path: str) -> tuple[Arr | Branch | None, bool]:
    """`prefixItems` and `items`, or the two forms of `items` of older drafts."""
    low, high = count(node, "minItems", path) or 0, count(node, "maxItems", path)
    old = isinstance(node.get("items"), list)
    first, rest = ("items", "additionalItems") if old else ("prefixItems", "items")
    written = node.get(first, [])
    if not isinstance(written, list):
        refuse(path, first, f"is a list of schemas, not {shown(written)}")
    child = reader.document.state
    array = Arr(at=_places(node, "array", path), low=low, high=high)
    array.prefix = tuple(child(f"{path}/{first}/{at}", schema) for at, schema in enumerate(written))
    if rest in node:
        array.items = _schema(reader, node, rest, path)
    array.evaluated = math.inf if rest in node else len(written)
    array.open_prefix = bool(written) and rest not in node
    if "uniqueItems" in node:
        if not isinstance(node["uniqueItems"], bool):
            refuse(path, "uniqueItems", f"is true or false, not {shown(node['uniqueItems'])}")
        array.unique = node["uniqueItems"]
    least, most = count(node, "minContains", path), count(node, "maxContains", path)
    if "contains" in node:
        state = _schema(reader, node, "contains", path)
        array.contains = (Contains(state, 1 if least is None else least, most),)
    for index, state in enumerate((*array.prefix, array.items)):
        if state == NO_STATE:
            high = array.high = index if high is None else min(high, index)
            break
    return (None if high is not None and low > high else array), True


def _schema(reader: Reading, node: Schema, keyword: str, path: str) -> State:
    value = node[keyword]
    if not isinstance(value, (dict, bool)):
        refuse(f"{path}/{keyword}", keyword, f"holds {shown(value)}, and a schema is an object or a boolean")
    return reader.document.state(f"{path}/{keyword}", value)


# ---- objects -------------------------------------------------------------------------------------------------------


def _object(reader: Reading, node: Schema, path: str) -> tuple[Obj | Branch | None, bool]:
    child = reader.document.state
    obj = Obj(at=_places(node, "object", path))
    obj.low, obj.high = count(node, "minProperties", path) or 0, count(node, "maxProperties", path)
    as_said = True
    if "required" in node:
        obj.required = names(node["required"], "required", path)
    if "additionalProperties" in node:
        obj.rest, obj.said = _schema(reader, node, "additionalProperties", path), True
    declared = mapping(node, "properties", path)
    patterned = mapping(node, "patternProperties", path)
    for pattern, schema in patterned.items():
        place = f"{path}/patternProperties/{pointer(pattern)}"
        if pattern_of(reader, pattern, place, "patternProperties"):
            obj.patterns[pattern] = child(place, schema)
        else:  # a name that it matches is not held to the rest either
            obj.rest, obj.said, as_said = ANY_STATE, True, False
    for name, schema in declared.items():
        state = child(f"{path}/properties/{pointer(name)}", schema)
        for pattern, held in obj.patterns.items():
            if text.searches(pattern, name):
                state = both(state, held)
        obj.props[name] = state
    spoken = frozenset(declared), frozenset(obj.patterns)
    obj.spoken = None if "additionalProperties" in node or len(obj.patterns) < len(patterned) else spoken
    if "propertyNames" in node:
        obj.names = _schema(reader, node, "propertyNames", path)
        if obj.names == NO_STATE:
            obj.names, obj.high = ANY_STATE, 0
    empty = obj.high is not None and max(obj.low, len(obj.required)) > obj.high
    return (None if empty else obj), as_said


_READERS: dict[str, Any] = {"number": _number, "string": _string, "array": _array, "object": _object}
