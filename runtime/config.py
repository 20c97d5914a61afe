"""How a setting is declared: a dataclass field that carries its own help text, and what it may be.

Each room keeps its settings in a frozen dataclass beside their owner; the command line is generated from them. This
file knows none of the settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from ..errors import ConfigError


class Allowed(NamedTuple):
    """What a value has to pass, and how that is said after "it must be"."""

    passes: Callable[[Any], bool]
    said: str


def knob(default: Any, help: str, basic: bool = False, allowed: Allowed | None = None) -> Any:
    """A field with a default (immutable), one sentence of help, whether the short help lists it, and what it may be,
    unless its type lists the values."""
    return dataclasses.field(default=default, metadata={"help": help, "allowed": allowed, "basic": basic})


def between(least: float, most: float, *, auto: bool = False) -> Allowed:
    """A number, both ends included: whole if `most` is. `auto`: or 0."""
    kinds = (int,) if isinstance(most, int) else (int, float)

    def passes(value: Any) -> bool:
        return type(value) in kinds and (least <= value <= most or (auto and value == 0))

    low, high = (f"{end:,}" if isinstance(end, int) else f"{end:g}" for end in (least, most))
    return Allowed(passes, f"{'0 (auto) or ' if auto else ''}from {low} to {high}")


def seconds(most: float, *, none: bool = False) -> Allowed:
    """A time that passes; with `none` perhaps none."""

    def passes(value: Any) -> bool:
        return type(value) in (int, float) and (0 <= value <= most if none else 0 < value <= most)

    return Allowed(passes, f"{'from' if none else 'above'} 0 to {most:,g} seconds")


def one_of(values: Collection[Any]) -> Allowed:
    """One of a few values."""
    return Allowed(lambda value: value in values, "one of " + ", ".join(map(str, values)))


def plain_text(*, empty: bool) -> Allowed:
    """A text that can be printed and sent, in one line."""

    def passes(value: Any) -> bool:
        return isinstance(value, str) and (value.isprintable() and (empty or bool(value.strip())))

    return Allowed(passes, "printable text" + ("" if empty else ", and not empty"))


def check_knobs(config: Any) -> None:
    """Raises `ConfigError` for the first setting that is not what it may be."""
    kinds = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        allowed = field.metadata["allowed"] or _by_type(kinds[field.name])
        if not allowed.passes(value):
            shown = repr(value) if isinstance(value, str) and not value.isprintable() else value
            raise ConfigError(f"{field.name} is {shown if shown != '' else 'empty'}; it must be {allowed.said}")


def _by_type(kind: Any) -> Allowed:
    """Of a setting that says no more."""
    if kind is bool:
        return Allowed(lambda value: type(value) is bool, "true or false")
    assert get_origin(kind) is Literal, "a setting whose type does not list its values says what it may be"
    return one_of(get_args(kind))
