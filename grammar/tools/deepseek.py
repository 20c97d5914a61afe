"""DeepSeek: one block of calls between markers. V3 and R1 write a kind and fence the JSON, V3.1 does neither.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\\n```json\\n{…}\\n```<｜tool▁call▁end｜>…<｜tool▁calls▁end｜>
    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>…<｜tool▁calls▁end｜>

Both are read by both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from .base import Format, FormatJson, Tool, Writer
from .reader import Reader, Script
from .scan import json_object, text_and_calls
from .shapes import arguments, listed, tag, triggered

OPEN, CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, END, SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"

_NAME = re.compile(r"[^<`{ \t\r\n]")


class DeepSeek(Format):
    name: ClassVar[str] = "deepseek_v3"
    specials: ClassVar[tuple[str, ...]] = (OPEN, CLOSE, CALL, END, SEP)
    between: ClassVar[str] = "\n"

    def calls(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        return tag(OPEN, listed([self._tag(tool) for tool in tools], self.between, many), CLOSE)

    def free(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        return triggered(OPEN, [self.calls(tools, many)], many=False)

    def read(self, names: frozenset[str], reader: Reader, writer: Writer, answer: bool) -> Script[None]:
        def block() -> Script[bool]:
            found = False
            while True:
                reader.mark()
                yield from reader.blanks()
                if not (yield from reader.accept(CALL)) or not (yield from _call(names, reader, writer)):
                    reader.rewind()
                    break
                reader.release()
                found = True
            if found:
                yield from reader.blanks()
                yield from reader.expect(CLOSE)
            return found

        yield from text_and_calls(OPEN, reader, writer, block, at_start=answer)

    def _tag(self, tool: Tool) -> FormatJson:
        return tag(f"{CALL}function{SEP}{tool.name}\n```json\n", arguments(tool), f"\n```{END}")


class DeepSeek31(DeepSeek):
    name: ClassVar[str] = "deepseek_v31"
    between: ClassVar[str] = ""

    def _tag(self, tool: Tool) -> FormatJson:
        return tag(f"{CALL}{tool.name}{SEP}", arguments(tool), END)


def _call(names: frozenset[str], reader: Reader, writer: Writer) -> Script[bool]:
    """After the marker that opens a call."""
    name = yield from reader.run(_NAME)
    if not (yield from reader.accept(SEP)):
        return False
    fenced = False
    if name == "function" and (yield from reader.peek()) != "{":  # the kind; a tool may have that name too
        name = yield from reader.run(_NAME)
        if not (yield from reader.peek()):  # a name at the very end may be half of one
            return False
        yield from reader.blanks()
        fenced = yield from reader.expect("```json")
    yield from reader.blanks()
    if name not in names or (yield from reader.peek()) not in ("{", ""):
        return False
    writer.start(name)
    complete = yield from json_object(reader, writer.arguments)
    writer.end(complete)
    yield from reader.blanks()
    if fenced and (yield from reader.expect("```")):
        yield from reader.blanks()
    yield from reader.expect(END)
    return True
