"""Where the parts of a grammar come from in the request, so that a fault in one names the caller's field."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import GrammarInvalid
from ...grammar.string_formats import string_format
from ...types import Relaxed

_POINTER = re.compile(r"#(?:/[^\s:/]*)*")


class Place(NamedTuple):
    """The part of the grammar at `pointer` (a JSON pointer) is what the caller gave in `field`. `shown` stands for it
    in paths that the caller is told. With `strict` nothing in `schema`, which is what stands there, may be relaxed."""

    pointer: str
    field: str
    shown: str = "#"
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
            inside = entry.path.removeprefix(place.pointer)
            path = place.shown + inside
            if place.strict and not _annotation(entry, place.schema, inside):
                message = f"{place.field}: {path}: {entry.keyword} cannot be enforced: {entry.reason}"
                raise GrammarInvalid(message, place.field)
            entries.append(Relaxed(path, entry.keyword, entry.reason))
        return tuple(dict.fromkeys(entries))

    def blame(self, message: str) -> tuple[str | None, str]:
        """The field that a refusal of the grammar is about, and the refusal with the caller's paths."""
        for match in _POINTER.finditer(message):
            place = self._of(match[0])
            if place is not None:
                shown = place.shown + match[0].removeprefix(place.pointer)
                return place.field, message[: match.start()] + shown + message[match.end() :]
        return self.field, message

    def _of(self, path: str) -> Place | None:
        return next((p for p in self._places if path == p.pointer or path.startswith(f"{p.pointer}/")), None)


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
