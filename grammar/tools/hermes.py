"""Hermes and Qwen: `<tool_call>\\n{"name": …, "arguments": {…}}\\n</tool_call>`, anywhere in the text, any number.

The opening marker alone triggers the grammar, so that nothing but a call can follow it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

from .base import Format, FormatJson, Tool, Writer
from .reader import Reader, Script
from .scan import json_call, text_and_calls
from .shapes import arguments, listed, tag, triggered

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes(Format):
    name: ClassVar[str] = "hermes"
    specials: ClassVar[tuple[str, ...]] = (OPEN, CLOSE)

    def calls(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        return listed([self._tag(tool) for tool in tools], "\n", many)

    def free(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        return triggered(OPEN, [self._tag(tool) for tool in tools], many)

    def read(self, names: frozenset[str], reader: Reader, writer: Writer, answer: bool) -> Script[None]:
        def call() -> Script[bool]:
            found = yield from json_call(names, reader, writer)
            if found:
                yield from reader.blanks()
                yield from reader.expect(CLOSE)
            return found

        yield from text_and_calls(OPEN, reader, writer, call, at_start=answer)

    def _tag(self, tool: Tool) -> FormatJson:
        return tag(f'{OPEN}\n{{"name": {json.dumps(tool.name)}, "arguments": ', arguments(tool), f"}}\n{CLOSE}")
