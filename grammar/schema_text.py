"""Patterns and formats of strings, compiled once: whether a text matches, and how an engine is to be told.

Knows nothing of schemas.
"""

from __future__ import annotations

from functools import lru_cache

from ..errors import GrammarInvalid
from .char_sets import intersect
from .regex import Regex
from .regex_algebra import Matching, TooLarge, disjoint, few
from .regex_algebra import combined as algebra
from .string_formats import string_format

_UNSUPPORTED = ("cannot be enforced", "dialects", "not supported", "more than")


class Unsupported(Exception):
    """A valid expression without a regular, or an agreed, meaning."""


class Invalid(Exception):
    """Not an expression in any dialect."""


@lru_cache(maxsize=1024)
def expression(pattern: str) -> Regex:
    """A `pattern` of JSON Schema, which may match anywhere in the text. Raises `Unsupported` or `Invalid`."""
    try:
        return Regex.search(pattern)
    except GrammarInvalid as error:
        reason = str(error).rstrip(",")
        if any(word in reason for word in _UNSUPPORTED):
            raise Unsupported(reason) from None
        raise Invalid(reason) from None


@lru_cache(maxsize=512)
def _matching(regex: Regex) -> Matching:
    return Matching(regex)


def searches(pattern: str, text: str) -> bool:
    """Whether a supported `pattern` matches somewhere in `text`, in every dialect."""
    return _matching(expression(pattern))(text)


def has_format(name: str, text: str) -> bool:
    """Whether `text` is one of the strings that are generated for a known format."""
    regex = string_format(name)
    assert regex is not None
    return _matching(regex)(text)


@lru_cache(maxsize=256)
def combined(wanted: tuple[str, ...], unwanted: tuple[str, ...], formats: tuple[str, ...] = ()) -> str | None:
    """A pattern for what all of `wanted` and `formats` match and none of `unwanted`; None when nothing is left.

    Raises `Unsupported` where it would be too large."""
    regexes = [expression(pattern) for pattern in wanted]
    regexes += [found for name in formats if (found := string_format(name)) is not None]
    try:
        found = algebra(regexes or [Regex.whole("[\\s\\S]*")], [expression(pattern) for pattern in unwanted])
    except TooLarge:
        raise Unsupported("expressions that together are too large") from None
    written = None if found is None else found.write()
    return None if written is None else f"^(?:{written})$"


@lru_cache(maxsize=1024)
def apart(first: str, second: str) -> bool:
    """Whether two supported patterns can be shown never to match the same text."""
    pairs = zip(expression(first).heads, expression(second).heads, strict=False)
    if any(not intersect(one, other) for one, other in pairs):
        return True
    try:
        return disjoint(expression(first), expression(second))
    except TooLarge:
        return False


@lru_cache(maxsize=256)
def listed(pattern: str) -> tuple[str, ...] | None:
    """All texts that a supported pattern matches, if they are few."""
    return few(expression(pattern).node)
