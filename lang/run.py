"""One execution of a program: its backend, its identity, the calls under way, and what they cost.

Knows nothing of the program's code. Calls run as tasks on the language's loop; everything else may be used from any
thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn, cast
from uuid import uuid4

from ..errors import BosquetError, BudgetExceeded, ProgramError, Unsupported
from ..prompts.template import Layout, layout_of
from ..types import Ahead, Origin
from .backend import CAPABILITIES, Backend, TokenBackend, checked_backend
from .budget import Budget, Ledger, Spent
from .expressions import Sampling
from .journal import Asked, Journal
from .loop import post, see_off
from .outlook import Outlook
from .raised import text_of
from .values import Meta, Promised

Listener = Callable[[str, str, "str | ProgramError"], None]
"""Hears (branch, variable, piece of its text or why it failed), on the language's loop."""


BEYOND = 64
"""Steps that may be written after the budget is spent."""

_within: ContextVar[tuple[str, ...]] = ContextVar("bosquet_within", default=("",))
"""The run whose sub-program this code belongs to, and the names of such programs, outermost first."""


@dataclass(slots=True)
class Usage:
    """What a run has cost so far. Tokens of `select` are counted as prompt tokens where the backend tells them."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def add(self, meta: Meta) -> None:
        self.calls += 1
        self.prompt_tokens += meta.prompt_tokens
        self.cached_tokens += meta.cached_tokens
        self.completion_tokens += meta.completion_tokens


class Run:
    """A run in progress, or over."""

    def __init__(
        self,
        program: str,
        backend: Backend,
        defaults: Sampling,
        outlook: Outlook | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.program = program
        self.id = uuid4().hex[:12]
        self.backend = checked_backend(program, backend)
        self.carries_tokens = "tokens" in backend.capabilities
        self.tokens = cast(TokenBackend, backend)  # if it carries them
        self.defaults = defaults
        self.usage = Usage()
        self.ledger = Ledger(budget)
        self._beyond = 0  # steps written since the budget was spent
        self.listener: Listener | None = None
        self.closed = False
        self.journal = Journal()
        self._outlook = outlook or Outlook()
        self.broken: list[Promised] = []  # calls that failed
        self.layout: Layout | None = layout_of(self.tokens) if self.carries_tokens else None
        self._coming = 0  # calls that have been started and are not over
        self._idle = asyncio.Event()  # there is none
        self._tasks: set[asyncio.Task[None]] = set()  # those of them whose turn has come
        self.cancelled = self._ended = False
        self._lock = threading.Lock()

    def ask(self, branch: str) -> tuple[Asked, Ahead]:
        """A request for the step under way in this branch is about to be sent: its entry in the journal, and what is
        known of the run beyond it."""
        step, asked = self.journal.ask(branch)
        return asked, self._outlook.ahead(step)

    def origin(self, branch: str, step: str) -> Origin:
        return Origin(program=self.program, run=self.id, step=step, branch=branch)

    def require(self, capability: str, branch: str, step: str | None = None) -> None:
        """Raises `Unsupported` if the backend lacks what is asked for there."""
        if capability not in self.backend.capabilities:
            self.refuse(capability, branch, step)

    def refuse(self, capability: str, branch: str, step: str | None = None) -> NoReturn:
        """Raises `Unsupported`."""
        lacks = f"{type(self.backend).__name__} cannot do {capability!r}: {CAPABILITIES[capability]}"
        raise Unsupported(f"{self.place(branch, step)}: {lacks}", capability)

    @property
    def programs(self) -> tuple[str, ...]:
        """The run's program and those within it to which the code that asks belongs, outermost first."""
        run, *inner = _within.get()
        return (self.program, *inner) if run == self.id else (self.program,)

    @contextmanager
    def entered(self, program: str) -> Iterator[None]:
        """What is written inside belongs to this program, which stands in the one that goes on here."""
        token = _within.set((self.id, *self.programs[1:], program))
        try:
            yield
        finally:
            _within.reset(token)

    def place(self, branch: str, step: str | None = None, programs: tuple[str, ...] = ()) -> str:
        """A place in the program, as messages begin with it. `programs` as they were when the step was written."""
        at = f"step {step!r}" if step else ""
        at += f"{' in ' if step else ''}branch {branch}" if branch else ""
        path = " > ".join(programs or self.programs)
        return f"{path}: {at}" if at else path

    def check_budget(self, branch: str, step: str) -> None:
        """Before a step is written. A program that only writes would go on for ever after its budget is spent: its
        steps then fail where they are read, but one that has written many more is stopped where it writes."""
        if self.ledger.over is not None:
            self._beyond += 1
            if self._beyond > BEYOND:
                raise self.error(branch, step, self.ledger.over)

    def error(
        self, branch: str, step: str, cause: BaseException, prompt: str = "", programs: tuple[str, ...] = ()
    ) -> ProgramError:
        """`cause` as the failure of one step, whose prompt ended so; `programs` are those it was written in (now, if
        they are not said). What stopped a step that was not reached is the step that failed first, however many stand
        between the two. What was cancelled because the budget is spent, or was not reached, is a `BudgetExceeded`
        too."""
        programs = programs or self.programs
        if isinstance(cause, ProgramError) and isinstance(cause.__cause__, ProgramError):
            cause = cause.__cause__
        over = self.ledger.over
        if isinstance(cause, asyncio.CancelledError):
            why = " was cancelled" if over is None else f" was cancelled: {over}"
        elif isinstance(cause, ProgramError):
            first = str(cause).removeprefix(f"{' > '.join(programs)}: ")
            why = f" was not reached, because an earlier one failed: {first}"
        else:
            why = f": {text_of(cause) or type(cause).__name__}"
        message = f"{self.place(branch, step, programs)}{why}"
        if over is not None and isinstance(cause, asyncio.CancelledError | Spent | BudgetExceeded):
            error: ProgramError = BudgetExceeded(
                message, program=self.program, step=step, limit=over.limit, prompt=prompt, programs=programs
            )
        else:
            error = ProgramError(message, program=self.program, step=step, prompt=prompt, programs=programs)
        error.__cause__ = cause
        return error

    def unseen_error(self) -> BaseException | None:
        """The first failure of a call whose value nobody has asked for."""
        return next((call.error() for call in self.broken if not call.seen), None)

    def start(self, before: asyncio.Future[Any], work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do `work` in a task, once `before` is there; also if the run has been cancelled by then."""

        def wait() -> None:
            if before.done():
                begin(before)
            else:
                before.add_done_callback(begin)

        def begin(before: asyncio.Future[Any]) -> None:
            before.get_loop().create_task(self._do(work))

        with self._lock:
            self._coming += 1
            self._idle.clear()
        post(wait)

    async def _do(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await work()
        finally:
            self._tasks.discard(task)
            with self._lock:
                self._coming -= 1
                if not self._coming:
                    self._idle.set()

    @property
    def idle(self) -> bool:
        """No call is under way or to come. From any thread."""
        return not self._coming

    async def drain(self) -> None:
        """Wait until the run is idle. Awaited on the language's loop."""
        while self._coming:
            await self._idle.wait()

    def cancel(self) -> None:
        """Stop every call; values that are still to come will raise. From any thread, any number of times."""

        def stop() -> None:
            for task in tuple(self._tasks):
                task.cancel()

        with self._lock:
            if self.cancelled:
                return
            self.cancelled = True
        post(stop)

    def close(self) -> None:
        """The program has ended, one way or another. The backend is told once the last call is over, and what the run
        has shown is learnt; nobody waits for it. From any thread, any number of times."""

        def end() -> None:
            if self._ended:
                return
            self._ended = True
            if not self.cancelled and not self.broken:  # so no call is under way
                self._outlook.ended(self.journal)
            if self.carries_tokens and self.journal.steps:
                see_off(self._tell_end())

        self.closed = True
        post(end)

    async def _tell_end(self) -> None:
        await self.drain()
        with suppress(BosquetError):  # a backend that cannot be told forgets the run in time
            await self.tokens.end(self.id)

    def hear(self, branch: str, name: str, event: str | ProgramError) -> None:
        if self.listener is not None:
            self.listener(branch, name, event)
