"""Holds finished structured outputs against their schemas, by a validator that shares no code with the grammars.

A schema comes from a stranger, and a validator obeys it: so patterns run in an engine that takes linear time,
references lead nowhere outside the schema, and the whole has a time limit. What cannot be decided so is undecided.

Knows nothing of requests. What an output said never gets into the log.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

from jsonschema import (  # type: ignore[import-untyped]
    Draft4Validator,
    Draft202012Validator,
    FormatChecker,
    ValidationError,
    validators,
)
from pydantic_core import SchemaError, SchemaValidator, core_schema
from pydantic_core import ValidationError as PatternError
from referencing import Registry
from referencing.exceptions import Unresolvable

from ...types import Relaxed
from .places import at_pointer

Verdict = Literal["valid", "invalid", "undecided"]

KEYWORDS = frozenset(Draft4Validator.VALIDATORS).union(Draft202012Validator.VALIDATORS)
"""All that JSON Schema has, or had."""

SECONDS = 1.0
"""Processor time that one check may take."""


class Finding(NamedTuple):
    """`keyword`: where in the schema the keyword stands that the output breaks; empty if there is none."""

    verdict: Verdict
    keyword: str = ""


class _Undecided(Exception):
    """Too long, or beyond what can be checked safely."""


def check_text(text: str, schema: Any) -> Finding:
    """Whether a JSON text fits its schema. May take `SECONDS`; to be called in a thread."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except ValueError:
        return Finding("invalid", "not JSON")
    except RecursionError:
        return Finding("undecided")
    token = _deadline.set(time.thread_time() + SECONDS)
    try:
        error = next(_validator(schema).iter_errors(value), None)
    except (_Undecided, RecursionError, Unresolvable):
        return Finding("undecided")
    finally:
        _deadline.reset(token)
    if error is None:
        return Finding("valid")
    return Finding("invalid", "/".join(map(str, error.absolute_schema_path)))


def as_enforced(schema: Any, relaxed: Sequence[Relaxed], prefix: str = "#") -> Any:
    """A copy of the schema without what the output was not held to. `prefix` is the schema's own place in the paths."""
    within = [entry for entry in relaxed if entry.path == prefix or entry.path.startswith(f"{prefix}/")]
    if not within:
        return schema
    copy = json.loads(json.dumps(schema))
    for entry in within:
        place = at_pointer(copy, entry.path.removeprefix(prefix))
        if isinstance(place, dict):
            place.pop(entry.keyword, None)
    return copy


def _validator(schema: Any) -> Any:
    declared = validators.validator_for(schema, default=Draft202012Validator) if isinstance(schema, dict) else None
    cls = _safe(declared or Draft202012Validator)
    return cls(schema, registry=Registry(), format_checker=cls.FORMAT_CHECKER)


@functools.cache
def _safe(cls: Any) -> Any:
    """The validator of a draft with our patterns and the clock."""
    own = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "unevaluatedProperties": _unevaluated,
    }
    keywords = {**cls.VALIDATORS, **{name: check for name, check in own.items() if name in cls.VALIDATORS}}
    timed = {name: _timed(check) for name, check in keywords.items()}
    return validators.extend(cls, timed, format_checker=_formats(cls.FORMAT_CHECKER))


def _formats(library: FormatChecker) -> FormatChecker:
    """The formats of a draft. An IRI is held to be a URI, which is all that a grammar lets through."""
    own = FormatChecker(())
    same = {"iri": "uri", "iri-reference": "uri-reference"}
    own.checkers = library.checkers | {
        name: library.checkers[as_] for name, as_ in same.items() if as_ in library.checkers
    }
    return own


_deadline: ContextVar[float] = ContextVar("deadline")


def _timed(check: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(check)
    def timed(*args: Any) -> Any:
        if time.thread_time() > _deadline.get():
            raise _Undecided
        return check(*args)

    return timed


@functools.lru_cache(1024)
def _regex(pattern: str) -> SchemaValidator | None:
    """None for what takes more than linear time to match, such as look-around."""
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None


def _found(pattern: str, text: str) -> bool:
    regex = _regex(pattern)
    if regex is None:
        raise _Undecided
    try:
        regex.validate_python(text)
    except PatternError:
        return False
    return True


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _found(pattern, instance):
        yield ValidationError("pattern")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for pattern, below in patterns.items():
            for key, value in instance.items():
                if _found(pattern, key):
                    yield from validator.descend(value, below, path=key, schema_path=pattern)


def _additional_properties(validator: Any, below: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for key, value in instance.items():
        if key in schema.get("properties", {}) or any(_found(p, key) for p in schema.get("patternProperties", {})):
            continue
        if below is False:
            yield ValidationError("additionalProperties")
        else:
            yield from validator.descend(value, below, path=key)


def _unevaluated(validator: Any, below: Any, instance: Any, schema: Any) -> None:
    """The library's own matches patterns with the standard `re`, which may never end."""
    if isinstance(instance, dict):
        raise _Undecided


def _no_constant(name: str) -> Any:
    raise ValueError(name)
