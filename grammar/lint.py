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
from dataclasses import dataclass
from typing import Literal

from ..errors import GrammarInvalid
from ..types import Relaxed
from .schema_document import Document, State
from .schema_llguidance import LlguidanceWriter
from .schema_read import Problems, Reader
from .schema_settle import Settler
from .schema_values import Schema, refuse
from .schema_write import Cannot, Writer
from .schema_xgrammar import XgrammarWriter

EngineName = Literal["xgrammar", "llguidance"]

_WRITERS: dict[EngineName, type[Writer]] = {"xgrammar": XgrammarWriter, "llguidance": LlguidanceWriter}


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
) -> Linted:
    """The schema for the first of `engines` that enforces all of it. Raises `GrammarInvalid`, whose message holds JSON
    path and keyword: for what is not a schema, what no value satisfies and what passes the bounds always; under
    `strict` for what none of `engines` enforces.

    `closed` keeps out undeclared properties and items of which the schema says nothing; None: as `strict`."""
    try:
        return _lint(text, strict, max_depth, engines, strict if closed is None else closed)
    except RecursionError:
        raise GrammarInvalid("schema: nested too deep") from None


def _lint(text: str, strict: bool, max_depth: int, engines: tuple[EngineName, ...], closed: bool) -> Linted:
    document = Document(text, max_depth)
    problems = Problems(strict)
    settler = Settler(Reader(document, problems), closed=closed)
    root = document.state("#", document.root)
    settler.reach(root)
    if root and root not in settler.alive:
        refuse("#", "no value satisfies this schema, or none that can be enforced")
    missing: list[Cannot] = []
    for engine in engines:
        try:
            writer = _WRITERS[engine](settler, complete=True, max_depth=max_depth)
            return _linted(writer.document(root), engine, problems)
        except Cannot as error:
            missing.append(error)
    if strict:
        raise GrammarInvalid("; ".join(dict.fromkeys(_message(error) for error in reversed(missing))))
    return _relaxed(settler, root, problems, max_depth, engines)


def _message(error: Cannot) -> str:
    return f"schema: {error.path}: `{error.keyword}` cannot be enforced: {error.reason}"


def _relaxed(
    settler: Settler, root: State, problems: Problems, max_depth: int, engines: tuple[EngineName, ...]
) -> Linted:
    """For the engine that leaves out least."""
    best: tuple[int, EngineName, Writer, Schema] | None = None
    for engine in engines:
        writer = _WRITERS[engine](settler, complete=False, max_depth=max_depth)
        schema = writer.document(root)
        if best is None or len(writer.left_out) < best[0]:
            best = len(writer.left_out), engine, writer, schema
    assert best is not None
    _, engine, writer, schema = best
    for (path, keyword), reason in writer.left_out.items():
        problems.note(path, keyword, reason)
    return _linted(schema, engine, problems)


def _linted(schema: Schema, engine: EngineName, problems: Problems) -> Linted:
    text = json.dumps(schema, ensure_ascii=False)
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise GrammarInvalid("schema: half of a surrogate pair in a name or value cannot be written")
    return Linted(text, engine, problems.relaxed())
