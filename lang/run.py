"""One execution of a program: its backend, its identity, the calls under way, and what they cost.

Knows nothing of the program's code. Calls run as tasks on the language's loop; everything else may be used from any
thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
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
from .loop import language_loop, see_off
from .outlook import Outlook
from .values import Meta, Promised

Listener = Callable[[str, str, "str | ProgramError"], None]
"""Hears (branch, variable, piece of its text or why it failed), on the language's loop."""


BEYOND = 64
"""Steps that may be written after the budget is spent."""


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
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancelled = self._ended = False
        self._lock = threading.Lock()

    @property
    def carries_tokens(self) -> bool:
        return "tokens" in self.backend.capabilities

    @property
    def tokens(self) -> TokenBackend:
        """The backend, which carries tokens."""
        return cast(TokenBackend, self.backend)

    def ask(self, branch: str) -> tuple[Asked, Ahead]:
        """A request for the step under way in this branch is about to be sent: its entry in the journal, and what is
        known of the run beyond it."""
        step, asked = self.journal.ask(branch)
        return asked, self._outlook.ahead(step)

    def origin(self, branch: str, step: str) -> Origin:
        return Origin(program=self.program, run=self.id, step=step, branch=branch)

    def require(self, capability: str) -> None:
        """Raises `Unsupported` if the backend lacks it."""
        if capability not in self.backend.capabilities:
            self.refuse(capability)

    def refuse(self, capability: str) -> NoReturn:
        """Raises `Unsupported`."""
        raise Unsupported(
            f"{type(self.backend).__name__} cannot do {capability!r}: {CAPABILITIES[capability]}", capability
        )

    def check_budget(self, branch: str, step: str) -> None:
        """Before a step is written. A program that only writes would go on for ever after its budget is spent: its
        steps then fail where they are read, but one that has written many more is stopped where it writes."""
        if self.ledger.over is not None:
            self._beyond += 1
            if self._beyond > BEYOND:
                raise self.error(branch, step, self.ledger.over)

    def error(self, branch: str, step: str, cause: BaseException, prompt: str = "") -> ProgramError:
        """`cause` as the failure of one step, whose prompt ended so. What stopped a step that was not reached is the
        step that failed first, however many stand between the two. What was cancelled because the budget is spent, or
        was not reached, is a `BudgetExceeded` too."""
        if isinstance(cause, ProgramError) and isinstance(cause.__cause__, ProgramError):
            cause = cause.__cause__
        over = self.ledger.over
        if isinstance(cause, asyncio.CancelledError):
            why = " was cancelled" if over is None else f" was cancelled: {over}"
        elif isinstance(cause, ProgramError):
            first = str(cause).removeprefix(f"{self.program}: ")
            why = f" was not reached, because an earlier one failed: {first}"
        else:
            why = f": {str(cause) or type(cause).__name__}"
        place = f" in branch {branch}" if branch else ""
        message = f"{self.program}: step {step!r}{place}{why}"
        if over is not None and isinstance(cause, asyncio.CancelledError | Spent | BudgetExceeded):
            error: ProgramError = BudgetExceeded(
                message, program=self.program, step=step, limit=over.limit, prompt=prompt
            )
        else:
            error = ProgramError(message, program=self.program, step=step, prompt=prompt)
        error.__cause__ = cause
        return error

    def unseen_error(self) -> BaseException | None:
        """The first failure of a call whose value nobody has asked for."""
        return next((call.error() for call in self.broken if not call.seen), None)

    def start(self, work: Coroutine[Any, Any, None], never_ran: Callable[[], None]) -> None:
        """Run `work` as a task. `never_ran` is called if it is cancelled before its first line."""

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(work)
            self._tasks.add(task)
            task.add_done_callback(ended)
            if self._cancelled:
                task.cancel()

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            never_ran()
            if not task.cancelled() and (fault := task.exception()) is not None:
                raise fault  # ours: a step settles all that can go wrong in a call

        language_loop().call_soon_threadsafe(begin)

    async def drain(self) -> None:
        """Wait until no call is under way. Awaited on the language's loop."""
        await asyncio.sleep(0)  # calls are posted to the loop in order: those started before now are tasks after this
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def cancel(self) -> None:
        """Stop every call; values that are still to come will raise. From any thread, any number of times."""

        def stop() -> None:
            for task in tuple(self._tasks):
                task.cancel()

        with self._lock:
            if self._cancelled:
                return
            self._cancelled = True
        language_loop().call_soon_threadsafe(stop)

    def close(self) -> None:
        """The program has ended, one way or another. The backend is told once the last call is over, and what the run
        has shown is learnt; nobody waits for it. From any thread, any number of times."""

        def end() -> None:
            if self._ended:
                return
            self._ended = True
            if not self._cancelled and not self.broken:  # so no call is under way
                self._outlook.ended(self.journal)
            if self.carries_tokens and self.journal.steps:
                see_off(self._tell_end())

        self.closed = True
        language_loop().call_soon_threadsafe(end)

    async def _tell_end(self) -> None:
        await self.drain()
        with suppress(BosquetError):  # a backend that cannot be told forgets the run in time
            await self.tokens.end(self.id)

    def hear(self, branch: str, name: str, event: str | ProgramError) -> None:
        if self.listener is not None:
            self.listener(branch, name, event)
