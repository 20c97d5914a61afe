"""One execution of a program: its backend, its identity, the calls under way, and what they cost.

Knows nothing of the program's code. Calls run as tasks on the language's loop; everything else may be used from any
thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

from ..errors import ProgramError, Unsupported
from ..types import Origin
from .backend import CAPABILITIES, Backend, TokenBackend, checked_backend
from .expressions import Sampling
from .loop import language_loop
from .template import Layout, layout_of
from .values import Meta, Promised

Listener = Callable[[str, str, "str | ProgramError"], None]
"""Hears (branch, variable, piece of its text or why it failed), on the language's loop."""


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

    def __init__(self, program: str, backend: Backend, defaults: Sampling) -> None:
        self.program = program
        self.id = uuid4().hex[:12]
        self.backend = checked_backend(program, backend)
        self.defaults = defaults
        self.usage = Usage()
        self.listener: Listener | None = None
        self.closed = False
        self.broken: list[Promised] = []  # calls that failed
        self.layout: Layout | None = layout_of(self.tokens) if self.carries_tokens else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancelled = False
        self._lock = threading.Lock()

    @property
    def carries_tokens(self) -> bool:
        return "tokens" in self.backend.capabilities

    @property
    def tokens(self) -> TokenBackend:
        """The backend, which carries tokens."""
        return cast(TokenBackend, self.backend)

    def origin(self, branch: str, step: str) -> Origin:
        return Origin(program=self.program, run=self.id, step=step, branch=branch)

    def require(self, capability: str) -> None:
        """Raises `Unsupported` if the backend lacks it."""
        if capability not in self.backend.capabilities:
            raise Unsupported(
                f"{type(self.backend).__name__} cannot do {capability!r}: {CAPABILITIES[capability]}", capability
            )

    def error(self, branch: str, step: str, cause: BaseException) -> ProgramError:
        """`cause` as the failure of one step. What stopped a step that was not reached is the step that failed first,
        however many stand between the two."""
        if isinstance(cause, ProgramError) and isinstance(cause.__cause__, ProgramError):
            cause = cause.__cause__
        if isinstance(cause, asyncio.CancelledError):
            why = " was cancelled"
        elif isinstance(cause, ProgramError):
            first = str(cause).removeprefix(f"{self.program}: ")
            why = f" was not reached, because an earlier one failed: {first}"
        else:
            why = f": {str(cause) or type(cause).__name__}"
        place = f" in branch {branch}" if branch else ""
        error = ProgramError(f"{self.program}: step {step!r}{place}{why}", program=self.program, step=step)
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

    def hear(self, branch: str, name: str, event: str | ProgramError) -> None:
        if self.listener is not None:
            self.listener(branch, name, event)
