"""Arguments that are written one by one, each value held to its own property's schema.

Pythonic: `a=1, b="x"`. Values are JSON texts, which are Python literals too but for true, false and null; a property
that is just a boolean, or may also be null, is written True, False, None. Deeper inside a value they keep JSON's
spelling.

Gemma: `a:1,b:<escape>x<escape>`. Strings that are free or out of a list are written between `<escape>`, and so are
those in plain arrays and nested objects; strings under other keywords (pattern, format, lengths) are JSON strings.

Arguments that cannot be told apart like this (a schema with `anyOf`, `patternProperties`, `minProperties` and the like
at its root, with names that are no identifiers, or open and without properties) are written as one JSON object
instead: `f(**{…})` and `call:f{…}`. Properties come in the order of the schema; undeclared ones are not written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .base import FormatJson
from .literals import ESCAPE
from .shapes import ANY, const, either, listed, optional, schema, sequence, tag

Schema = dict[str, Any]

MAX_OPTIONAL = 12
"""Optional properties, where none is required: each may come first, which takes the square of their number."""

_NOTES = frozenset(("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"))
_HOISTED = ("$schema", "$defs", "definitions")
_ROOT = _NOTES | {*_HOISTED, "type", "properties", "required", "additionalProperties", "$id", "id", "strict"}
_NAME = re.compile(r"[^\W\d]\w*")
_LOCAL = re.compile(r"#/(\$defs|definitions)/")


class Style:
    """How one family writes a list of arguments: Python's way."""

    separator = ", "
    assign = "="

    def value(self, value: Any, shared: Schema) -> FormatJson:
        """A value under the schema `value`; `shared` holds the definitions that it may refer to."""
        if isinstance(value, dict):
            bare = {key: item for key, item in value.items() if key not in _NOTES}
            if bare == {"type": "boolean"}:
                return either(const("True"), const("False"))
            rest = _not_null(value)
            if rest is not None:
                return either(const("None"), self.value(rest, shared))
        return _json(value, shared)

    def arguments(self, root: Schema) -> FormatJson | None:
        """The arguments that `root` describes, without brackets. None: they are not written one by one. An empty
        `or` stands for no arguments at all."""
        if not _is_plain(root):
            return None
        shared = {key: root[key] for key in _HOISTED if key in root}
        required = root.get("required", [])
        properties = {**root["properties"], **{name: True for name in required if name not in root["properties"]}}
        items = [(name, self.value(item, shared), name in required) for name, item in properties.items()]
        if not required and len(items) > MAX_OPTIONAL:
            return None
        return sequence(*self._ordered(items)) if items else {"type": "or", "elements": []}

    def _ordered(self, items: list[tuple[str, FormatJson, bool]]) -> Iterator[FormatJson]:
        """Separators stand after what precedes the first required argument, and before what follows it."""
        first = next((at for at, (_, _, needed) in enumerate(items) if needed), None)
        if first is None:
            yield optional(
                *(
                    sequence(const(self._key(name)), value, *self._after(items[at + 1 :]))
                    for at, (name, value, _) in enumerate(items)
                )
            )
            return
        for name, value, _ in items[:first]:
            yield optional(sequence(const(self._key(name)), value, const(self.separator)))
        name, value, _ = items[first]
        yield sequence(const(self._key(name)), value)
        yield from self._after(items[first + 1 :])

    def _after(self, items: list[tuple[str, FormatJson, bool]]) -> Iterator[FormatJson]:
        for name, value, needed in items:
            item = sequence(const(self.separator + self._key(name)), value)
            yield item if needed else optional(item)

    def _key(self, name: str) -> str:
        return name + self.assign


class GemmaStyle(Style):
    """Gemma's way."""

    separator = ","
    assign = ":"

    def value(self, value: Any, shared: Schema) -> FormatJson:
        if not isinstance(value, dict):
            return _json(value, shared)
        bare = {key: item for key, item in value.items() if key not in _NOTES}
        if bare == {"type": "string"}:
            return tag(ESCAPE, ANY, ESCAPE)
        choices = bare.get("enum")
        if (
            choices
            and bare.keys() <= {"type", "enum"}
            and bare.get("type", "string") == "string"
            and all(isinstance(choice, str) and ESCAPE not in choice for choice in choices)
        ):
            return either(*(const(f"{ESCAPE}{choice}{ESCAPE}") for choice in choices))
        if (
            bare.get("type") == "array"
            and bare.keys() == {"type", "items"}
            and _kind(bare["items"]) in ("string", "object")
        ):
            inner = self.value(bare["items"], shared)
            if inner["type"] == "tag":
                items = {**listed([inner], self.separator, many=True), "at_least_one": False}
                return tag("[", items, "]")
        if bare.get("type") == "object" and bare.keys().isdisjoint(_HOISTED):
            inside = self.arguments({**value, **shared})
            if inside is not None:
                return sequence(const("{"), *inside_of(inside), const("}"))
        return _json(value, shared)


def inside_of(arguments: FormatJson) -> list[FormatJson]:
    """The elements of what `Style.arguments` gave: none for no arguments."""
    return [arguments] if arguments.get("elements") != [] else []


def _is_plain(root: Schema) -> bool:
    """Every property's schema can stand alone, and nothing else is said of the object."""
    properties = root.get("properties")
    required = root.get("required", [])
    if root.get("type") != "object" or not root.keys() <= _ROOT or not isinstance(properties, dict):
        return False
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return False
    if not all(_NAME.fullmatch(name) for name in (*properties, *required)):
        return False
    return all(_LOCAL.match(str(target)) for target in _references(root))


def _references(value: Any) -> Iterator[Any]:
    """What is referred to; an anchor, or an id below the root, counts as something that cannot be resolved here."""
    stack = [(value, True)]
    while stack:
        node, top = stack.pop()
        if isinstance(node, list):
            stack += ((item, False) for item in node)
        elif isinstance(node, dict):
            for key, item in node.items():
                if key == "$ref":
                    yield item
                elif key in ("$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor") or (key == "$id" and not top):
                    yield key
                else:
                    stack.append((item, False))


def _not_null(value: Schema) -> Schema | None:
    """The schema without its null, if it allows null in a way that is easily seen."""
    kinds = value.get("type")
    if isinstance(kinds, list) and "null" in kinds and len(kinds) > 1 and value.keys().isdisjoint(("enum", "const")):
        rest = [kind for kind in kinds if kind != "null"]
        return {**value, "type": rest[0] if len(rest) == 1 else rest}
    for key in ("anyOf", "oneOf"):
        branches = value.get(key)
        if isinstance(branches, list) and value.keys() - _NOTES == {key}:
            rest = [branch for branch in branches if branch != {"type": "null"}]
            if rest and len(rest) == len(branches) - 1:
                return rest[0] if len(rest) == 1 and isinstance(rest[0], dict) else {**value, key: rest}
    return None


def _json(value: Any, shared: Schema) -> FormatJson:
    return schema({**shared, **value} if isinstance(value, dict) else value)


def _kind(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else None
