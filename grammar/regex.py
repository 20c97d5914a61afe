"""Regular expressions: parsed, checked and written again in the small form that every engine reads in one way.

The dialect is the common part of ECMA-262 (which JSON Schema names) and Python's `re`. Where the two read a class
differently, what is written matches only what both accept: `\\d` is [0-9], `\\w` [A-Za-z0-9_], `\\s` ASCII white space,
`.` no line end, and their complements leave out whatever either dialect counts in. What has no regular meaning, or two
meanings, is refused with its position: look-around, back-references, word boundaries, flags, anchors inside.

Knows nothing of JSON Schema or of any engine.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..errors import GrammarInvalid
from . import char_sets as cs
from .char_sets import CharSet
from .regex_syntax import Alternatives, Anchor, Chars, Node, Repeat, Sequence, parse

JSON_SAFE: CharSet = cs.complement(cs.union(((0, 0x1F),), cs.of('"\\')))
"""Characters that stand for themselves in a JSON string."""

_PREFIX = 6  # characters in which an undeclared name may agree with a declared one

_ANYTHING = Repeat(Chars(cs.EVERYTHING, cs.EVERYTHING), 0, None)


class Lengths(NamedTuple):
    """Fewest and most characters of a match; `high` None: no limit."""

    low: int
    high: int | None


class Regex:
    """A parsed regular expression without anchors: the whole text must match."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._written: dict[CharSet, str | None] = {}

    @classmethod
    def whole(cls, pattern: str) -> Regex:
        """`pattern` has to match the whole text; `^` and `$` at its edges say nothing new. Raises `GrammarInvalid`."""
        return cls(_unanchored(parse(pattern), left=True, right=True, search=False))

    @classmethod
    def search(cls, pattern: str) -> Regex:
        """`pattern` may match anywhere in the text, as in JSON Schema, unless anchored. Raises `GrammarInvalid`."""
        return cls(_unanchored(parse(pattern), left=True, right=True, search=True))

    @property
    def node(self) -> Node:
        """The tree, without anchors."""
        return self._node

    @property
    def lengths(self) -> Lengths:
        return _lengths(self._node)

    @property
    def heads(self) -> list[CharSet]:
        """The characters that may stand first, second, … in a match, as far as every match is surely that long."""
        return _heads(self._node)[0]

    def write(self, allowed: CharSet = cs.EVERYTHING) -> str | None:
        """The expression over the characters in `allowed` only; None when nothing is left that could match."""
        if allowed not in self._written:
            self._written[allowed] = _write(self._node, allowed)
        return self._written[allowed]


def literal(text: str) -> str:
    """The expression that matches `text` only, in the form of `Regex.write`."""
    return "".join(_class(((ord(char), ord(char)),)) for char in text)


def excluding(names: list[str], allowed: CharSet = JSON_SAFE, depth: int = _PREFIX) -> str:
    """A regular expression for strings over `allowed`, never one of `names`.

    Every string that shares no prefix of `depth` characters with a name is matched; of those that do, none.
    """
    return _excluding(tuple(names), allowed, depth)


@lru_cache(maxsize=1024)
def _excluding(names: tuple[str, ...], allowed: CharSet, depth: int) -> str:
    heads = {name[0] for name in names if name and cs.intersect(cs.of(name[0]), allowed)}
    parts = [] if "" in names else ["(?:)"]
    others = cs.intersect(allowed, cs.complement(cs.of("".join(heads))))
    if others:
        parts.append(f"{_class(others)}{_class(allowed)}*")
    for head in sorted(heads) if depth > 0 else ():
        tails = tuple(name[1:] for name in names if name[:1] == head)
        parts.append(f"{_class(cs.of(head))}{_excluding(tails, allowed, depth - 1)}")
    return f"(?:{'|'.join(parts)})"


def _unanchored(node: Node, *, left: bool, right: bool, search: bool) -> Node:
    """Without anchors; where the text may go on before or after (`search`), with the wildcard that stands for it.

    `left`: nothing stands before `node` in the expression; `right`: nothing stands after it.
    """
    if isinstance(node, Alternatives):
        return Alternatives([_unanchored(option, left=left, right=right, search=search) for option in node.options])
    items = list(node.items) if isinstance(node, Sequence) else [node]
    first = last = False
    while left and items and items[0] == Anchor.START:
        items.pop(0)
        first = True
    while right and items and items[-1] == Anchor.END:
        items.pop()
        last = True
    left, right = left and not first, right and not last
    if not items:
        free = search and left and right
        return _ANYTHING if free else Sequence([])
    inner = range(len(items))
    done = [
        _edge(items[at], left=left and at == 0, right=right and at == len(items) - 1, search=search) for at in inner
    ]
    return done[0] if len(done) == 1 else Sequence(done)


def _edge(node: Node, *, left: bool, right: bool, search: bool) -> Node:
    if isinstance(node, (Alternatives, Sequence)):
        return _unanchored(node, left=left, right=right, search=search)
    if isinstance(node, Anchor) or (isinstance(node, Repeat) and _has_anchor(node.item)):
        raise GrammarInvalid("an anchor that does not stand at the edge of the expression cannot be enforced")
    before, after = [_ANYTHING] * (search and left), [_ANYTHING] * (search and right)
    return Sequence([*before, node, *after]) if before or after else node


def _has_anchor(node: Node) -> bool:
    if isinstance(node, Alternatives):
        return any(map(_has_anchor, node.options))
    if isinstance(node, Sequence):
        return any(map(_has_anchor, node.items))
    return isinstance(node, Anchor) or (isinstance(node, Repeat) and _has_anchor(node.item))


def _lengths(node: Node) -> Lengths:
    if isinstance(node, Chars):
        return Lengths(1, 1)
    if isinstance(node, Alternatives):
        parts = [_lengths(option) for option in node.options]
        highs = [part.high for part in parts if part.high is not None]
        return Lengths(min(part.low for part in parts), max(highs) if len(highs) == len(parts) else None)
    if isinstance(node, Sequence):
        parts = [_lengths(item) for item in node.items]
        highs = [part.high for part in parts if part.high is not None]
        return Lengths(sum(part.low for part in parts), sum(highs) if len(highs) == len(parts) else None)
    if isinstance(node, Repeat):
        item = _lengths(node.item)
        bounded = item.high is not None and node.high is not None
        return Lengths(item.low * node.low, (item.high or 0) * (node.high or 0) if bounded else None)
    return Lengths(0, 0)


def _heads(node: Node) -> tuple[list[CharSet], bool]:
    """See `Regex.heads`; and whether every match ends with the last of them."""
    if isinstance(node, Chars):
        return [node.outer], True
    if isinstance(node, Alternatives):
        parts = [_heads(option) for option in node.options]
        length = min(len(heads) for heads, _ in parts)
        ends = all(whole and len(heads) == length for heads, whole in parts)
        unions = [cs.make(span for heads, _ in parts for span in heads[at]) for at in range(length)]
        return unions, ends
    if isinstance(node, Repeat):
        node = Sequence([node.item] * min(node.low, _PREFIX) + [Anchor.END] * (node.low != node.high))
    if isinstance(node, Anchor):
        return [], False
    found: list[CharSet] = []
    for item in node.items:
        heads, whole = _heads(item)
        found += heads
        if not whole or len(found) >= 2 * _PREFIX:
            return found, False
    return found, True


def _write(node: Node, allowed: CharSet) -> str | None:
    if isinstance(node, Chars):
        chars = cs.intersect(node.inner, allowed)
        return _class(chars) if chars else None
    if isinstance(node, Alternatives):
        options = [text for option in node.options if (text := _write(option, allowed)) is not None]
        return f"(?:{'|'.join(options)})" if options else None
    if isinstance(node, Sequence):
        items = [_write(item, allowed) for item in node.items]
        return None if None in items else "".join(item for item in items if item) or "(?:)"
    if isinstance(node, Repeat):
        item = _write(node.item, allowed)
        if item is None or node.high == 0:
            return "(?:)" if node.low == 0 else None
        if not isinstance(node.item, (Chars, Alternatives)):
            item = f"(?:{item})"
        return item + _times(node.low, node.high)
    raise AssertionError("anchors are gone by now")


def _times(low: int, high: int | None) -> str:
    if (low, high) == (0, None):
        return "*"
    if (low, high) == (1, None):
        return "+"
    return f"{{{low},{'' if high is None else high}}}"


def _class(chars: CharSet) -> str:
    """A character, or a class of ranges; anything but ASCII letters and digits is written by its number."""
    if len(chars) == 1 and chars[0][0] == chars[0][1] and chr(chars[0][0]).isalnum() and chars[0][0] < 128:
        return chr(chars[0][0])
    parts = (f"\\u{{{low:x}}}" if low == high else f"\\u{{{low:x}}}-\\u{{{high:x}}}" for low, high in chars)
    return f"[{''.join(parts)}]"
