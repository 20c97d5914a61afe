"""What a branch of a program has said so far: an immutable value, so that a fork is a copy of one reference.

Knows nothing of backends. Text is written first and encoded later (`tokens.encode`), when a call or a fork needs the
ids; text that stands side by side is then encoded as one. Ids that are here never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..types import Message, Segment

Gap = tuple[Segment, ...]
"""Template text between two turns' contents."""


class Open(NamedTuple):
    """A turn begins."""

    role: str


class Write(NamedTuple):
    """Text, in the turn that is open or in none."""

    text: str


class Close(NamedTuple):
    """The open turn ends."""


Op = Open | Write | Close


class Turn(NamedTuple):
    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """Either plain text or turns.

    `pending` has been written but not encoded. `gaps[k]` is the template text that was encoded before turn k's content,
    `tail` what was encoded after the content of the last of these turns (empty while it is open).
    """

    turns: tuple[Turn, ...] = ()
    open: bool = False
    plain: str = ""
    ids: tuple[int, ...] = ()
    rendered: str = ""  # the text that `ids` stand for
    gaps: tuple[Gap, ...] = ()
    tail: Gap = ()
    pending: tuple[Op, ...] = ()

    def write(self, ops: Sequence[Op]) -> Transcript:
        """With more text and turns, not encoded."""
        turns, is_open, plain = list(self.turns), self.open, self.plain
        for op in ops:
            if isinstance(op, Open):
                turns.append(Turn(op.role, ""))
                is_open = True
            elif isinstance(op, Close):
                is_open = False
            elif is_open:
                turns[-1] = Turn(turns[-1].role, turns[-1].text + op.text)
            else:
                plain += op.text
        return replace(self, turns=tuple(turns), open=is_open, plain=plain, pending=(*self.pending, *ops))

    def encoded(self, ids: Sequence[int], text: str, gaps: tuple[Gap, ...] = (), tail: Gap = ()) -> Transcript:
        """With everything pending now encoded as `ids`, which stand for `text`."""
        return replace(self, ids=(*self.ids, *ids), rendered=self.rendered + text, gaps=gaps, tail=tail, pending=())

    def generated(self, text: str, ids: Sequence[int] = ()) -> Transcript:
        """With a model's answer at the end. Nothing may be pending."""
        turns, plain = self.turns, self.plain
        if self.open:
            turns = (*turns[:-1], Turn(turns[-1].role, turns[-1].text + text))
        else:
            plain += text
        return replace(self, turns=turns, plain=plain, ids=(*self.ids, *ids), rendered=self.rendered + text)

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(turn.role for turn in self.turns)

    @property
    def messages(self) -> list[Message]:
        return [Message(role=turn.role, content=turn.text) for turn in self.turns]

    @property
    def text(self) -> str:
        """As the model sees it, control text of the template included; the last turn's closing may still be missing.
        A transcript that no template has touched shows its turns as `role: text`."""
        if self.turns and not self.gaps:
            return "\n".join(f"{turn.role}: {turn.text}" for turn in self.turns)
        return self.rendered + "".join(op.text for op in self.pending if isinstance(op, Write))
