"""Which tokens of a prompt belong to which message. Contents are found in the rendered text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from .trace_records import Part


def message_parts(
    messages: Sequence[Mapping[str, Any]], rendered: str, ids: Sequence[int], length_of: Callable[[int], int]
) -> list[Part]:
    """The parts of a prompt in tokens. A message reaches from the end of the one before to the end of its content, with
    what the template writes around it; a token across the border counts for the first. `length_of` is that of a token's
    text in bytes. What was taken over from an earlier turn, other tokens for the same text, moves no border by more
    than it differs in length."""
    ends = _ends(messages, rendered)
    reached = list(accumulate(map(length_of, ids)))
    parts: list[Part] = []
    start = 0
    for index, end in enumerate(ends):
        stop = min(len(ids), bisect_left(reached, end) + 1)
        if stop > start:
            parts.append(Part(index, str(messages[index].get("role", "")), start, stop))
            start = stop
    if start < len(ids):
        parts.append(Part(-1, "template", start, len(ids)))
    return parts


def _ends(messages: Sequence[Mapping[str, Any]], rendered: str) -> list[int]:
    """Where the content of each message ends in the text, in bytes. One that is not found, such as that of a call,
    ends where the next begins to be looked for."""
    at = in_bytes = 0
    ends = []
    for message in messages:
        for said in _texts(message):
            found = rendered.find(said, at)
            if found >= 0:
                end = found + len(said)
                in_bytes += len(rendered[at:end].encode("utf-8", "surrogatepass"))
                at = end
        ends.append(in_bytes)
    return ends


def _texts(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content") or ""
    pieces = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    calls = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    pieces += [str(call.get("name", "")) for call in calls]
    return [piece.strip() for piece in pieces if piece.strip()]
