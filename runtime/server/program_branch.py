"""One line of a program that is run over HTTP, and the text that is on its way into it.

The rules are those of the language: turns or plain text, adjacent text merges until it is encoded, where generation
meets text is a token boundary. Knows nothing of requests or of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...errors import InvalidParameter
from ...prompts.transcript import Close, Op, Open, Transcript, Write
from .program_schemas import AppendRequest, ProgramTurn

Value: TypeAlias = str | list[Any]
"""Of a variable; after a join, those of the branches, each a Value or None."""


@dataclass(slots=True, eq=False)
class Branch:
    """`role` is that of the open turn; if `borrowed`, it was opened before the fork that made this branch, and a new
    turn ends it. A branch that is `held` is in the middle of a step. `steps` counts those that generated."""

    path: str = ""
    transcript: Transcript = field(default_factory=Transcript)
    role: str | None = None
    borrowed: bool = False
    values: dict[str, Value] = field(default_factory=dict)
    held: bool = False
    steps: int = 0
    children: int = 0  # that were ever forked from it

    def names(self, count: int) -> list[str]:
        """What the next branches forked from this one are called."""
        return [f"{self.path}.{self.children + i}".lstrip(".") for i in range(count)]

    def fork(self, transcript: Transcript) -> Branch:
        """A branch that goes on with `transcript`."""
        child = Branch(self.names(1)[0], transcript, self.role, self.role is not None)
        self.children += 1
        return child

    def is_forked_from(self, other: Branch) -> bool:
        return self.path.rpartition(".")[0] == other.path and self is not other

    def is_below(self, other: Branch) -> bool:
        """Forked from it, or from one that is below it."""
        return self.path.startswith(f"{other.path}." if other.path else "") and self is not other


class Draft:
    """Turns and text for a branch, which stays as it is until all of it is found to be right. `transcript` is the
    branch's with what has been flushed."""

    def __init__(self, branch: Branch) -> None:
        self._branch = branch
        self._role = branch.role
        self._borrowed = branch.borrowed
        said = self.transcript = branch.transcript
        self._chat = True if said.turns else False if said.plain or said.ids else None
        self._ops: list[Op] = []

    def add(self, body: AppendRequest) -> None:
        """What the body says, up to its token ids. Raises InvalidParameter."""
        if body.text and body.token_ids:
            raise InvalidParameter("token_ids: not together with text", "token_ids")
        for index, message in enumerate(body.messages or ()):
            self._turn(message, f"messages[{index}]")
        if body.open is not None:
            self.open(body.open, "open")
        if body.text or body.token_ids:
            self._place("text" if body.text else "token_ids")
        if body.text:
            self._ops.append(Write(body.text))

    def open(self, role: str, field: str, answers: str = "", name: str = "") -> None:
        """Begin a turn."""
        if self._borrowed:
            self.close(field)
        if self._role is not None:
            raise InvalidParameter(f"{field}: the {self._role} turn is still open", field)
        if self._chat is False:
            raise InvalidParameter(f"{field}: a turn cannot follow plain text", field)
        self._chat, self._role = True, "system" if role == "developer" else role
        self._ops.append(Open(self._role, answers, name))

    def close(self, field: str) -> None:
        """End the open turn."""
        if self._role is None:
            raise InvalidParameter(f"{field}: no turn is open", field)
        self._role, self._borrowed = None, False
        self._ops.append(Close())

    def begin_answer(self) -> bool:
        """Where turns are written and none is open, begin the assistant's; whether this was so."""
        begins = self._chat is True and self._role is None
        if begins:
            self.open("assistant", "branch")
        return begins

    def flush(self) -> Transcript:
        """The transcript with all up to here."""
        self.transcript, self._ops = self.transcript.write(self._ops), []
        return self.transcript

    def put(self) -> None:
        """Make it what the branch has said."""
        self._branch.transcript, self._branch.role, self._branch.borrowed = self.flush(), self._role, self._borrowed

    def _turn(self, message: ProgramTurn, field: str) -> None:
        name = message.name or (self._tool(message.tool_call_id) if message.tool_call_id is not None else "")
        self.open(message.role, field, message.tool_call_id or "", name)
        if message.content:
            self._ops.append(Write(message.content))
        self.close(field)

    def _tool(self, call_id: str) -> str:
        """The name of the tool that was called."""
        calls = (call for turn in reversed(self._branch.transcript.turns) for call in turn.calls)
        return next((call.name for call in calls if call.id == call_id), "")

    def _place(self, field: str) -> None:
        if self._chat and self._role is None:
            raise InvalidParameter(f"{field}: no turn is open for it; `open` begins one", field)
        self._chat = bool(self._chat)
