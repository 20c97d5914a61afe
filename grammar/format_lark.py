"""Structural formats in llguidance's Lark.

Its lexer takes the longest match of a terminal, and never gives any of it back nor tries a shorter one. So texts that
begin alike are cut where they part, so that no terminal is the start of another; a regular expression becomes one
terminal with the texts beside it; free text becomes a terminal that ends with the first marker it meets.

Knows nothing of engines' objects: text in, text out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from .formats import Format, is_open
from .llguidance_engine import json_rule, regex_terminal
from .regex import literal

_ANY = "(?s:.*)"
_PLACEHOLDER = re.compile("\x00([0-9]+)\x00")


class Piece(NamedTuple):
    """A part of a rule: a text, a regular expression, or names of rules and terminals."""

    kind: Literal["text", "regex", "rule"]
    text: str


def as_lark(node: Format) -> str:
    """A grammar for a checked format whose schemas are linted and whose patterns are as `Regex.write` writes them."""
    writer = _Writer()
    start = writer.joined(writer.format(node, ()))
    return writer.with_texts("\n".join([f"start: {start}", *writer.rules]))


class _Writer:
    def __init__(self) -> None:
        self.rules: list[str] = []
        self.texts: dict[str, int] = {}  # each stands in the rules by its number until all are known

    def name(self, body: str, *, options: str = "", terminal: bool = False) -> str:
        """A new rule or terminal."""
        name = f"{'T' if terminal else 'r'}{len(self.rules)}"
        self.rules.append(f"{name}{options}: {body}")
        return name

    def with_texts(self, grammar: str) -> str:
        texts, cuts = [*self.texts], _cuts(self.texts)
        return _PLACEHOLDER.sub(
            lambda found: " ".join(regex_terminal(literal(part)) for part in _parts(texts[int(found[1])], cuts)),
            grammar,
        )

    def joined(self, pieces: Sequence[Piece]) -> str:
        """The body of a rule: what stands beside a regular expression becomes one with it."""
        done: list[Piece] = []
        for piece in pieces:
            last = done[-1] if done else Piece("rule", "")
            if piece.kind == "rule" or last.kind == "rule":
                done.append(piece)
            elif piece.kind == last.kind == "text":
                done[-1] = Piece("text", last.text + piece.text)
            else:
                done[-1] = Piece("regex", _as_regex(last) + _as_regex(piece))
        return " ".join(self.written(piece) for piece in done if piece.text or piece.kind == "regex") or '""'

    def written(self, piece: Piece) -> str:
        if piece.kind == "text":
            return f"\x00{self.texts.setdefault(piece.text, len(self.texts))}\x00"
        return regex_terminal(piece.text) if piece.kind == "regex" else piece.text

    def choice(self, options: list[list[Piece]]) -> Piece:
        kinds = {piece.kind for option in options for piece in option}
        if "regex" in kinds and "rule" not in kinds:
            return Piece("regex", f"(?:{'|'.join(''.join(map(_as_regex, option)) for option in options)})")
        return Piece("rule", self.name(" | ".join(map(self.joined, options))))

    def one_of(self, texts: Sequence[str]) -> list[Piece]:
        if len(texts) > 1:
            return [self.choice([[Piece("text", text)] for text in texts])]
        return [Piece("text", text) for text in texts]

    # ---- formats ---------------------------------------------------------------------------------------------------

    def format(self, node: Format, ends: tuple[str, ...]) -> list[Piece]:
        """`ends` are those of the tag around it: what is written goes up to and over one of them."""
        kind = node["type"]
        if kind == "any_text":
            return [self.free(ends)]
        if kind == "triggered_tags":
            return self.triggered_tags(node, ends)
        if kind == "or":
            return [self.choice([self.format(inner, ends) for inner in node["elements"]])]
        if kind == "sequence":
            *first, last = node["elements"]
            return [*(piece for inner in first for piece in self.format(inner, ())), *self.format(last, ends)]
        return [*self.closed(node), *self.one_of(ends)]

    def closed(self, node: Format) -> list[Piece]:
        kind = node["type"]
        if kind == "const_string":
            return [Piece("text", node["value"])]
        if kind == "regex":
            return [Piece("regex", f"(?:{node['pattern']})")]
        if kind == "json_schema":
            return [Piece("rule", self.name(json_rule(node["json_schema"])))]
        if kind == "tag":
            return self.tag(node, "")
        assert kind == "tags_with_separator"
        return self.tags_with_separator(node)

    def tag(self, node: Format, begun: str) -> list[Piece]:
        """A tag of which `begun` has been written already."""
        begin, content, ends = node["begin"][len(begun) :], node["content"], tuple(node["end"])
        inner = self.format(content, ends) if is_open(content) else [*self.format(content, ()), *self.one_of(ends)]
        return [Piece("text", begin), *inner]

    def tags_with_separator(self, node: Format) -> list[Piece]:
        one = self.name(self.joined([self.choice([self.tag(tag, "") for tag in node["tags"]])]))
        body = one
        if not node["stop_after_first"]:
            body = f"{one} ({self.joined([Piece('text', node['separator']), Piece('rule', one)])})*"
        return [Piece("rule", f"({body}){'' if node['at_least_one'] else '?'}")]

    # ---- free text -------------------------------------------------------------------------------------------------

    def free(self, ends: tuple[str, ...], without: Sequence[str] = ()) -> Piece:
        """Text up to and over the first of `ends`; to the very end of the output when there is none, and then without
        any of `without` in it."""
        if ends:
            return Piece("rule", self.until(ends))
        if without:
            found = "|".join(map(literal, without))
            return Piece("rule", self.name(f"/{_ANY}/ & ~/{_ANY}(?:{found}){_ANY}/", terminal=True))
        return Piece("rule", f"/{_ANY}/")

    def until(self, markers: Sequence[str]) -> str:
        """Text up to and over the first of `markers`."""
        terminal = self.name(f"/{_ANY}(?:{'|'.join(map(literal, markers))})/", terminal=True)
        return self.name(terminal, options="[lazy]")

    def triggered_tags(self, node: Format, ends: tuple[str, ...]) -> list[Piece]:
        triggers = node["triggers"]
        calls: list[str] = []
        for trigger in triggers:
            tags = [tag for tag in node["tags"] if tag["begin"].startswith(trigger)]
            rest = self.choice([self.tag(tag, trigger) for tag in tags])
            calls.append(self.joined([Piece("rule", self.until([trigger])), rest]))
        call = self.name(" | ".join(calls))
        after = self.free(ends, triggers)
        if node["at_least_one"]:
            first = self.choice([self.tag(tag, "") for tag in node["tags"]])
            if node["stop_after_first"]:
                return [first, *self.one_of(ends)]
            return [first, Piece("rule", f"{call}*"), after]
        if node["stop_after_first"]:
            return [self.choice([[Piece("rule", call), *self.one_of(ends)], [after]])]
        return [Piece("rule", f"{call}*"), after]


def _as_regex(piece: Piece) -> str:
    return literal(piece.text) if piece.kind == "text" else piece.text


def _cuts(texts: Iterable[str]) -> dict[str, int]:
    """Where to cut each text, and the parts of those that are cut, until no two different parts begin alike."""
    cuts: dict[str, int] = {}
    parts = set(texts)
    while True:
        ordered = sorted(parts)
        found = False
        for one, other in pairwise(ordered):
            shared = len(_common(one, other))
            for text in (one, other):
                if 0 < shared < len(text) and text in parts:
                    cuts[text] = shared
                    parts.remove(text)
                    parts |= {text[:shared], text[shared:]}
                    found = True
        if not found:
            return cuts


def _common(one: str, other: str) -> str:
    for at, (char, same) in enumerate(zip(one, other, strict=False)):
        if char != same:
            return one[:at]
    return min(one, other, key=len)


def _parts(text: str, cuts: dict[str, int]) -> list[str]:
    parts: list[str] = []
    while text in cuts:
        parts.append(text[: cuts[text]])
        text = text[cuts[text] :]
    # The first part may have been cut further.
    return [piece for part in parts for piece in _parts(part, cuts)] + [text]
