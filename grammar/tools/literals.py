"""Reads values that are not written as JSON, and writes the same values as JSON while they come.

The syntax is the union of JSON's, Python's literals, and Gemma's (strings between `<escape>`, bare keys), so one
reader serves all. Strings keep their escapes, which are JSON's under every grammar here; Python's other escapes are
translated.

Knows nothing of tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from .reader import Reader, Script

ESCAPE = "<escape>"

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"""[^\s,:=()\[\]{}"'<]""")
_NAME = re.compile(r"\w")
_HEX = re.compile(r"[0-9a-fA-F]")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_JSON_CLOSER = {"{": "}", "[": "]", "(": "]"}
_CLOSERS = frozenset("}])")
_PIECES = {quote: re.compile(rf"[^\\{quote}]*") for quote in "\"'"}

Write = Callable[[str], None]


def keyword_arguments(reader: Reader, write: Write) -> Script[bool]:
    """`a=1, b="x")`, after the opening parenthesis, as one JSON object; or `**{…})`. False: it breaks off, or is
    something else from some point on."""
    yield from reader.blanks()
    if (yield from reader.accept("**", halves=False)):
        whole = yield from literal(reader, write)
        yield from reader.blanks()
        return whole and (yield from reader.accept(")"))
    write("{")
    separator = ""
    while True:
        yield from reader.blanks()
        if (yield from reader.accept(")")):
            write("}")
            return True
        if separator and not (yield from reader.accept(",")):
            return False
        yield from reader.blanks()
        name = yield from reader.run(_NAME)
        if not name:
            if separator and (yield from reader.peek()) == ")":  # a comma may stand at the end
                continue
            return False
        yield from reader.blanks()
        if not (yield from reader.accept("=")):
            return False
        write(f"{separator}{json.dumps(name, ensure_ascii=False)}: ")
        separator = ", "
        if not (yield from literal(reader, write)):
            return False


def literal(reader: Reader, write: Write) -> Script[bool]:
    """One value, as JSON. False: the text ends before the value does, or goes on as no value can."""
    open_: list[str] = []
    comma = False  # written only when something follows
    key = False
    while True:
        yield from reader.blanks()
        char = yield from reader.peek()
        if char in _CLOSERS and open_:
            reader.skip()
            write(_JSON_CLOSER[open_.pop()])
            comma = key = False
        elif char == "," and open_:
            reader.skip()
            comma, key = True, open_[-1] == "{"
            continue
        elif char == ":" and open_:
            reader.skip()
            write(": ")
            key = False
            continue
        else:
            if comma and char:
                write(", ")
                comma = False
            if char in _JSON_CLOSER:
                reader.skip()
                open_.append(char)
                write("{" if char == "{" else "[")
                key = char == "{"
                continue
            if not (yield from _scalar(reader, write, key)):
                return False
        if not open_:
            return True


def _scalar(reader: Reader, write: Write, key: bool) -> Script[bool]:
    char = yield from reader.peek()
    if char in _PIECES:
        reader.skip()
        return (yield from _string(reader, write, char))
    if (yield from reader.accept(ESCAPE, halves=False)):
        write('"')
        if not (yield from reader.until((ESCAPE,), lambda text: write(_quoted(text)), halves=False)):
            return False
        reader.skip(len(ESCAPE))
        write('"')
        return True
    word = yield from reader.run(_WORD)
    if not (yield from reader.peek()):  # it may be half of one
        write(word if _NUMBER.fullmatch(word) else "")
        return False
    if not word:
        return False
    if not key and (word in _WORDS or _NUMBER.fullmatch(word)):
        write(_WORDS.get(word, word))
    else:
        write(json.dumps(word, ensure_ascii=False))
    return True


def _string(reader: Reader, write: Write, quote: str) -> Script[bool]:
    write('"')
    while True:
        yield from reader.pieces(_PIECES[quote], lambda text: write(_quoted(text)))
        if (yield from reader.accept(quote)):
            write('"')
            return True
        reader.skip(len((yield from reader.peek())))  # the backslash
        escape = yield from reader.peek()
        if not escape:
            return False
        reader.skip()
        write((yield from _escape(reader, escape)))


def _escape(reader: Reader, kind: str) -> Script[str]:
    """What stands after a backslash, as it is written in JSON; nothing where the text ends inside it."""
    if kind in '"\\/bfnrt':
        return f"\\{kind}"
    if kind in "'\n":
        return kind.strip("\n")
    size = {"u": 4, "x": 2}.get(kind, 0)
    digits = ""
    while len(digits) < size and _HEX.match((yield from reader.peek())):
        digits += yield from reader.peek()
        reader.skip()
    if size and len(digits) == size:
        return f"\\u{digits:>04}"
    if size and not (yield from reader.peek()):
        return ""
    return f"\\\\{kind}{digits}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
