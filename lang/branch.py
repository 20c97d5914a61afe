"""One line of a program's run: what was written, the calls in their order, the variables.

Knows nothing of the face that the user's code sees (`state`). Writing returns at once. A call starts as soon as the one
before it in its branch has ended, so branches run side by side without a thread of their own.
"""

from __future__ import annotations

import asyncio
import reprlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import InvalidParameter, ProgramError
from ..prompts.tokens import encode_for_fork
from ..prompts.transcript import Close, Op, Open, Transcript, Write
from ..types import Origin
from .acting import Act, act, require_acting
from .arguments import half_character
from .budget import Spent
from .calls import Answer, Span, ask, require
from .expressions import Gen, Image, Piece, Select
from .loop import language_loop
from .run import Run
from .values import Gathered, Given, Promised, Variable

Point = asyncio.Future[Transcript | ProgramError]
"""A transcript to come, or why it will not. Touched on the language's loop only, once it is shared."""


_SHOWN = 200
"""Characters at the end of a prompt that an error carries."""


class Branch:
    """A branch is written by one thread at a time. `path` is "" for the main branch, "2" or "0.2" for others."""

    def __init__(
        self,
        run: Run,
        path: str = "",
        start: Point | None = None,
        inherited: Mapping[str, Variable] | None = None,
        role: str | None = None,
    ) -> None:
        self.run = run
        self.path = path
        self.own: dict[str, Variable] = {}
        self.spans: list[Span] = []  # what was generated here, as far as its ids are still those of the branch
        self.role = role  # of the open turn
        self._inherited = dict(inherited or {})
        self._tail = start if start is not None else _at(Transcript())
        self._pending: list[Op] = []
        self._borrowed_turn = role is not None  # opened before the fork that made this branch
        self._chat: bool | None = None  # None: nothing written yet
        self._calls = 0
        self._children = 0
        self._joined = False
        self._turn_text = False

    @classmethod
    def after(
        cls, run: Run, transcript: Transcript, variables: Mapping[str, Variable], spans: Sequence[Span]
    ) -> Branch:
        """A main branch that goes on from what another run has left."""
        role = transcript.turns[-1].role if transcript.open else None
        branch = cls(run, start=_at(transcript), role=role)
        branch.own, branch.spans = dict(variables), list(spans)
        branch._chat = True if transcript.turns else False if transcript.plain else None
        branch._turn_text = bool(transcript.open and transcript.turns[-1].text)
        return branch

    def begin(self, transcript: Transcript) -> None:
        """Take another transcript to go on from. Nothing has been written yet."""
        self._tail = _at(transcript)

    # -- writing ------------------------------------------------------------------------------------------------------

    def open(self, role: str) -> None:
        """Begin a turn."""
        self._check_writable()
        if self._borrowed_turn:
            self.close()
        if self.role is not None:
            raise self._misused(f"the {self.role} turn is still open: a turn cannot stand inside another")
        if self._chat is False:
            raise self._misused(f"a {role} turn cannot follow plain text: use roles throughout, or not at all")
        self._chat, self.role, self._turn_text = True, role, False
        self._pending.append(Open(role))

    def close(self) -> None:
        """End the open turn."""
        self.role, self._borrowed_turn = None, False
        self._pending.append(Close())

    def write(self, text: str) -> None:
        """Add text. Empty text is nothing."""
        if text:
            self._check_place()
            self._pending.append(Write(text))
            self._turn_text = True

    def check(self, piece: Piece) -> None:
        """Raises `Unsupported` for what the run's backend cannot do."""
        if isinstance(piece, str):
            return
        if isinstance(piece, Image):
            self.run.refuse("images", self.path)
        require(self.run, piece, self.path)

    def call(self, piece: Gen | Select) -> None:
        """Start a call. Raises `Unsupported`; every later failure is raised where the value is read."""
        self._check_place(piece.name)
        self.check(piece)
        if not self.run.carries_tokens and (self._turn_text or self.role != "assistant"):
            self.run.require("continue", self.path, piece.name)
        self._calls += 1
        self._turn_text = True
        self._promise(piece, lambda transcript, origin: ask(self.run, transcript, piece, origin))

    def act(self, piece: Act) -> None:
        """Start turns of the assistant's and of tools. Raises `Unsupported`; later failures as `call`."""
        self._check_writable()
        if self._borrowed_turn:
            self.close()
        if self.role is not None:
            raise self._misused(f"the {self.role} turn is still open: s.act makes turns of its own", piece.name)
        if not self._chat:
            raise self._misused("s.act answers a turn: write s.user(...) before it", piece.name)
        require_acting(self.run, piece, self.path)
        self._calls += 1
        self._promise(piece, lambda transcript, origin: act(self.run, transcript, piece, origin))

    def _promise(self, piece: Gen | Select | Act, ask: Callable[[Transcript, Origin], Awaitable[Answer]]) -> None:
        """Put a step at the end of the branch whose value is the variable that the piece names."""
        name = piece.name
        step = name or f"#{self._calls}"
        self.run.check_budget(self.path, step)
        written = self.run.journal.written(self.path, self._calls, step)
        promise = Promised()
        if name:
            self.own[name] = promise
        origin, programs = self.run.origin(self.path, step), self.run.programs

        async def work(transcript: Transcript) -> Transcript:
            self.run.journal.begin(written)
            answer = await ask(transcript, origin)
            if answer.anew:
                self.spans.clear()
            self.spans += answer.spans
            if answer.wrong is None:
                promise.keep(answer.value, answer.meta)
            else:
                fail(self.run.error(self.path, step, answer.wrong, _end_of(transcript), programs), answer.meta)
            return answer.transcript

        def fail(error: ProgramError, meta: Any = None) -> None:
            self.run.broken.append(promise)
            promise.fail(error, meta)
            self.run.hear(self.path, step, error)

        self._advance(step, work, fail)

    # -- forks --------------------------------------------------------------------------------------------------------

    def fork(self, count: int) -> list[Branch]:
        """Branches that go on from here, with the same ids up to here. Returns at once."""
        self._check_writable()
        if count < 1:
            raise ValueError(f"s.fork: count must be at least one branch, not {count}")
        if self._pending:
            self._advance("fork", self._settle, lambda error: None)
        first, self._children = self._children, self._children + count
        known = {**self._inherited, **self.own}
        children = [self._child(str(first + i), known) for i in range(count)]
        self.run.journal.forked(self.path, self._calls, [child.path for child in children])
        return children

    def _child(self, name: str, known: Mapping[str, Variable]) -> Branch:
        path = f"{self.path}.{name}" if self.path else name
        child = Branch(self.run, path, self._tail, known, self.role)
        child._chat, child._turn_text = self._chat, self._turn_text
        return child

    def join(self, branches: Sequence[Branch]) -> None:
        """Take over the branches' own variables, as lists. The branches are over."""
        for branch in branches:
            if branch.run is not self.run or branch.path.rpartition(".")[0] != self.path or branch is self:
                raise ValueError(
                    f"{self.run.place(self.path)}: only branches forked from this state can be joined to it"
                )
            if branch._joined:
                raise self._misused(f"branch {branch.path} has been joined already")
        for branch in branches:
            branch._joined = True
        names = dict.fromkeys(name for branch in branches for name in branch.own)
        for name in names:
            self.own[name] = Gathered([branch.own.get(name) for branch in branches])

    # -- variables ----------------------------------------------------------------------------------------------------

    def variable(self, name: str) -> Variable:
        """Raises KeyError, saying which there are."""
        found = self.own.get(name) or self._inherited.get(name)
        if found is None:
            known = ", ".join(repr(other) for other in self.names()) or "none yet"
            raise KeyError(f"{self.run.program} has no variable {name!r} here (there is: {known})")
        return found

    def names(self) -> Iterator[str]:
        """Names of all variables that can be read here."""
        yield from {**self._inherited, **self.own}

    def set(self, name: str, value: Any) -> None:
        """Set a variable to a value that is there."""
        self._check_writable()
        self.own[name] = Given(value)

    async def transcript(self) -> Transcript:
        """All that was written up to now, once its calls are done. Raises the ProgramError of the first that failed.
        Awaited on the language's loop."""
        ops = tuple(self._pending)
        return _written(await asyncio.shield(self._tail), ops)

    def said(self) -> Transcript:
        """The same at once, where the run is idle. From any thread."""
        return _written(self._tail.result(), self._pending)

    # -- order --------------------------------------------------------------------------------------------------------

    async def _settle(self, transcript: Transcript) -> Transcript:
        if self.run.layout is None:
            return transcript
        return await encode_for_fork(transcript, self.run.tokens, self.run.layout)

    def _advance(
        self, step: str, work: Callable[[Transcript], Awaitable[Transcript]], fail: Callable[[ProgramError], None]
    ) -> None:
        """Put `work` at the end of the branch: it gets the transcript once everything before has ended."""
        before, after = self._tail, language_loop().create_future()
        ops, self._pending = tuple(self._pending), []
        self._tail, programs = after, self.run.programs

        def give_up(cause: BaseException, reached: Transcript | None = None) -> None:
            error = self.run.error(self.path, step, cause, "" if reached is None else _end_of(reached), programs)
            fail(error)
            after.set_result(error)

        async def go() -> None:
            point = before.result()
            if self.run.cancelled:
                give_up(asyncio.CancelledError())
                return
            if isinstance(point, ProgramError):
                give_up(point)
                return
            reached = point.write(ops)
            try:
                _check_text(ops)
                after.set_result(await self.run.ledger.in_time(work(reached)))
            except asyncio.CancelledError as cancelled:
                give_up(cancelled, reached)
                raise
            except Exception as error:  # whatever a backend raises is raised again where the value is read
                give_up(error, reached)
                if isinstance(error, Spent):
                    self.run.cancel()

        self.run.start(before, go)

    def _check_writable(self) -> None:
        if self._joined:
            raise self._misused(f"branch {self.path} has been joined; write to the state it was forked from")
        if self.run.closed:
            raise RuntimeError(f"the run of {self.run.program} is over; its state can only be read")

    def _misused(self, what: str, step: str | None = None) -> RuntimeError:
        """The error to raise for what cannot be written here."""
        return RuntimeError(f"{self.run.place(self.path, step)}: {what}")

    def _check_place(self, step: str | None = None) -> None:
        self._check_writable()
        if self.role is None:
            if self._chat:
                raise self._misused(
                    "text outside a turn: put it into s.user(...), s.assistant(...) or s.system(...)", step
                )
            self.run.require("text", self.path, step)
            self._chat = False


def _written(point: Transcript | ProgramError, ops: Sequence[Op]) -> Transcript:
    if isinstance(point, ProgramError):
        raise point
    return point.write(ops)


def _check_text(ops: Sequence[Op]) -> None:
    """Raises `InvalidParameter` for text that no backend could be sent."""
    for op in ops:
        if isinstance(op, Write) and (fault := half_character(op.text)) is not None:
            raise InvalidParameter(f"the text {reprlib.repr(op.text)} {fault}")


def _end_of(transcript: Transcript) -> str:
    text = transcript.shown
    return text if len(text) <= _SHOWN else f"…{text[-_SHOWN:]}"


def _at(transcript: Transcript) -> Point:
    point: Point = language_loop().create_future()
    point.set_result(transcript)
    return point
