"""Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, and since 2025 `[TOOL_CALLS]name[ARGS]{…}` once a call.

Both are read by both. Ids have nine letters and digits: the family's templates refuse others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import ClassVar

from .base import Format, FormatJson, IdStyle, Tool, Writer
from .reader import Reader, Script
from .scan import json_call, json_object, text_and_calls
from .shapes import arguments, listed, tag, triggered

OPEN, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"

_NAME = re.compile(r"[^\[{ \t\r\n]")
_ID = re.compile(r"[a-zA-Z0-9]")


class MistralList(Format):
    name: ClassVar[str] = "mistral"
    specials: ClassVar[tuple[str, ...]] = (OPEN, ARGS, CALL_ID)
    ids: ClassVar[IdStyle] = IdStyle("", 9)

    def calls(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        tags = [tag(f'{{"name": {json.dumps(tool.name)}, "arguments": ', arguments(tool), "}") for tool in tools]
        return tag(f"{OPEN}[", listed(tags, ", ", many), "]")

    def free(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        return triggered(OPEN, [self.calls(tools, many)], many=False)

    def read(self, names: frozenset[str], reader: Reader, writer: Writer, answer: bool) -> Script[None]:
        def call() -> Script[bool]:
            reader.mark()
            yield from reader.blanks()
            if (yield from reader.accept("[")):
                found = yield from _list(names, reader, writer)
            else:
                found = yield from _named(names, reader, writer)
            if found:
                reader.release()
            else:
                reader.rewind()
            return found

        yield from text_and_calls(OPEN, reader, writer, call, at_start=answer)


class MistralArgs(MistralList):
    name: ClassVar[str] = "mistral_args"

    def calls(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        return listed([self._tag(tool) for tool in tools], "", many)

    def free(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        return triggered(OPEN, [self._tag(tool) for tool in tools], many)

    def _tag(self, tool: Tool) -> FormatJson:
        return tag(f"{OPEN}{tool.name}{ARGS}", arguments(tool), "")


def _list(names: frozenset[str], reader: Reader, writer: Writer) -> Script[bool]:
    """The calls of a list, after its bracket."""
    if not (yield from json_call(names, reader, writer)):
        return False
    while True:
        yield from reader.blanks()
        reader.mark()
        if not (yield from reader.accept(",")) or not (yield from json_call(names, reader, writer)):
            reader.rewind()
            break
        reader.release()
    yield from reader.expect("]")
    return True


def _named(names: frozenset[str], reader: Reader, writer: Writer) -> Script[bool]:
    name = yield from reader.run(_NAME)
    if name not in names or not (yield from reader.peek()):  # a name at the very end may be half of one
        return False
    if (yield from reader.accept(CALL_ID)):
        yield from reader.run(_ID)
    if not (yield from reader.expect(ARGS)):
        return False
    yield from reader.blanks()
    if (yield from reader.peek()) not in ("{", ""):
        return False
    writer.start(name)
    writer.end((yield from json_object(reader, writer.arguments)))
    return True
