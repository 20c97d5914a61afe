"""Pythonic (Llama 4 and others): the whole message is `[f(a=1, b="x"), g()]`.

Nothing marks such a call but its place, so text may not begin with a bracket under the grammar. Arguments that cannot
be written one by one are `f(**{…})`; see `keywords` for which, and for how values are written. The parser writes
arguments as JSON, with `, ` and `: ` between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from .base import Format, FormatJson, Tool, Writer
from .keywords import Style, inside_of
from .literals import keyword_arguments
from .reader import BLANK, Reader, Script
from .shapes import arguments, const, either, listed, sequence, tag, text_not_from

START, END = "<|python_start|>", "<|python_end|>"

_NAME = re.compile(r"[a-zA-Z0-9_.-]")


class Pythonic(Format):
    name: ClassVar[str] = "pythonic"
    specials: ClassVar[tuple[str, ...]] = (START, END)

    def calls(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        return tag("[", listed([python_call(tool) for tool in tools], ", ", many), "]")

    def declared(self, answer: bool) -> tuple[str, ...]:
        return ()

    def free(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        return either(self.calls(tools, many), text_not_from("["))

    def read(self, names: frozenset[str], reader: Reader, writer: Writer, answer: bool) -> Script[None]:
        writer.text((yield from reader.run(BLANK)))
        reader.mark()
        yield from reader.accept(START)
        yield from reader.blanks()
        if not (yield from reader.accept("[")) or not (yield from read_python_call(names, reader, writer)):
            reader.rewind()
            return
        reader.release()
        while True:
            reader.mark()
            yield from reader.blanks()
            if not (yield from reader.accept(",")) or not (yield from read_python_call(names, reader, writer)):
                reader.rewind()
                break
            reader.release()
        yield from reader.blanks()
        yield from reader.expect("]")
        yield from reader.blanks()
        yield from reader.expect(END)


def python_call(tool: Tool) -> FormatJson:
    """A tag: `name(arguments)`."""
    found = Style().arguments(tool.schema)
    if found is None:
        return tag(f"{tool.name}(**", arguments(tool), ")")
    return tag(tool.name, sequence(const("("), *inside_of(found)), ")")


def read_python_call(names: frozenset[str], reader: Reader, writer: Writer) -> Script[bool]:
    """One `name(arguments)`, blanks before it aside. False, and nothing read: there is none."""
    reader.mark()
    yield from reader.blanks()
    name = yield from reader.run(_NAME)
    if name not in names or not (yield from reader.accept("(")):
        reader.rewind()
        return False
    reader.release()
    writer.start(name)
    writer.end((yield from keyword_arguments(reader, writer.arguments)))
    return True
