"""Lark grammars, as users write them: what no engine would hold to is refused, and JSON schemas inside are linted.

The dialect is llguidance's: terminals take the longest match; `%json {…}`, `%regex {…}`, `lazy`, `suffix`, `&` and `~`
are known. Refused are attributes that would be dropped or need tokens taken back (`max_tokens`, `temperature`,
`stop`), and options of the engine.

Knows nothing of engines' objects: text in, text out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NoReturn

from ..errors import GrammarInvalid

_TOKENS = re.compile(
    r"""(?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<comment>(?://|\#)[^\n]*)
      | (?P<regex>/(?![/*])(?:[^/\\\n]|\\.)+/)
      | (?P<directive>%[A-Za-z_]+)
      | (?P<attributes>(?<![\w\]])[?!]?[A-Za-z_][\w-]*(?:\.-?\d+)?\[[^\]\n]*\][ \t]*:)
      | (?P<name>[A-Za-z_][\w-]*)""",
    re.VERBOSE,
)
_REFUSED_ATTRIBUTES = ("max_tokens", "temperature", "stop", "stop_capture")
_REFUSED_DIRECTIVES = {"%llguidance": "options of the engine", "%override": "overriding", "%extend": "extending"}


def checked_lark(text: str, schema_rule: Callable[[str, str], str]) -> str:
    """The grammar to compile. `schema_rule(schema, place)` gives what stands for a `%json` with that schema; `place` is
    its line. Raises `GrammarInvalid`."""
    done: list[str] = []
    at = 0
    while (found := _TOKENS.search(text, at)) is not None:
        kind, line = found.lastgroup, text.count("\n", 0, found.start()) + 1
        done.append(text[at : found.start()])
        at = found.end()
        if kind == "directive" and found[0] in _REFUSED_DIRECTIVES:
            _refuse(line, f"`{found[0]}`: {_REFUSED_DIRECTIVES[found[0]]} is not supported")
        if kind == "directive" and found[0] in ("%json", "%regex"):
            start, at = at, _end_of_json(text, at, line)
            body = text[start:at].strip()
            done.append(schema_rule(body, f"line {line}") if found[0] == "%json" else f"%regex {body}")
            continue
        if kind == "attributes":
            _check_attributes(found[0], line)
        done.append(found[0])
    done.append(text[at:])
    return "".join(done)


def _end_of_json(text: str, at: int, line: int) -> int:
    start = at + len(text[at:]) - len(text[at:].lstrip())
    try:
        _, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        _refuse(line, "a JSON object has to follow")
    return end


def _check_attributes(header: str, line: int) -> None:
    inside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', header[header.index("[") :])
    for name in _REFUSED_ATTRIBUTES:
        if re.search(rf"\b{name}\b", inside):
            _refuse(line, f"the attribute `{name}` cannot be enforced")


def _refuse(line: int, why: str) -> NoReturn:
    raise GrammarInvalid(f"lark: line {line}: {why}")
