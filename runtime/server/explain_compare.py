"""What two requests do differently where their prompts part: tools, messages, or the text of one of these.

Knows nothing of caches, nor of who asks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ...prompts.shared import shared_length
from .explain_prompt import Part, Prompt, calls, said, texts
from .explain_text import Change, change, start_of

Kind = Literal[
    Change,
    "tools_reordered", "tools_changed", "tool_edited", "arguments_layout", "arguments_changed", "role_changed",
    "history_truncated", "message_inserted", "messages_reordered", "answer_changed", "tokenization", "template",
    "shorter", "longer", "differs",
]  # fmt: skip

Message = Mapping[str, Any]


class Difference(NamedTuple):
    """`kind` says what is different, `part` where in our prompt, `character` where in the part. `detail` says how
    much was added, left out or moved, never what."""

    kind: Kind
    part: Part
    character: int
    detail: str = ""


def compare(ours: Prompt, theirs: Prompt, at: int) -> Difference:
    """Both prompts are known. `at` is the first byte of the token where they part."""
    offset = at + first_byte(ours.data[at:], theirs.data[at:])
    part = _differing(ours, theirs, offset)
    character = character_at(ours, part, offset)
    if offset >= min(len(ours.data), len(theirs.data)) or offset - at > MOST_TOKEN_BYTES:
        if offset == len(ours.data) == len(theirs.data) or offset - at > MOST_TOKEN_BYTES:
            return Difference("tokenization", ours.part_at(at), character_at(ours, ours.part_at(at), at))
        return Difference("longer" if offset == len(theirs.data) else "shorter", part, character)
    kind, detail = _structure(ours, theirs, offset, part)
    if kind is None:
        kind = change(ours.data[at:].decode("utf-8", "replace"), theirs.data[at:].decode("utf-8", "replace"))
        if part.kind == "template" and kind not in ("timestamp", "random_id"):
            kind = "template"
    return _placed(ours, Difference(kind, part, character, detail))


MOST_TOKEN_BYTES = 256
"""Prompts whose texts part so much later than their tokens are the same text, cut into tokens differently."""


def compare_start(ours: Prompt, at: int, theirs: bytes) -> Difference:
    """Of the other path only the bytes of some tokens from `at` on are known."""
    offset = at + first_byte(ours.data[at:], theirs)
    ended = ours.part_before(offset)
    if ended is not None and ended.kind == "message" and ended.end == offset < at + len(theirs):
        return Difference(_ended_early(ours, ended), ended, character_at(ours, ended, offset))
    part = _part_at(ours, offset)
    character = character_at(ours, part, offset)
    start = max(part.start, 0) if part.start <= at else at
    before = ours.data[start:at]
    mine = ours.data[start : part.end].decode("utf-8", "replace")
    other = (before + theirs).decode("utf-8", "ignore")
    kind: Kind = change(mine, other, whole=False)
    if kind == "same":
        kind = "tokenization"
    elif part.name.endswith("tool_calls") and _same_but_for_space(mine, other):
        kind = "arguments_layout"
    elif part.kind == "template" and kind not in ("timestamp", "random_id"):
        kind = "template"
    elif _is_answer(ours, part) and kind in ("edited", "new_text", "appended", "cut", "number"):
        kind = "answer_changed"
    elif kind in ("edited", "new_text", "appended", "cut") and not _is_last(ours, part):
        kind = "differs"  # it may be edited, moved, or what came after something that was left out
    return _placed(ours, Difference(kind, part, character))


def _part_at(prompt: Prompt, offset: int) -> Part:
    return prompt.part_at(min(offset, max(0, len(prompt.data) - 1)))


def _differing(ours: Prompt, theirs: Prompt, offset: int) -> Part:
    """Our part that differs at this byte. Where one has ended that theirs goes on with, it is that one, and not what
    the template writes after it; likewise the last tool where theirs tells more of them."""
    part, other, ended = _part_at(ours, offset), _part_at(theirs, offset), ours.part_before(offset)
    if ended is None or ended.kind != other.kind:
        return part
    return ended if ended.number == other.number or (part.kind, other.kind) == ("template", "tool") else part


def _ended_early(ours: Prompt, part: Part) -> Kind:
    """A message ends where the other path, of which no more is known, goes on in another way than the template."""
    if _is_answer(ours, part):
        return "answer_changed"
    return "cut" if _is_last(ours, part) else "differs"


def _same_but_for_space(mine: str, other: str) -> bool:
    """As far as both are known."""
    a, b = "".join(mine.split()), "".join(other.split())
    shorter = min(len(a), len(b))
    return shorter > 0 and a[:shorter] == b[:shorter]


def _placed(ours: Prompt, found: Difference) -> Difference:
    """A time or an id differs somewhere inside; it is named by its beginning."""
    return found._replace(character=start_of(found.kind, ours.text(found.part), found.character))


def first_byte(ours: bytes, theirs: bytes) -> int:
    """The first byte that differs, moved back to the beginning of its character."""
    at = shared_length(ours, theirs)
    while 0 < at < len(ours) and ours[at] & 0xC0 == 0x80:
        at -= 1
    return at


def character_at(prompt: Prompt, part: Part, offset: int) -> int:
    """The number of characters of the part before this byte."""
    return len(prompt.data[part.start : max(part.start, min(offset, part.end))].decode("utf-8", "ignore"))


# ---- tools and messages ----------------------------------------------------------------------------------------------


def _structure(ours: Prompt, theirs: Prompt, offset: int, part: Part) -> tuple[Kind | None, str]:
    """The kind of difference, if the requests are told apart as messages and tools."""
    other = theirs.part_at(offset)
    if list(ours.told.tools) != list(theirs.told.tools):
        at_tools = "tool" in (part.kind, other.kind)
        k = _first(ours.told.messages, theirs.told.messages)
        if at_tools or (part.kind == "template" and k == len(ours.told.messages)):
            return _tools(ours.told.tools, theirs.told.tools)
    if not ours.told.messages or not theirs.told.messages:
        return None, ""
    if part.kind == "tool":
        return None, ""
    # What was sent in another form, and became the same prompt, lies before the part and is not why they differ.
    return _messages(ours.told.messages, theirs.told.messages, part.number if part.kind == "message" else 0)


def _tools(ours: Sequence[tuple[str, str]], theirs: Sequence[tuple[str, str]]) -> tuple[Kind, str]:
    if sorted(ours) == sorted(theirs):
        return "tools_reordered", ""
    mine, other = dict(ours), dict(theirs)
    added, gone = [name for name in mine if name not in other], [name for name in other if name not in mine]
    if added or gone:
        return "tools_changed", f"{len(added)} more, {len(gone)} left out"
    if [name for name, _ in ours] != [name for name, _ in theirs]:
        return "tools_reordered", ""
    index, name = next((i, name) for i, name in enumerate(mine) if mine[name] != other[name])
    kind = change(mine[name], other[name])
    return (kind if kind in ("timestamp", "random_id", "whitespace", "json_layout") else "tool_edited"), f"tool {index}"


def _first(ours: Sequence[Message], theirs: Sequence[Message]) -> int:
    """The first message that differs."""
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if not _equal(a, b):
            return index
    return min(len(ours), len(theirs))


def _equal(a: Message, b: Message) -> bool:
    return a.get("role") == b.get("role") and texts(a) == texts(b) and calls(a) == calls(b)


def _messages(ours: Sequence[Message], theirs: Sequence[Message], least: int) -> tuple[Kind | None, str]:
    """Of the messages from number `least` on."""
    k = least + _first(ours[least:], theirs[least:])
    if k >= len(ours) and k >= len(theirs):
        return None, ""
    if k >= len(ours):
        return "shorter", ""
    if k >= len(theirs):
        return "longer", ""
    moved = _moved(ours[k:], theirs[k:], k)
    return moved if moved is not None else _message(ours[k], theirs[k], last=k == len(ours) - 1)


def _moved(ours: Sequence[Message], theirs: Sequence[Message], k: int) -> tuple[Kind, str] | None:
    """The same messages in another order, with some left out, or with some put in."""
    mine, other = [(m.get("role"), said(m)) for m in ours], [(m.get("role"), said(m)) for m in theirs]
    if len(mine) > 1 and sorted(map(str, mine)) == sorted(map(str, other)):
        return "messages_reordered", ""
    if mine[0] in other[1:]:
        left = other.index(mine[0], 1)
        return "history_truncated", f"{left} left out from message {k} on"
    if other[0] in mine[1:]:
        put = mine.index(other[0], 1)
        return "message_inserted", f"{put} put in at message {k}"
    return None


def _message(ours: Message, theirs: Message, *, last: bool) -> tuple[Kind, str]:
    if said(ours) == said(theirs):
        return "role_changed", f"{theirs.get('role')} → {ours.get('role')}"
    if calls(ours) and calls(theirs) and texts(ours) == texts(theirs):
        same = [_call(each) for each in calls(ours)] == [_call(each) for each in calls(theirs)]
        return ("arguments_layout" if same else "arguments_changed"), ""
    kind: Kind = change("\n".join(texts(ours)), "\n".join(texts(theirs)))
    if kind in ("edited", "appended", "cut", "number", "new_text") and ours.get("role") == "assistant":
        return "answer_changed", ""
    if kind == "edited" and last and ours.get("role") == "user" and change_is_slight(ours, theirs) is False:
        return "new_text", ""
    return kind, ""


def change_is_slight(ours: Message, theirs: Message) -> bool:
    """Most of what follows the difference is the same, to the letter, at the end."""
    a, b = said(ours), said(theirs)
    tail = shared_length(a[::-1], b[::-1])
    head = shared_length(a, b)
    return 2 * (tail + head) >= min(len(a), len(b))


def _call(call: tuple[str, str]) -> tuple[str, Any]:
    name, arguments = call
    try:
        return name, json.loads(arguments)
    except (ValueError, RecursionError):
        return name, arguments


def _is_last(prompt: Prompt, part: Part) -> bool:
    return part.kind == "text" or (part.kind == "message" and part.number == len(prompt.told.messages) - 1)


def _is_answer(prompt: Prompt, part: Part) -> bool:
    return part.kind == "message" and prompt.told.messages[part.number].get("role") == "assistant"
