"""What the API process (or a program on the same machine) sees of the engine.

Knows nothing of HTTP or of sockets. `runtime.client.EngineClient` implements it over ZeroMQ; `tests/fakes.py` has one
that needs no model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from ..types import EngineState, ModelInfo, Output, Relaxed, Request, Stats
from .cache_view import Reuse, Tree
from .trace import Trace


class Stream(Protocol):
    """The outputs of one accepted request.

    Iteration ends after every choice has finished; it raises `EngineDied` if the engine goes away first.
    """

    @property
    def relaxed(self) -> tuple[Relaxed, ...]:
        """What of the request's schema the output is not held to."""

    def __aiter__(self) -> AsyncIterator[list[Output]]:
        """Yields the outputs of one step for this request (at least one, at most one a choice)."""

    async def cancel(self) -> None:
        """Stop it; frees everything by the engine's next step. Does nothing once the stream has ended."""


class EngineApi(Protocol):
    """One engine, from outside."""

    on_trace: Callable[[Trace], None] | None
    """Called with the record of each request that has ended, cancelled ones included, before its last outputs."""

    @property
    def state(self) -> EngineState: ...

    @property
    def info(self) -> ModelInfo:
        """Raises `Unavailable` before the first `ready`."""

    async def submit(self, request: Request) -> Stream:
        """Returns once the engine has accepted.

        Raises `RequestRejected`, `Overloaded`, `Unavailable` or `EngineDied`.
        """

    async def end_run(self, tenant: str, run: str) -> None:
        """No request of this run will come any more: what is kept for it may go. Unknown runs are ignored."""

    async def stats(self) -> Stats: ...

    async def tree(self, tenant: str | None = None) -> Tree:
        """The prefix tree; with `tenant`, what is this one's."""

    async def reuse(self) -> Reuse:
        """What the hit rate would be with other sizes of the cache."""
