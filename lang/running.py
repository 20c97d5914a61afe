"""A run that goes on by itself, and the handle by which it is waited for or stopped.

Knows nothing of what it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from .job import Job
from .loop import inside_a_loop, submit
from .result import Result

R = TypeVar("R")


class Running(Generic[R]):
    """A run that has been started. Wait with `result()`, or `await` it; both raise what the program's function raises,
    and CancelledError after `cancel()`. A handle that is dropped changes nothing: the run goes on."""

    def __init__(self, job: Job[R]) -> None:
        self._run = job.run
        self._done: Future[Result[R]] = submit(job.execute())

    @property
    def run_id(self) -> str:
        return self._run.id

    def done(self) -> bool:
        """Whether it is over, in whatever way."""
        return self._done.done()

    def cancel(self) -> bool:
        """Stop it: its calls end, and what still waits for a value is raised at. From any thread, any number of times.
        Whether there was anything to stop."""
        if self._done.done():
            return False
        stopped = self._done.cancel()  # first, so that it is over as cancelled and not with what that leads to
        self._run.cancel()
        return stopped

    def result(self, timeout: float | None = None) -> Result[R]:
        """What it has come to; waits, for at most so many seconds (TimeoutError). Inside an event loop: await it."""
        if inside_a_loop() and not self._done.done():
            raise RuntimeError(
                f"the run of {self._run.program} is not over, and waiting would block the loop: await it"
            )
        return self._done.result(timeout)

    def __await__(self) -> Generator[Any, None, Result[R]]:
        # Shielded: a reader that gives up does not stop the run for the others.
        return asyncio.shield(asyncio.wrap_future(self._done)).__await__()

    def __repr__(self) -> str:
        state = "cancelled" if self._done.cancelled() else "over" if self._done.done() else "under way"
        return f"<run {self.run_id} of {self._run.program}: {state}>"
