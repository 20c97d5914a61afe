"""Where the messages and tools of a prompt lie in what the template has made of them.

Contents are looked for in the prompt's bytes, in order: no template has to help, and what one has changed beyond
recognition is the template's. Knows nothing of caches.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from typing import Any, Literal, NamedTuple

import msgspec

from ...grammar.tools import Tool

PartKind = Literal["message", "tool", "template", "text"]


class Part(NamedTuple):
    """Bytes `start` … `end` - 1 of a prompt. `name` is the field of the request that they come from, `label` says it in
    words, `number` counts among those of its kind."""

    kind: PartKind
    name: str
    label: str
    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Told:
    """What a request said: messages as templates know them, and the names and definitions of tools. Neither: its prompt
    is a text."""

    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[tuple[str, str]] = ()


def told_tools(tools: Sequence[Tool]) -> list[tuple[str, str]]:
    """Names and definitions."""
    return [(tool.name, msgspec.json.encode([tool.description, tool.parameters]).decode()) for tool in tools]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, the bytes that they stand for, and what lies where."""

    ids: Sequence[int]
    data: bytes
    starts: Sequence[int]  # of each token, in bytes; then the end
    told: Told
    parts: Sequence[Part] = field(default_factory=list)

    def part_at(self, offset: int) -> Part:
        """The part that holds this byte; between parts, and in a prompt that has none, the template's or the text."""
        if not self.told.messages and not self.told.tools:
            return Part("text", "prompt", "the prompt", 0, 0, len(self.data))
        before = [part for part in self.parts if part.start <= offset]
        if before and offset < before[-1].end:
            return before[-1]
        after = [part for part in self.parts if part.start > offset]
        start = before[-1].end if before else 0
        label = f"what the template writes after {before[-1].label}" if before else "the beginning of the template"
        return Part("template", "template", label, 0, start, after[0].start if after else len(self.data))

    def part_before(self, offset: int) -> Part | None:
        """The last part that has ended at this byte."""
        return max((part for part in self.parts if part.end <= offset), key=lambda part: part.end, default=None)

    def token_at(self, offset: int) -> int:
        """The token that holds this byte."""
        return max(0, bisect_right(self.starts, offset) - 1)

    def text(self, part: Part) -> str:
        return self.data[part.start : part.end].decode("utf-8", "replace")


def lay(ids: Sequence[int], bytes_of: Callable[[int], bytes], told: Told) -> Prompt:
    """Find the parts of a prompt."""
    pieces = [bytes_of(token) for token in ids]
    data = b"".join(pieces)
    starts = list(accumulate(map(len, pieces), initial=0))
    messages = _messages(data, told.messages)
    parts = sorted(_tools(data, told.tools, messages) + messages, key=lambda part: (part.start, part.end))
    return Prompt(ids, data, starts, told, parts)


def said(message: Mapping[str, Any]) -> str:
    """All that a message says, in one text."""
    return "\n".join([*texts(message), *(f"{name} {arguments}" for name, arguments in calls(message))])


def texts(message: Mapping[str, Any]) -> list[str]:
    """Its content, in the parts that it came in."""
    content = message.get("content") or ""
    return [content] if isinstance(content, str) else [str(part.get("text", "")) for part in content]


def calls(message: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and arguments of the calls that it makes."""
    functions = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    return [(str(function.get("name", "")), str(function.get("arguments", ""))) for function in functions]


def label_of(index: int, message: Mapping[str, Any]) -> str:
    role = str(message.get("role", ""))
    return "the system message" if role == "system" and index == 0 else f"message {index} ({role})"


def _messages(data: bytes, messages: Sequence[Mapping[str, Any]]) -> list[Part]:
    found: list[Part] = []
    at = 0
    for index, message in enumerate(messages):
        spans = []
        for text in texts(message):
            span = _find(data, text, at)
            if span is not None:
                spans.append(span)
                at = span[1]
        for name, _ in calls(message):
            start = data.find(name.encode("utf-8", "replace"), at)
            if name and start >= 0:
                spans.append((start, start + len(name)))
                at = start + len(name)
        if spans:
            field = f"messages[{index}].content" if any(texts(message)) else f"messages[{index}].tool_calls"
            label = label_of(index, message)
            found.append(Part("message", field, label, index, spans[0][0], spans[-1][1]))
    return [_with_calls(data, part, messages, found) for part in found]


def _find(data: bytes, text: str, at: int) -> tuple[int, int] | None:
    """Where a content stands, as it is or as a template trims it; None for one that is empty or not there."""
    for form in (text, text.strip()):
        raw = form.encode("utf-8", "replace")
        start = data.find(raw, at) if raw else -1
        if start >= 0:
            return start, start + len(raw)
    return None


def _with_calls(data: bytes, part: Part, messages: Sequence[Mapping[str, Any]], found: Sequence[Part]) -> Part:
    """A message that makes calls goes on to the end of their arguments, which templates write in their own way: to the
    end of its turn, which is where the next one's line begins."""
    if not calls(messages[part.number]):
        return part
    limit = min((other.start for other in found if other.start > part.start), default=len(data))
    line = data.rfind(b"\n", part.end, limit)
    return part._replace(end=line if line > part.end else limit)


_TOOL_ENDS = (b"\n\n", b"\n</tools>")


def _tools(data: bytes, tools: Sequence[tuple[str, str]], messages: Sequence[Part]) -> list[Part]:
    """As JSON, or as lines that begin with their names; each up to the next."""
    starts: list[tuple[int, int]] = []
    for index, (name, _) in enumerate(tools):
        quoted = re.escape(name.encode("utf-8", "replace"))
        match = re.search(rb'"name":\s*"' + quoted + rb'"|^' + quoted + rb"(?=:|\n|$)", data, re.MULTILINE)
        if match is not None:
            line = data.rfind(b"\n", 0, match.start()) + 1
            opened = data.rfind(b'{"type"', line, match.start())
            starts.append((opened if opened >= 0 else line, index))
    starts.sort()
    parts = []
    for (start, index), after in zip_longest(starts, starts[1:]):
        ends = [end for end in (data.find(mark, start) for mark in _TOOL_ENDS) if end >= 0]
        ends += [part.start for part in messages if part.start > start]
        end = min([*ends, len(data)]) if after is None else after[0]
        parts.append(Part("tool", f"tools[{index}]", f"tool {index}", index, start, max(start, end)))
    return parts
