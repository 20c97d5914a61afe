"""Which engine serves which spec, by what each enforces and what it costs. The figures are in docs/decisions/0008.

    json_object, choice, ebnf   xgrammar
    json_schema                 xgrammar for small closed schemas, whose masks it has ready; llguidance for all that
                                xgrammar does not enforce, or is slow to compile or to follow
    regex                       llguidance, whose masks never cost more than a walk over the vocabulary; outlines-core
                                where that walk is long at every token and the whole automaton is small
    lark                        llguidance
    structural_tag              as json_schema, with all schemas of the format on one engine

Knows nothing of engines' objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import GrammarInvalid
from ..types import Relaxed
from . import formats
from .char_sets import CharSet
from .formats import Format
from .lint import Cost, EngineName, Linted, lint
from .regex import Regex
from .regex_cost import costly, parts
from .vocabulary import Vocabulary

LARGE_SCHEMA = 1_000
"""Bytes of normalised schema from which xgrammar is passed over: it compiles about 50 a millisecond, and its time grows
faster than that; llguidance compiles ten times as many."""

HUGE_SCHEMA = 40_000
"""Bytes of normalised schema from which xgrammar is not used at all: it takes seconds."""

_WIDE_SHARE = 0.04  # of the vocabulary: tokens that a class is made of, from which a mask is a long walk
_AUTOMATON = 4.0  # vocabularies that outlines-core may have to go through for its whole automaton

_BOTH: tuple[EngineName, ...] = ("xgrammar", "llguidance")
_SLOW_FOR_XGRAMMAR: tuple[EngineName, ...] = ("llguidance", "xgrammar")


def route_schema(text: str, *, strict: bool, max_depth: int, engines: tuple[EngineName, ...] = _BOTH) -> Linted:
    """The schema, linted for its engine. Raises `GrammarInvalid`."""
    return lint(text, strict=strict, max_depth=max_depth, engines=engines, cost=_cost)


def _cost(engine: EngineName, schema: str) -> Cost:
    if engine == "llguidance" or not _slow(schema):
        return Cost.LOW
    return Cost.HIGH if len(schema) <= HUGE_SCHEMA else Cost.TOO_HIGH


def route_regex(regex: Regex, vocabulary: Vocabulary) -> Literal["outlines", "llguidance"]:
    pieces = parts(regex)
    sizes: dict[CharSet, float] = {
        chars: vocabulary.tokens_of(chars) / vocabulary.head_width for chars in {piece.chars for piece in pieces}
    }
    long_walks = any(piece.counted and piece.times > 1 and sizes[piece.chars] > _WIDE_SHARE for piece in pieces)
    automaton = sum(piece.times * (sizes[piece.chars] + 0.02) for piece in pieces)
    return "outlines" if long_walks and automaton <= _AUTOMATON else "llguidance"


@dataclass(frozen=True, slots=True)
class RoutedFormat:
    """`format` with linted schemas, and patterns as `Regex.write` writes them."""

    format: Format
    engine: EngineName
    relaxed: tuple[Relaxed, ...]


def route_format(value: str, *, strict: bool, max_depth: int) -> RoutedFormat:
    """Raises `GrammarInvalid`."""
    checked = formats.check_format(value)
    patterns = [
        written(node["pattern"], f"format: {path}/pattern")
        for path, node in formats.parts(checked)
        if node["type"] == "regex"
    ]
    costly_patterns = any(costly(Regex.whole(pattern)) for pattern in patterns)
    large = len(value) > 2 * LARGE_SCHEMA
    found: list[tuple[int, bool, RoutedFormat]] = []
    refused: list[GrammarInvalid] = []
    for engine in _SLOW_FOR_XGRAMMAR if large or costly_patterns else _BOTH:
        try:
            relaxed: list[Relaxed] = []
            done = _linted(checked, "#", engine, strict, max_depth, relaxed)
        except GrammarInvalid as error:
            refused.append(error)
            continue
        slow = engine == "xgrammar" and (costly_patterns or _slow_format(done))
        found.append((len(relaxed), slow, RoutedFormat(done, engine, tuple(relaxed))))
        if not relaxed and not slow:
            break
    if not found:
        raise refused[-1]
    return min(found, key=lambda candidate: candidate[:2])[2]


def _slow_format(node: Format) -> bool:
    schemas = [json.dumps(part["json_schema"]) for _, part in formats.parts(node) if part["type"] == "json_schema"]
    return sum(map(len, schemas)) > LARGE_SCHEMA or any(map(_slow, schemas))


def _linted(
    node: Format, path: str, engine: EngineName, strict: bool, max_depth: int, relaxed: list[Relaxed]
) -> Format:
    """The format for `engine`; what it does not enforce is added to `relaxed`."""

    def inner(child: Format, place: str) -> Format:
        return _linted(child, f"{path}/{place}", engine, strict, max_depth, relaxed)

    done = dict(node)
    if node["type"] == "json_schema":
        try:
            # Closed, strict or not: in a call, an argument that nobody declared is one that the function does not take.
            linted = lint(
                json.dumps(node["json_schema"]), strict=strict, max_depth=max_depth, engines=(engine,), closed=True
            )
        except GrammarInvalid as error:
            raise GrammarInvalid(f"format: {path}/json_schema: {error}") from None
        relaxed += [Relaxed(f"{path}/json_schema{item.path[1:]}", item.keyword, item.reason) for item in linted.relaxed]
        done["json_schema"] = json.loads(linted.schema)
    if node["type"] == "regex":
        done["pattern"] = written(node["pattern"], f"format: {path}/pattern")
    for name in ("elements", "tags"):
        if name in node:
            done[name] = [inner(child, f"{name}/{at}") for at, child in enumerate(node[name])]
    if "content" in node:
        done["content"] = inner(node["content"], "content")
    return done


def written(pattern: str, what: str) -> str:
    """A user's regular expression in the form that every engine reads in one way. Raises `GrammarInvalid`."""
    try:
        text = Regex.whole(pattern).write()
    except GrammarInvalid as error:
        raise GrammarInvalid(f"{what}: {error}") from None
    if text is None:
        raise GrammarInvalid(f"{what}: no text matches it")
    return text


def _slow(schema: str) -> bool:
    """xgrammar would take long to compile it, or at every mask."""
    if len(schema) > LARGE_SCHEMA or '"propertyNames"' in schema:  # that is how undeclared names are told apart
        return True
    return any(costly(Regex.whole(pattern)) for pattern in _patterns(json.loads(schema)))


def _patterns(node: Any) -> Iterator[str]:
    """Every expression in a linted schema; values of `const` and `enum` are no schemas."""
    if isinstance(node, list):
        for item in node:
            yield from _patterns(item)
    elif isinstance(node, dict):
        for name, value in node.items():
            if name == "pattern" and isinstance(value, str):
                yield value
            elif name == "patternProperties":
                yield from value
                yield from _patterns(list(value.values()))
            elif name in ("properties", "$defs"):
                yield from _patterns(list(value.values()))
            elif name not in ("const", "enum"):
                yield from _patterns(value)
