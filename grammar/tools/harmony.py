"""Harmony (gpt-oss): every output is a row of messages in channels, and the grammar holds from the first token.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}

`analysis` is the reasoning part; `commentary` without a recipient is text; a call ends the turn, so there is at most
one. A message is over at `<|end|>` and at nothing else, since what a model writes inside one is its text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from .base import Format, FormatJson, Tool, ToolChoice, Writer
from .reader import Reader, Script
from .scan import json_object
from .shapes import ANY, arguments, const, either, listed, repeated, sequence, tag, triggered

START, CHANNEL, MESSAGE, END, CALL = "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"
CONSTRAIN = "<|constrain|>"

_ROLE = re.compile(r"[a-z]")
_RECIPIENT = re.compile(r"to=functions\.([a-zA-Z0-9_.-]+)[^a-zA-Z0-9_.-]")  # at the very end it may be half a name
_CHANNEL = re.compile(rf"{re.escape(CHANNEL)}\s*(\w+)")


class Harmony(Format):
    name: ClassVar[str] = "harmony"
    specials: ClassVar[tuple[str, ...]] = (START, CHANNEL, MESSAGE, END, CONSTRAIN)
    stops: ClassVar[tuple[str, ...]] = (CALL, "<|return|>")
    channels: ClassVar[bool] = True

    def grammar(
        self, tools: Sequence[Tool], choice: ToolChoice, parallel: bool = True, answer: FormatJson | None = None
    ) -> FormatJson:
        usable = choice.select(tools)
        final = _final(answer)
        if not usable:
            return _after_thoughts(final)
        if choice.mode != "auto":
            return self.calls(usable, many=False)
        return _after_thoughts(either(_call(usable), final))

    def calls(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        return _after_thoughts(_call(tools))

    def free(self, tools: Sequence[Tool], many: bool) -> FormatJson:
        return _after_thoughts(either(_call(tools), _final(None)))

    def read(self, names: frozenset[str], reader: Reader, writer: Writer, answer: bool) -> Script[None]:
        said = thought = False
        while True:
            head = yield from _head(reader)
            if head is None:  # no message in a channel: what is left is text
                return
            recipient, channel = _RECIPIENT.search(head), _CHANNEL.search(head)
            if recipient and recipient[1] in names:
                yield from _read_call(recipient[1], reader, writer)
            elif not head.endswith(MESSAGE):  # the text ended in it
                return
            elif channel and channel[1] == "analysis":
                writer.reasoning("\n\n" if thought else "")
                thought = True
                yield from reader.until((END,), writer.reasoning)
            else:
                writer.text("\n\n" if said else "")
                said = True
                yield from reader.until((END,), writer.text)
            if not (yield from reader.accept(END)):
                yield from reader.accept(CALL)


def _after_thoughts(last: FormatJson) -> FormatJson:
    """Any number of messages before the last."""
    thoughts = either(tag(f"analysis{MESSAGE}", ANY, END), tag(f"commentary{MESSAGE}", ANY, END))
    return sequence(repeated(tag(CHANNEL, thoughts, f"{START}assistant")), last)


def _call(tools: Sequence[Tool]) -> FormatJson:
    tags = [
        tag(f"{CHANNEL}commentary to=functions.{tool.name} {CONSTRAIN}json{MESSAGE}", arguments(tool), "")
        for tool in tools
    ]
    return listed(tags, "", many=False)


def _final(answer: FormatJson | None) -> FormatJson:
    """The last message. Free text may close itself, and then nothing follows: a further message would be out of the
    grammar's sight."""
    return sequence(
        const(f"{CHANNEL}final{MESSAGE}"), answer or triggered(END[:-1], [tag(END[:-1], const(END[-1:]), "")], False)
    )


def _head(reader: Reader) -> Script[str | None]:
    """What stands before the text of the next message, up to and with `MESSAGE` if the text does not end before. None,
    and nothing read: no message begins here."""
    reader.mark()
    yield from reader.blanks()
    if (yield from reader.accept(START)):
        yield from reader.run(_ROLE)
        yield from reader.blanks()
    if not (yield from _begins(reader)):
        reader.rewind()
        return None
    reader.release()
    parts: list[str] = []
    yield from reader.until((MESSAGE,), parts.append)
    return "".join(parts) + (MESSAGE if (yield from reader.accept(MESSAGE)) else "")


def _begins(reader: Reader) -> Script[bool]:
    """A channel or a recipient comes next."""
    for mark in (CHANNEL, "to="):
        reader.mark()
        found = yield from reader.accept(mark)
        reader.rewind()
        if found:
            return True
    return False


def _read_call(name: str, reader: Reader, writer: Writer) -> Script[None]:
    writer.start(name)
    yield from reader.blanks()
    complete = (yield from reader.peek()) == "{" and (yield from json_object(reader, writer.arguments))
    writer.end(complete)
