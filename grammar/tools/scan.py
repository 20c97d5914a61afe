"""Scripts that the families share: finding the calls in a text, and reading calls that are JSON objects.

Knows nothing of single families.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection

from .base import Writer
from .reader import BLANK, Reader, Script

_IN_STRING = re.compile(r'[^"\\]*')
_OUTSIDE = re.compile(r'[^"{}\[\]]*')


def text_and_calls(
    marker: str, reader: Reader, writer: Writer, call: Callable[[], Script[bool]], *, at_start: bool
) -> Script[None]:
    """Text, and calls wherever `marker` stands and `call` finds one after it; otherwise the marker is text.

    `call` gives False where there is none, and leaves the reader where it was. `at_start`: if the text does not begin
    with a call there is none.
    """
    if at_start and not (yield from begins_with(marker, reader, writer)):
        return
    while (yield from reader.until((marker,), writer.text)):
        reader.skip(len(marker))
        if not (yield from call()):
            if not reader.cut:
                writer.text(marker)
            if at_start:
                return
        at_start = False


def begins_with(marker: str, reader: Reader, writer: Writer) -> Script[bool]:
    """Whether the marker comes next, blanks aside. Consumes the blanks, and not the marker."""
    writer.text((yield from reader.run(BLANK)))
    reader.mark()
    found = yield from reader.accept(marker)
    reader.rewind()
    return found


def json_call(names: Collection[str], reader: Reader, writer: Writer) -> Script[bool]:
    """One call as `{"name": …, "arguments": {…}}` (or "parameters"). False, and nothing read: it is none."""
    reader.mark()
    name = yield from _head(names, reader)
    if name is None:
        reader.rewind()
        return False
    reader.release()
    writer.start(name)
    char = yield from reader.peek()
    if char == "{":
        complete = yield from json_object(reader, writer.arguments)
    else:
        complete = char == "}"  # a call without arguments, if it is not broken off
        writer.arguments("{}" if complete else "")
    writer.end(complete)
    if complete:
        yield from _close_object(reader)
    return True


def json_object(reader: Reader, write: Callable[[str], None]) -> Script[bool]:
    """Writes the JSON object (or array) that begins here, as it stands. False: the text ended in it."""
    depth = 0
    while char := (yield from reader.peek()):
        reader.skip()
        write(char)
        if char == '"':
            if not (yield from _string_rest(reader, write)):
                return False
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
            if depth == 0:
                return True
        yield from reader.pieces(_OUTSIDE, write)
    return False


def json_string(reader: Reader, limit: int) -> Script[str | None]:
    """The value of the JSON string that begins here. None, perhaps in the middle of it: there is none, or it is longer
    than `limit` characters as written, or the text ended in it."""
    if not (yield from reader.accept('"')):
        return None
    found = '"'
    while char := (yield from reader.peek()):
        reader.skip()
        found += char
        if char == '"':
            try:
                return str(json.loads(found))
            except ValueError:
                return None
        if char == "\\":
            escaped = yield from reader.peek()
            reader.skip(len(escaped))
            found += escaped
        if len(found) > limit:
            return None
    return None


def name_limit(names: Collection[str]) -> int:
    """How long a name can be as a JSON string, every character escaped."""
    return 6 * max(map(len, names), default=0) + 2


def _head(names: Collection[str], reader: Reader) -> Script[str | None]:
    """Up to the arguments, not consumed. A text that breaks off after a name that is known has that name."""
    for token in ("{", '"name"', ":"):
        yield from reader.blanks()
        if not (yield from reader.accept(token)):
            return None
    yield from reader.blanks()
    name = yield from json_string(reader, name_limit(names))
    if name is None or name not in names:
        return None
    yield from reader.blanks()
    if (yield from reader.peek()) == "}":
        return name
    if not (yield from reader.expect(",")):
        return None
    yield from reader.blanks()
    if not (yield from reader.expect('"parameters"')) and not (yield from reader.expect('"arguments"')):
        return None
    yield from reader.blanks()
    if not (yield from reader.expect(":")):
        return None
    yield from reader.blanks()
    return name if (yield from reader.peek()) in ("{", "") else None


def _close_object(reader: Reader) -> Script[None]:
    """Over the closing brace, and over members that stand before it."""
    yield from reader.blanks()
    if (yield from reader.peek()) == ",":
        while (char := (yield from reader.peek())) and char != "}":
            if char in '{["':
                yield from _skip_value(reader)
            else:
                reader.skip()
    yield from reader.expect("}")


def _skip_value(reader: Reader) -> Script[None]:
    if (yield from reader.accept('"')):
        yield from _string_rest(reader, _nowhere)
    else:
        yield from json_object(reader, _nowhere)


def _string_rest(reader: Reader, write: Callable[[str], None]) -> Script[bool]:
    """Over a string, after its opening quote. False: the text ended in it."""
    while True:
        yield from reader.pieces(_IN_STRING, write)
        char = yield from reader.peek()
        if not char:
            return False
        reader.skip()
        write(char)
        if char == '"':
            return True
        escaped = yield from reader.peek()
        reader.skip(len(escaped))
        write(escaped)


def _nowhere(text: str) -> None:
    """For text that is only to be passed over."""
