"""Values that a program's variables hold, some of them still to come.

Knows nothing of who produces them. A value is read by blocking (sync programs) or awaited (async ones).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from msgspec import Struct

from ..errors import ProgramError
from ..types import FinishReason, Relaxed, TokenLogprob


class Meta(Struct, frozen=True, kw_only=True):
    """What is known of one call.

    `ids` are empty on a message backend, `scores` (one a choice, higher is better) are there after `select` only, and
    counts that the backend does not tell are 0. `relaxed` are the keywords of the schema that the output was not held
    to, and why, as far as the backend tells. `reasoning` is what was thought before the answer, where that was asked
    for. `failures` are why earlier attempts came to nothing. `seconds` is from sending the call to its last token.
    """

    text: str
    ids: tuple[int, ...] = ()
    finish: FinishReason = "stop"
    stop: str | int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] | None = None
    scores: dict[str, float] | None = None
    relaxed: tuple[Relaxed, ...] = ()
    reasoning: str = ""
    failures: tuple[Exception, ...] = ()
    seconds: float = 0.0

    @property
    def attempts(self) -> int:
        """How many it took."""
        return len(self.failures) + 1


class Variable(Protocol):
    """A value, now or later."""

    def ready(self) -> bool:
        """Whether reading would return, or raise, at once."""

    def read(self) -> Any:
        """The value; blocks until it is there. Raises the `ProgramError` of the call that failed."""

    async def wait(self) -> Any:
        """The same, awaited; works on any event loop."""

    def meta(self) -> Any:
        """The call's `Meta`; blocks likewise."""


class Given:
    """A value that the program itself set, or that was saved, with what is known of its call."""

    def __init__(self, value: Any, meta: Any = None) -> None:
        self._value = value
        self._meta = meta

    def ready(self) -> bool:
        return True

    def read(self) -> Any:
        return self._value

    async def wait(self) -> Any:
        return self._value

    def meta(self) -> Any:
        return self._meta


class Promised:
    """The value of one call. Settled once, by the call; whoever comes second changes nothing."""

    def __init__(self) -> None:
        self._value: Future[Any] = Future()
        self._meta: Any = None  # there before the value is
        self.seen = False  # whether somebody has asked for the value
        # A future that runs cannot be cancelled: a reader that gives up leaves the value to the others.
        self._value.set_running_or_notify_cancel()

    def keep(self, value: Any, meta: Any) -> None:
        if not self._value.done():
            self._meta = meta
            self._value.set_result(value)

    def fail(self, error: ProgramError, meta: Any = None) -> None:
        """`meta` is there when the call went well and only its text is not what was wanted."""
        if not self._value.done():
            self._meta = meta
            self._value.set_exception(error)

    def ready(self) -> bool:
        return self._value.done()

    def read(self) -> Any:
        self.seen = True
        return self._value.result()

    async def wait(self) -> Any:
        self.seen = True
        return await asyncio.wrap_future(self._value)

    def meta(self) -> Any:
        failed = self._value.exception()
        if failed is not None and self._meta is None:
            raise failed
        return self._meta

    def error(self) -> BaseException | None:
        """Why there is no value, once ready."""
        return self._value.exception() if self._value.done() else None


class Gathered:
    """One variable's values in all branches of a fork, in their order; None where a branch has no such variable."""

    def __init__(self, branches: Sequence[Variable | None]) -> None:
        self._branches = branches

    def ready(self) -> bool:
        return all(variable is None or variable.ready() for variable in self._branches)

    def read(self) -> list[Any]:
        return [None if variable is None else variable.read() for variable in self._branches]

    async def wait(self) -> list[Any]:
        return [None if variable is None else await variable.wait() for variable in self._branches]

    def meta(self) -> list[Any]:
        return [None if variable is None else variable.meta() for variable in self._branches]
