"""What is wrong with a body, said in one sentence that begins with the path of the field.

Knows JSON and the shape of pydantic's findings; which fields there are stands in `schemas`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic_core import ErrorDetails

from ...errors import InvalidParameter, RequestRejected
from .schema_base import body_names
from .schemas import ALLOWED

MAX_NESTING = 500
"""How deep a body may be nested. What the JSON library itself refuses depends on the interpreter, and is deeper."""

MOST_SCANNED = 100_000

# Words that pydantic adds to a location to say which member of a union it tried, besides the names of our models; they
# are no part of the path.
_UNION_WORDS = ("str", "int", "bool", "float", "constrained-str")

_MARK = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")


def invalid(errors: Sequence[ErrorDetails]) -> InvalidParameter:
    """One fault out of all: the first, and if that lies in a union, that of the member which got furthest."""
    chosen, sentence = errors[0], None
    location = chosen["loc"]
    at = next((i for i in range(len(location)) if _is_member(location, i)), None)
    if at is not None:
        same = [error for error in errors if error["loc"][:at] == location[:at] and len(error["loc"]) > at]
        chosen = max(same, key=lambda error: _reach(error, at + 1))
        rest = chosen["loc"][at + 1 :]
        within = all(isinstance(part, int) for part in rest)  # the value itself, or one of its items
        if _wrong_kind(chosen) or chosen["type"] == "too_short" or (chosen["type"] == "literal_error" and within):
            name = next(part for part in reversed(location[:at]) if isinstance(part, str))
            sentence = ALLOWED.get(name) if within else None
            sentence = sentence and (f"{name} {sentence}" if rest else sentence)
    path = field_path(chosen["loc"])
    message = sentence or _plain(path, chosen)
    return InvalidParameter(f"{path}: {message}" if path else message, path or None)


def malformed(raw: bytes, error: Exception) -> RequestRejected:
    """Why the bytes are refused as JSON. What is JSON but for a value that no JSON can hold names the field."""
    try:
        data = json.loads(raw, parse_constant=_Odd, parse_float=_float, parse_int=_int)
        odd = _first_odd(data, ()) if isinstance(data, dict) else None
    except (ValueError, RecursionError):
        odd = None
    return odd or RequestRejected(f"the body is not valid JSON: {error}")


def deeper_than(limit: int, data: Any) -> bool:
    """Whether lists and objects are nested in more than `limit` levels, `data` itself being the first."""
    level = [data] if isinstance(data, dict | list) else []
    for _ in range(limit):
        inner = (part.values() if isinstance(part, dict) else part for part in level)
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if not level:
            return False
    return True


def nested_too_deeply(raw: bytes) -> RequestRejected:
    """The body, or the first of its fields that is nested so deeply."""
    depth, last, key = 0, b"", None
    is_object = raw[:64].lstrip()[:1] == b"{"
    for count, match in enumerate(_MARK.finditer(raw)):
        mark = match[0]
        if mark in (b"{", b"["):
            depth += 1
            if depth == 2 and is_object:
                key = last
        elif mark in (b"}", b"]"):
            depth -= 1
        elif depth == 1:
            last = mark
        if depth > MAX_NESTING or count > MOST_SCANNED:
            break
    sentence = f"nested deeper than {MAX_NESTING} levels"
    try:
        field = json.loads(key) if key is not None and depth > MAX_NESTING else None
    except ValueError:  # no JSON after all
        field = None
    return InvalidParameter(f"{field}: {sentence}", field) if field else RequestRejected(f"the body is {sentence}")


def field_path(location: Sequence[str | int]) -> str:
    """`("messages", 0, "content")` to `messages[0].content`."""
    path = ""
    for position, part in enumerate(location):
        if isinstance(part, int):
            path += f"[{part}]"
        elif _is_member(location, position):
            continue
        else:
            path += f".{part}" if path else part
    return path


def _is_member(location: Sequence[str | int], position: int) -> bool:
    part = location[position]
    if not position or not isinstance(part, str):
        return False
    return part in _UNION_WORDS or part in body_names() or "[" in part


def _wrong_kind(error: ErrorDetails) -> bool:
    return error["type"].endswith("_type")


def _reach(error: ErrorDetails, start: int) -> tuple[int, tuple[int, ...], bool]:
    """How far a member of a union got: the wrong kind, a bad value, a bad entry, so many good entries that it stopped;
    among bad entries, the later and deeper one."""
    rest = error["loc"][start:]
    if rest:
        return 2, tuple(part for part in rest if isinstance(part, int)), not _wrong_kind(error)
    return 0 if _wrong_kind(error) else 3 if error["type"] == "too_long" else 1, (), True


def _plain(path: str, error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        return "this field is not known or not supported here"
    if error["type"] == "missing":
        return "this field is required"
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "must be an object"
    if path == "suffix":
        return "this field is not supported"
    return error["msg"]


class _Odd(NamedTuple):
    """Stands for a number that JSON cannot hold, or that no field takes."""

    text: str


def _float(text: str) -> float | _Odd:
    number = float(text)
    return number if math.isfinite(number) else _Odd(text)


def _int(text: str) -> int | _Odd:
    return int(text) if len(text) <= 30 else _Odd(text)


def _first_odd(value: Any, path: tuple[str | int, ...]) -> InvalidParameter | None:
    """The fault of the first odd value in or below `value`."""
    found = None
    if isinstance(value, dict | list):
        for part, entry in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(part, str) and _SURROGATE.search(part):
                return _at(path, "a name in it has half of a surrogate pair, which is not valid Unicode")
            if found := _first_odd(entry, (*path, part)):
                return found
    elif isinstance(value, _Odd):
        shown = value.text if len(value.text) <= 20 else f"a number of {len(value.text)} digits"
        found = _at(path, f"{shown} is outside what JSON numbers may be here")
    elif isinstance(value, str) and (half := _SURROGATE.search(value)):
        found = _at(path, f"half of a surrogate pair at character {half.start()}, which is not valid Unicode")
    return found


def _at(path: tuple[str | int, ...], fault: str) -> InvalidParameter:
    name = field_path(path)
    return InvalidParameter(f"{name}: {fault}" if name else f"the body: {fault}", name or None)
