"""Gemma, in its two manners.

Gemma 3: calls in Python, one a line, in a fence: ```` ```tool_code\\nf(a=1)\\n``` ````.
FunctionGemma: `<start_function_call>call:f{a:1,b:<escape>x<escape>}<end_function_call>`, any number.
See `keywords` for how values are written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from .base import Format, FormatJson, Tool, Writer
from .keywords import GemmaStyle, inside_of
from .literals import ESCAPE, literal
from .pythonic import python_call, read_python_call
from .reader import Reader, Script
from .scan import text_and_calls
from .shapes import arguments, const, listed, sequence, tag, triggered

FENCE, FENCE_END = "```tool_code", "```"
OPEN, CLOSE = "<start_function_call>", "<end_function_call>"

_NAME = re.compile(r"[^{<\s]")


class GemmaCode(Format):
    name: ClassVar[str] = "gemma"

    def calls(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        return tag(f"{FENCE}\n", listed([python_call(tool) for tool in tools], "\n", many), f"\n{FENCE_END}")

    def free(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        return triggered(FENCE, [self.calls(tools, many)], many=False)

    def read(self, names: frozenset[str], reader: Reader, writer: Writer, answer: bool) -> Script[None]:
        def block() -> Script[bool]:
            found = False
            while (yield from read_python_call(names, reader, writer)):
                found = True
            if found:
                yield from reader.blanks()
                yield from reader.expect(FENCE_END)
            return found

        yield from text_and_calls(FENCE, reader, writer, block, at_start=answer)


class FunctionGemma(Format):
    name: ClassVar[str] = "functiongemma"
    specials: ClassVar[tuple[str, ...]] = (OPEN, CLOSE, ESCAPE)
    stops: ClassVar[tuple[str, ...]] = ("<start_function_response>",)

    def calls(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        return listed([self._tag(tool) for tool in tools], "", many)

    def free(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        return triggered(OPEN, [self._tag(tool) for tool in tools], many)

    def read(self, names: frozenset[str], reader: Reader, writer: Writer, answer: bool) -> Script[None]:
        def call() -> Script[bool]:
            reader.mark()
            if (yield from reader.accept("call:")):
                name = yield from reader.run(_NAME)
                if name in names and (yield from reader.peek()) == "{":
                    reader.release()
                    writer.start(name)
                    writer.end((yield from literal(reader, writer.arguments)))
                    yield from reader.blanks()
                    yield from reader.expect(CLOSE)
                    return True
            reader.rewind()
            return False

        yield from text_and_calls(OPEN, reader, writer, call, at_start=answer)

    def _tag(self, tool: Tool) -> FormatJson:
        found = GemmaStyle().arguments(tool.schema)
        if found is None:
            return tag(f"{OPEN}call:{tool.name}", arguments(tool), CLOSE)
        return tag(f"{OPEN}call:{tool.name}", sequence(const("{"), *inside_of(found)), f"}}{CLOSE}")
