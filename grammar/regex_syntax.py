"""The parser of regular expressions: text to tree, with the position of whatever cannot be taken.

Knows nothing of what the tree is used for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

from ..errors import GrammarInvalid
from . import char_sets as cs
from .char_sets import CharSet

MAX_DEPTH = 100  # nested groups
MAX_REPEAT = 2_000  # product of the bounds of nested repeats: what an engine may have to unroll


class Anchor(Enum):
    START = "^"
    END = "$"


@dataclass(frozen=True)
class Chars:
    """One character. `inner` holds those that every dialect accepts here, `outer` those that some dialect does."""

    inner: CharSet
    outer: CharSet


@dataclass(frozen=True)
class Sequence:
    items: list[Node]


@dataclass(frozen=True)
class Alternatives:
    options: list[Node]


@dataclass(frozen=True)
class Repeat:
    item: Node
    low: int
    high: int | None


Node = Anchor | Chars | Sequence | Alternatives | Repeat

_CLASSES: dict[str, tuple[CharSet, CharSet]] = {
    "w": (cs.ASCII_WORD, cs.ANY_WORD),
    "s": (cs.ASCII_SPACE, cs.ANY_SPACE),
}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_BOUNDS = re.compile(r"\{(\d{1,9})(?:(,)(\d{1,9})?)?\}")
_GROUP = re.compile(r"\?(?::|P?<[A-Za-z_]\w*>)")
_LOOK = {"?=": "look-ahead", "?!": "look-ahead", "?<=": "look-behind", "?<!": "look-behind", "?>": "an atomic group"}


def parse(pattern: str) -> Node:
    """The tree of `pattern`. Raises `GrammarInvalid` with the position (from 0) of what is wrong."""
    return _Parser(pattern).parse()


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0
        self.depth = 0

    def parse(self) -> Node:
        node = self.alternatives()
        if self.at < len(self.text):
            self.fail("unmatched ')'")
        if _unrolled(node) > MAX_REPEAT:
            raise GrammarInvalid(f"the bounds of the repeats multiply to more than {MAX_REPEAT}")
        return node

    def fail(self, what: str) -> NoReturn:
        raise GrammarInvalid(f"{what} at position {self.at}")

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def alternatives(self) -> Node:
        options = [self.sequence()]
        while self.peek() == "|":
            self.at += 1
            options.append(self.sequence())
        return options[0] if len(options) == 1 else Alternatives(options)

    def sequence(self) -> Node:
        items: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            items.append(self.repeated())
        return Sequence(items)

    def repeated(self) -> Node:
        item = self.atom()
        bounds = self.bounds()
        if bounds is None:
            return item
        if isinstance(item, Anchor):
            self.fail("a repeated anchor")
        low, high = bounds
        if high is not None and low > high:
            self.fail("bounds of a repeat in the wrong order")
        if self.peek() == "?":  # lazy: the same language
            self.at += 1
        elif self.peek() == "+":
            self.fail("a possessive repeat cannot be enforced,")
        if self.peek() in ("*", "+", "?") or _BOUNDS.match(self.text, self.at):
            self.fail("a repeat of a repeat")
        return Repeat(item, low, high)

    def bounds(self) -> tuple[int, int | None] | None:
        char = self.peek()
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if char in simple:
            self.at += 1
            return simple[char]
        if char != "{":
            return None
        found = _BOUNDS.match(self.text, self.at)
        if found is None:
            if re.match(r"\{,\d*\}", self.text[self.at :]):
                self.fail("a repeat without a lower bound, which dialects read differently,")
            return None
        self.at = found.end()
        low = int(found[1])
        return low, (int(found[3]) if found[3] else None) if found[2] else low

    def atom(self) -> Node:
        char = self.peek()
        if char == "(":
            return self.group()
        if char == "[":
            return self.char_class()
        if char in ("*", "+", "?") or (char == "{" and _BOUNDS.match(self.text, self.at)):
            self.fail("nothing to repeat")
        if char == "\\":
            return self.escape(inside=False)
        self.at += 1
        if char == ".":
            return Chars(cs.NOT_LINE_END, cs.EVERYTHING)
        if char in ("^", "$"):
            return Anchor(char)
        return self.literal(ord(char))

    def literal(self, code: int) -> Chars:
        if 0xD800 <= code <= 0xDFFF:
            self.fail("half of a surrogate pair")
        return Chars(((code, code),), ((code, code),))

    def group(self) -> Node:
        self.at += 1
        if self.peek() == "?":
            found = _GROUP.match(self.text, self.at)
            if found is None:
                start = self.text[self.at : self.at + 3]
                self.fail(f"{_LOOK.get(start, _LOOK.get(start[:2], 'a flag or an unknown group'))} cannot be enforced,")
            self.at = found.end()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"groups nested more than {MAX_DEPTH} deep")
        node = self.alternatives()
        self.depth -= 1
        if self.peek() != ")":
            self.fail("a group that is not closed")
        self.at += 1
        return node

    def escape(self, *, inside: bool) -> Chars:
        self.at += 1
        char = self.peek()
        self.at += 1
        if char == "":
            self.fail("a lone backslash")
        if char in "dDwWsS":
            small = char.lower()
            inner, outer = _CLASSES.get(small) or (cs.ASCII_DIGITS, cs.any_digit())
            return Chars(inner, outer) if char == small else Chars(cs.complement(outer), cs.complement(inner))
        if char in _CONTROLS:
            return self.literal(_CONTROLS[char])
        if char == "b" and inside:
            return self.literal(8)
        if char in "xu":
            return self.literal(self.hexadecimal(char))
        if char == "0" and not self.peek().isdigit():
            return self.literal(0)
        if char.isdigit() or char == "k":
            self.fail("a back-reference cannot be enforced,")
        if char in "bB":
            self.fail("a word boundary cannot be enforced,")
        if char.isalpha():
            self.fail(f"the escape \\{char} is not supported,")
        return self.literal(ord(char))

    def hexadecimal(self, kind: str) -> int:
        found = re.compile(r"[0-9a-fA-F]{2}" if kind == "x" else r"[0-9a-fA-F]{4}").match(self.text, self.at)
        braces = re.compile(r"\{([0-9a-fA-F]{1,6})\}").match(self.text, self.at) if kind == "u" else None
        if braces is not None and int(braces[1], 16) <= 0x10FFFF:
            self.at = braces.end()
            return int(braces[1], 16)
        if found is None:
            self.fail(f"a malformed \\{kind} escape")
        self.at = found.end()
        code = int(found[0], 16)
        low = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})").match(self.text, self.at)
        if 0xD800 <= code <= 0xDBFF and low is not None:
            self.at = low.end()
            return 0x10000 + ((code - 0xD800) << 10) + (int(low[1], 16) - 0xDC00)
        return code

    def char_class(self) -> Chars:
        self.at += 1
        negated = self.peek() == "^"
        self.at += negated
        if self.peek() == "]":
            self.fail("a class that begins with ']', which dialects read differently,")
        inner, outer = cs.NOTHING, cs.NOTHING
        for part in self.class_parts():
            inner, outer = cs.union(inner, part.inner), cs.union(outer, part.outer)
        if negated:
            inner, outer = cs.complement(outer), cs.complement(inner)
        return Chars(inner, outer)

    def class_parts(self) -> Iterator[Chars]:
        while self.peek() != "]":
            low = self.class_atom()
            if self.peek() != "-" or self.peek(2) == "-]":
                yield low
                continue
            self.at += 1
            high = self.class_atom()
            if _single(low) is None or _single(high) is None:
                yield from (low, high, self.literal(ord("-")))  # [\d-x]: the hyphen stands for itself
                continue
            first, last = low.inner[0][0], high.inner[0][0]
            if first > last:
                self.fail("a range in the wrong order")
            span = cs.make([(first, last)])
            yield Chars(span, span)
        self.at += 1

    def class_atom(self) -> Chars:
        char = self.peek()
        if char == "":
            self.fail("a class that is not closed")
        if char == "\\":
            return self.escape(inside=True)
        self.at += 1
        return self.literal(ord(char))


def _single(chars: Chars) -> int | None:
    only = chars.inner == chars.outer and len(chars.inner) == 1 and chars.inner[0][0] == chars.inner[0][1]
    return chars.inner[0][0] if only else None


def _unrolled(node: Node) -> int:
    """How often the most repeated part would stand there if every bound were written out."""
    if isinstance(node, Sequence):
        return max(map(_unrolled, node.items), default=1)
    if isinstance(node, Alternatives):
        return max(map(_unrolled, node.options))
    if isinstance(node, Repeat):
        return max(1, node.low, node.high or 0) * _unrolled(node.item)
    return 1
