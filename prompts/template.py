"""The chat template's text around turns, without their contents.

A template is asked about markers in place of contents. So user text never takes part in its logic, a content is never
trimmed or rewritten, and the answer for a sequence of roles is good for every run: it is asked for once.
Knows nothing of tokens.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from ..errors import TemplateFailed
from ..types import Message, Segment, ToolSpec
from .text_side import TextSide
from .transcript import Gap, Head

_MARKER = re.compile(r"@@bosquet-content-(\d+)@@")
_FRESH_S = 600.0  # a template may print the date, so what it said is not kept for ever
MOST = 512
"""Answers that a layout keeps unless it is told otherwise; each has as much to it as there are turns."""


class Layout:
    """One backend's template. A run keeps one for its whole life, so that it gets one answer to one question. The
    `most` newest answers are kept."""

    def __init__(self, backend: TextSide, most: int = MOST) -> None:
        self._backend = backend
        self._most = most
        self._known: dict[tuple[tuple[Head, ...], tuple[ToolSpec, ...], bool], list[Gap]] = {}
        self.born = time.monotonic()

    async def gaps(
        self, heads: tuple[Head, ...], is_open: bool, tools: tuple[ToolSpec, ...] = ()
    ) -> tuple[tuple[Gap, ...], Gap]:
        """For turns with these heads, told of these tools: the text before each content, and the text after the last
        (empty if its turn is still open).

        An assistant turn that is last begins as the template's generation prompt does, also when it is closed: it may
        have been generated, and some templates show a finished last turn otherwise.
        Raises `TemplateFailed` when the template refuses the roles, or does not show a turn.
        """
        if heads[-1].role == "assistant":
            before = tuple(await self._render(heads[:-1], tools, True))
            return before, () if is_open else (await self._render(heads, tools, False))[-1]
        *before_each, after = await self._render(heads, tools, False)
        return tuple(before_each), () if is_open else after

    async def _render(self, heads: tuple[Head, ...], tools: tuple[ToolSpec, ...], prompt: bool) -> list[Gap]:
        """The len(heads) + 1 pieces of the rendering."""
        known = self._known.get((heads, tools, prompt))
        if known is None:
            messages = [_marked(head, i) for i, head in enumerate(heads)]
            more = {"tools": tools} if tools else {}  # a backend that cannot do tools need not know of them
            segments = await self._backend.render(messages, add_generation_prompt=prompt, **more)
            known = self._known[heads, tools, prompt] = _split(segments, [head.role for head in heads])
            if len(self._known) > self._most:
                del self._known[next(iter(self._known))]
        return known


def _marked(head: Head, turn: int) -> Message:
    message = Message(role=head.role, content=f"@@bosquet-content-{turn}@@")
    if head.role == "tool":
        message["tool_call_id"] = "call"  # the protocol wants one; which it is, the place of the turn says
    if head.name:
        message["name"] = head.name
    return message


def _split(segments: Sequence[Segment], roles: Sequence[str]) -> list[Gap]:
    gaps: list[list[Segment]] = [[]]
    for segment in segments:
        for i, part in enumerate(_MARKER.split(segment.text)):
            if i % 2 == 0:
                gaps[-1].append(Segment(part, segment.control))
            elif int(part) == len(gaps) - 1:
                gaps.append([])
            else:
                raise TemplateFailed(_unplaced(len(gaps) - 1, roles), f"messages[{len(gaps) - 1}]")
    if len(gaps) != len(roles) + 1:
        raise TemplateFailed(_unplaced(len(gaps) - 1, roles), f"messages[{len(gaps) - 1}]")
    return [merge(gap) for gap in gaps]


def _unplaced(turn: int, roles: Sequence[str]) -> str:
    which = f"turn {turn} ({roles[turn]})" if turn < len(roles) else "every turn"
    return f"the chat template does not show {which} once and in its place, for the roles {', '.join(roles)}"


def merge(segments: Sequence[Segment]) -> Gap:
    """The same text in as few segments as can be."""
    merged: list[Segment] = []
    for segment in segments:
        if not segment.text:
            continue
        if merged and merged[-1].control == segment.control:
            merged[-1] = Segment(merged[-1].text + segment.text, segment.control)
        else:
            merged.append(segment)
    return tuple(merged)


def remainder(gap: Gap, beginning: Gap) -> Gap | None:
    """What follows `beginning` in `gap`, or None if `gap` begins otherwise. Both are merged."""
    if not beginning:
        return gap
    whole, last = beginning[:-1], beginning[-1]
    place = len(whole)
    if gap[:place] != whole or len(gap) <= place or gap[place].control != last.control:
        return None
    if not gap[place].text.startswith(last.text):
        return None
    return merge([Segment(gap[place].text[len(last.text) :], last.control), *gap[place + 1 :]])


_layouts: WeakKeyDictionary[TextSide, Layout] = WeakKeyDictionary()


def layout_of(backend: TextSide) -> Layout:
    """The layout to use for a run that begins now."""
    layout = _layouts.get(backend)
    if layout is None or time.monotonic() - layout.born > _FRESH_S:
        layout = _layouts[backend] = Layout(backend)
    return layout
