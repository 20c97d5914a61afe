"""JSON Schema → a schema that one engine enforces in full, the engine, and what was relaxed to get there.

The way: the document (`schema_document`), what its parts mean as sets of values (`schema_read`, `schema_algebra`),
those sets made ready (`schema_settle`), and written for an engine (`schema_write` and one module an engine). What comes
out lets through only values of the schema, and may let through fewer: where only keywords of some types stand, the
value has one of these types; and where all is enforced, undeclared properties and items of which nothing is said stay
out, as a model would fill them with what nobody asked for.

Knows nothing of vocabularies.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

from ..errors import GrammarInvalid
from ..types import Relaxed
from .schema_algebra import Overworked
from .schema_conflict import refuse_empty
from .schema_document import Document
from .schema_llguidance import LlguidanceWriter
from .schema_read import Problems, Reader
from .schema_settle import Settler
from .schema_values import refuse, refuse_text
from .schema_write import Cannot, Writer
from .schema_xgrammar import XgrammarWriter

EngineName = Literal["xgrammar", "llguidance"]

_WRITERS: dict[EngineName, type[Writer]] = {"xgrammar": XgrammarWriter, "llguidance": LlguidanceWriter}


class Cost(IntEnum):
    """Of compiling a schema with an engine, and of its masks."""

    LOW = 0
    HIGH = 1
    TOO_HIGH = 2


@dataclass(frozen=True, slots=True)
class Linted:
    """`schema` is JSON text, normalised, with the property order of the original; `engine` enforces all of it.

    `relaxed` is what the original says beyond that. Formats that nobody knows are annotations by the specification:
    they are listed here, and not refused under `strict`."""

    schema: str
    engine: EngineName
    relaxed: tuple[Relaxed, ...] = ()


def lint(
    text: str,
    *,
    strict: bool,
    max_depth: int,
    engines: tuple[EngineName, ...] = ("xgrammar", "llguidance"),
    closed: bool | None = None,
    cost: Callable[[EngineName, str], Cost] = lambda engine, schema: Cost.LOW,
) -> Linted:
    """The schema for the first of `engines` that enforces all of it; without `strict` for the one that leaves out
    least. Raises `GrammarInvalid`, whose message holds JSON path and keyword: for what is not a schema, what no value
    satisfies and what passes the bounds always; under `strict` for what none of `engines` enforces.

    `closed` keeps out undeclared properties and items of which the schema says nothing; None: as `strict`. `cost` is
    what an engine has to do for its schema: where it is high, an engine that enforces as much goes before; where it is
    too high, any does, and under `strict` the schema is refused rather than served so."""
    try:
        return _Linter(text, strict, max_depth, strict if closed is None else closed).best(engines, cost)
    except RecursionError:
        refuse_text("nested too deep")


class _Linter:
    """One schema, read and settled once, and written for each engine that is asked for."""

    def __init__(self, text: str, strict: bool, max_depth: int, closed: bool) -> None:
        document = Document(text, max_depth)
        self._strict = strict
        self._max_depth = max_depth
        self._problems = Problems(strict)
        self._settler = Settler(Reader(document, self._problems), closed=closed)
        self._root = document.state("#", document.root)
        try:
            self._settler.reach(self._root)
        except Overworked as error:
            refuse("#", document.keyword(document.part("#", document.root)), str(error))
        if self._root and self._root not in self._settler.alive:
            refuse_empty(document.root, lambda root: _is_empty(root, max_depth, closed))

    def best(self, engines: tuple[EngineName, ...], cost: Callable[[EngineName, str], Cost]) -> Linted:
        found: list[tuple[Cost, Linted]] = []
        missing: list[Cannot] = []
        for engine in engines:
            try:
                linted = self._written(engine)
            except Cannot as error:
                missing.append(error)
                continue
            found.append((cost(engine, linted.schema), linted))
            if found[-1][0] is Cost.LOW and len(linted.relaxed) == len(self._problems.found):
                break
        if missing and all(what is Cost.TOO_HIGH for what, _ in found):
            raise GrammarInvalid("; ".join(dict.fromkeys(map(str, reversed(missing)))))
        return min(found, key=lambda one: (one[0] is Cost.TOO_HIGH, len(one[1].relaxed), one[0]))[1]

    def _written(self, engine: EngineName) -> Linted:
        """Raises `Cannot` under `strict` for what the engine does not enforce."""
        writer = _WRITERS[engine](self._settler, complete=self._strict, max_depth=self._max_depth)
        text = json.dumps(writer.document(self._root), ensure_ascii=False)
        try:
            text.encode()
        except UnicodeEncodeError:
            refuse_text("half of a surrogate pair in a name or value cannot be written")
        return Linted(text, engine, self._problems.relaxed(writer.left_out))


def _is_empty(root: Any, max_depth: int, closed: bool) -> bool:
    """Whether it is known that no value satisfies a schema."""
    document = Document(json.dumps(root), max_depth)
    settler = Settler(Reader(document, Problems(strict=False)), closed=closed)
    state = document.state("#", document.root)
    try:
        settler.reach(state)
    except (GrammarInvalid, Overworked):
        return False
    return bool(state) and state not in settler.alive
