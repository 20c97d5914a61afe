"""What a branch of a program has said so far: an immutable value, so that a fork is a copy of one reference.

Knows nothing of backends. Text is written first and encoded later (`tokens.encode`), when a call or a fork needs the
ids; text that stands side by side is then encoded as one. Ids that are here never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..types import Message, Segment, ToolCall, ToolSpec

Gap = tuple[Segment, ...]
"""Template text between two turns' contents."""


class Open(NamedTuple):
    """A turn begins. `answers` is the id of the call that a tool's turn answers, `name` the tool's."""

    role: str
    answers: str = ""
    name: str = ""


class Write(NamedTuple):
    """Text, in the turn that is open or in none."""

    text: str


class Close(NamedTuple):
    """The open turn ends."""


Op = Open | Write | Close


class Head(NamedTuple):
    """What a template is told of a turn, besides its content. `name` is that of a tool."""

    role: str
    name: str = ""


class Turn(NamedTuple):
    """`text` is what the model sees between the template's own text, calls included; `content`, where it differs, is
    the text without the calls."""

    role: str
    text: str
    answers: str = ""
    name: str = ""
    calls: tuple[ToolCall, ...] = ()
    content: str | None = None

    @property
    def message(self) -> Message:
        message = Message(role=self.role, content=self.text if self.content is None else self.content)
        if self.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.calls
            ]
        if self.answers:
            message["tool_call_id"] = self.answers
        return message

    @property
    def shown(self) -> str:
        """As a reader sees it who knows no template."""
        unseen = self.calls if self.content is None else ()  # where the text has no calls in it
        return "\n".join(
            [f"{self.role}: {self.text}", *(f"{self.role} calls {call.name}({call.arguments})" for call in unseen)]
        )


class Transcript(NamedTuple):
    """Either plain text or turns.

    `pending` has been written but not encoded. `gaps[k]` is the template text that was encoded before turn k's content,
    `tail` what was encoded after the content of the last of these turns (empty while it is open). `tools` are those
    that the template is told of.
    """

    turns: tuple[Turn, ...] = ()
    open: bool = False
    plain: str = ""
    ids: tuple[int, ...] = ()
    rendered: str = ""  # the text that `ids` stand for
    gaps: tuple[Gap, ...] = ()
    tail: Gap = ()
    pending: tuple[Op, ...] = ()
    tools: tuple[ToolSpec, ...] = ()

    def write(self, ops: Sequence[Op]) -> Transcript:
        """With more text and turns, not encoded."""
        turns, is_open, plain = list(self.turns), self.open, self.plain
        for op in ops:
            if isinstance(op, Open):
                turns.append(Turn(op.role, "", op.answers, op.name))
                is_open = True
            elif isinstance(op, Close):
                is_open = False
            elif is_open:
                turns[-1] = turns[-1]._replace(text=turns[-1].text + op.text)
            else:
                plain += op.text
        return self._replace(turns=tuple(turns), open=is_open, plain=plain, pending=(*self.pending, *ops))

    def encoded(self, ids: Sequence[int], text: str, gaps: tuple[Gap, ...] = (), tail: Gap = ()) -> Transcript:
        """With everything pending now encoded as `ids`, which stand for `text`."""
        return self._replace(ids=self.ids + tuple(ids), rendered=self.rendered + text, gaps=gaps, tail=tail, pending=())

    def with_tools(self, tools: tuple[ToolSpec, ...]) -> Transcript:
        """The same turns, for a template that is told of these tools. Templates say so at the beginning, so unless the
        tools are the same, everything is encoded anew."""
        if tools == self.tools:
            return self
        ops: list[Op] = []
        for turn in self.turns:
            ops += [Open(turn.role, turn.answers, turn.name), *([Write(turn.text)] if turn.text else []), Close()]
        if self.open:
            ops.pop()
        return Transcript(turns=self.turns, open=self.open, plain=self.plain, pending=tuple(ops), tools=tools)

    def generated(
        self, text: str, ids: Sequence[int] = (), content: str | None = None, calls: tuple[ToolCall, ...] = ()
    ) -> Transcript:
        """With a model's answer at the end, and the calls that it makes. Nothing may be pending."""
        turns, plain = self.turns, self.plain
        if self.open:
            last = turns[-1]
            turns = (*turns[:-1], last._replace(text=last.text + text, content=content, calls=calls))
        else:
            plain += text
        return self._replace(turns=turns, plain=plain, ids=self.ids + tuple(ids), rendered=self.rendered + text)

    @property
    def heads(self) -> tuple[Head, ...]:
        return tuple(Head(turn.role, turn.name) for turn in self.turns)

    @property
    def messages(self) -> list[Message]:
        return [turn.message for turn in self.turns]

    @property
    def text(self) -> str:
        """As the model sees it, control text of the template included; the last turn's closing may still be missing.
        Turns that no template has touched stand there as `role: text`."""
        if self.turns and not self.gaps:
            return self.shown
        return self.rendered + "".join(
            f"\n{op.role}: " if isinstance(op, Open) else op.text for op in self.pending if not isinstance(op, Close)
        )

    @property
    def shown(self) -> str:
        """Turns as `role: text`, and plain text as it is: the same before a template has touched them and after."""
        return "\n".join(turn.shown for turn in self.turns) if self.turns else self.plain
