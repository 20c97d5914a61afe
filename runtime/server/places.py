"""Where the parts of a grammar come from in the request, so that a fault in one names the caller's field."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import GrammarInvalid
from ...grammar.string_formats import string_format
from ...types import Relaxed

_STEP = re.compile(r"(?:format|schema|ebnf|lark|choice): (?:(#(?:/.*?)?): )?|(#(?:/.*?)?): ")
"""How a refusal by the grammar begins: what is read, and where in that; a schema in a format has one of each."""
_NEXT = "; schema: #"
"""Begins what a further engine has against the same schema."""


class Place(NamedTuple):
    """The part of the grammar at `pointer` (a JSON pointer) is what the caller gave in `field`, or what of it stands at
    `inside`. `root` stands for the field in paths that the caller is told without it. With `strict` nothing in
    `schema`, which is what stands there, may be relaxed."""

    pointer: str
    field: str
    root: str = "#"
    inside: str = ""
    strict: bool = False
    schema: Any = None


class Places:
    """All of one grammar; `field` is what the others come from, or None where there is no grammar."""

    def __init__(self, field: str | None, places: Sequence[Place] = ()) -> None:
        self.field = field
        self._places = tuple(places)

    def reported(self, relaxed: Sequence[Relaxed]) -> tuple[Relaxed, ...]:
        """The same in the caller's terms. Raises GrammarInvalid for what a strict part does not allow."""
        entries = []
        for entry in relaxed:
            place = self._of(entry.path)
            if place is None:
                entries.append(entry)
                continue
            below = entry.path.removeprefix(place.pointer)
            inside = place.inside + below
            if place.strict and not _annotation(entry, place.schema, below):
                fault = _at(inside, f"`{entry.keyword}` cannot be enforced: {entry.reason}")
                raise GrammarInvalid(f"{place.field}: {fault}", place.field)
            entries.append(Relaxed(place.root + inside, entry.keyword, entry.reason))
        return tuple(dict.fromkeys(entries))

    def blame(self, message: str) -> tuple[str | None, str]:
        """The field that a refusal of the grammar is about, and the refusal: the path in that field, unless it is all
        of it, and the fault, as the engine that enforces most has it."""
        pointer, rest = "", message.partition(_NEXT)[0]
        while (step := _STEP.match(rest)) is not None:
            pointer = (pointer or "#") + (step[1] or step[2] or "#")[1:]
            rest = rest[step.end() :]
        place = self._of(pointer)
        if place is None:  # a path in a grammar that is ours says nothing to the caller
            return self.field, rest
        return place.field, _at(place.inside + pointer.removeprefix(place.pointer), rest)

    def _of(self, path: str) -> Place | None:
        return next((p for p in self._places if path == p.pointer or path.startswith(f"{p.pointer}/")), None)


def _at(inside: str, fault: str) -> str:
    """The fault, and where in the field it is, unless that is all of it."""
    return f"#{inside}: {fault}" if inside else fault


def at_pointer(schema: Any, pointer: str) -> Any:
    """What stands at a JSON pointer (without `#`); None if there is nothing."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and name.isdigit():
            schema = schema[int(name)] if int(name) < len(schema) else None
        else:
            schema = schema.get(name) if isinstance(schema, dict) else None
    return schema


def _annotation(entry: Relaxed, schema: Any, inside: str) -> bool:
    """A format that nobody knows holds nothing to anything, by the specification."""
    node = at_pointer(schema, inside)
    if entry.keyword != "format" or not isinstance(node, dict) or not isinstance(node.get("format"), str):
        return False
    return string_format(node["format"]) is None
