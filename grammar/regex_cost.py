"""What a regular expression costs an engine: which parts of it repeat, how often, and over which characters.

Knows nothing of vocabularies or engines; what is costly for which engine is said in docs/decisions/0008.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .char_sets import CharSet
from .regex import Regex
from .regex_syntax import Alternatives, Chars, Node, Repeat, Sequence

WIDE = 16
"""A class of more characters than this is wide: many tokens are made of such characters."""

LONG = 16
"""A counted repeat of a wide class that may go on for longer than this is long."""


class Part(NamedTuple):
    """A character of the expression: its class, how often it stands there with every bound written out, and whether
    some bound counts it (an endless repeat needs no counting)."""

    chars: CharSet
    times: int
    counted: bool


def parts(regex: Regex) -> list[Part]:
    return list(_parts(regex.node, 1, False))


def costly(regex: Regex) -> bool:
    """An engine that follows every way to read the text (xgrammar) has too many of them here: a long counted repeat of
    a wide class, or a repeat inside a repeat, neither of fixed length."""
    long = any(part.counted and part.times > LONG and _size(part.chars) > WIDE for part in parts(regex))
    return long or _nested(regex.node, inside=False)


def _parts(node: Node, times: int, counted: bool) -> Iterator[Part]:
    if isinstance(node, Chars):
        yield Part(node.inner, times, counted)
    elif isinstance(node, Sequence):
        for item in node.items:
            yield from _parts(item, times, counted)
    elif isinstance(node, Alternatives):
        for option in node.options:
            yield from _parts(option, times, counted)
    elif isinstance(node, Repeat):
        most = max(1, node.low, node.high or 0)
        yield from _parts(node.item, times * most, counted or most > 1)


def _nested(node: Node, *, inside: bool) -> bool:
    if isinstance(node, Sequence):
        return any(_nested(item, inside=inside) for item in node.items)
    if isinstance(node, Alternatives):
        return any(_nested(option, inside=inside) for option in node.options)
    if isinstance(node, Repeat):
        varies = node.high is None or (node.high > 1 and node.high != node.low)
        return (varies and inside) or _nested(node.item, inside=inside or varies)
    return False


def _size(chars: CharSet) -> int:
    return sum(high - low + 1 for low, high in chars)
