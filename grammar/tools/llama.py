"""Llama 3: the whole message is `{"name": …, "parameters": {…}}`; several calls are separated by `; `.

Nothing marks such a call but its place, so text may not begin with a brace under the grammar, and JSON later in the
text is text. `<|python_tag|>` before the calls is read, and is written (and declared) where a call must not be taken
for a JSON answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

from .base import Format, FormatJson, Tool, Writer
from .reader import Reader, Script
from .scan import begins_with, json_call
from .shapes import arguments, const, either, listed, sequence, tag, text_not_from

PYTHON = "<|python_tag|>"


class Llama(Format):
    name: ClassVar[str] = "llama3"
    specials: ClassVar[tuple[str, ...]] = (PYTHON,)
    stops: ClassVar[tuple[str, ...]] = ("<|eom_id|>", "<|eot_id|>")

    def calls(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        tags = [tag(f'{{"name": {json.dumps(tool.name)}, "parameters": ', arguments(tool), "}") for tool in tools]
        return listed(tags, "; ", many)

    def calls_beside_answer(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        return sequence(const(PYTHON), self.calls(tools, many))

    def declared(self, answer: bool) -> tuple[str, ...]:
        return self.specials if answer else ()

    def free(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        return either(self.calls(tools, many), text_not_from("{"))

    def read(self, names: frozenset[str], reader: Reader, writer: Writer, answer: bool) -> Script[None]:
        marked = yield from begins_with(PYTHON, reader, writer)
        if answer and not marked:
            return
        marker = PYTHON if (yield from reader.accept(PYTHON)) else ""
        if not (yield from json_call(names, reader, writer)):
            if not reader.cut:
                writer.text(marker)
            return
        while True:
            reader.mark()
            yield from reader.blanks()
            if not (yield from reader.accept(";")) or not (yield from json_call(names, reader, writer)):
                reader.rewind()
                return
            reader.release()
