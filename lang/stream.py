"""The text of a running program, piece by piece: for a sync caller and for an async one.

Knows nothing of calls; hears of them through the run's listener.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from typing import Generic, TypeVar

from ..errors import ProgramError
from .job import Job
from .loop import submit
from .result import Result

R = TypeVar("R")


class _Filter:
    """Lets through what belongs to the wanted variable (None: to any) of the main branch."""

    def __init__(self, var: str | None) -> None:
        self.var = var
        self.heard = False

    def passes(self, branch: str, name: str) -> bool:
        wanted = branch == "" and self.var in (None, name)
        self.heard = self.heard or wanted
        return wanted

    def check(self, program: str) -> None:
        """Once the program is over: the variable must have been there."""
        if self.var is not None and not self.heard:
            raise KeyError(f"{program} generated no {self.var!r} on its main branch")


class Stream(Iterator[str], Generic[R]):
    """Pieces of text as they are generated, until the program has ended; then `result` is there.

    Raises `ProgramError` where a streamed call failed, and what the program's function raised. Closing the stream, or
    dropping it, cancels the calls that are under way.
    """

    def __init__(self, job: Job[R], var: str | None) -> None:
        self._job = job
        self._closed = False
        self._filter = _Filter(var)
        self._pieces: queue.SimpleQueue[str | ProgramError | None] = queue.SimpleQueue()
        job.run.listener = _listener(self._filter, self._pieces.put)
        self._done: Future[Result[R]] = submit(job.execute())
        put = self._pieces.put
        self._done.add_done_callback(lambda _: put(None))

    def __next__(self) -> str:
        if self._closed:
            raise StopIteration
        piece = self._pieces.get()
        if self._closed:  # by another thread, meanwhile
            raise StopIteration
        if piece is None:
            self._closed = True
            self._done.result()
            self._filter.check(self._job.run.program)
            raise StopIteration
        if isinstance(piece, ProgramError):
            self.close()
            raise piece
        return piece

    @property
    def result(self) -> Result[R]:
        """Waits until the program has ended. Raises what its function raised."""
        return self._done.result()

    def close(self) -> None:
        """Cancel what is under way. The stream is then at its end."""
        self._closed = True
        if not self._done.done():
            self._done.cancel()  # first, so that it is over as cancelled and not with what that leads to
            self._job.run.cancel()

    def __enter__(self) -> Stream[R]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_done"):
            self.close()


class AsyncStream(AsyncIterator[str], Generic[R]):
    """As `Stream`, for `async for`. The program's function runs on the loop of whoever iterates."""

    def __init__(self, job: Job[R], var: str | None) -> None:
        self._job = job
        self._closed = False
        self._filter = _Filter(var)
        self._pieces: asyncio.Queue[str | ProgramError | None] = asyncio.Queue()
        self._task: asyncio.Task[Result[R]] | None = None

    def _begin(self) -> asyncio.Task[Result[R]]:
        here = asyncio.get_running_loop()
        put = self._pieces.put_nowait

        def hand_over(piece: str | ProgramError) -> None:
            if not here.is_closed():
                here.call_soon_threadsafe(put, piece)

        self._job.run.listener = _listener(self._filter, hand_over)
        task = here.create_task(self._job.execute())
        # In the same queue as the pieces, and after them: all were handed over before the run was seen to end.
        task.add_done_callback(lambda _: put(None))
        return task

    async def __anext__(self) -> str:
        if self._closed:
            raise StopAsyncIteration
        task = self._task = self._task or self._begin()
        try:
            piece = await self._pieces.get()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if self._closed:  # by another task, meanwhile
            raise StopAsyncIteration
        if piece is None:
            self._closed = True
            task.result()
            self._filter.check(self._job.run.program)
            raise StopAsyncIteration
        if isinstance(piece, ProgramError):
            await self.aclose()
            raise piece
        return piece

    async def result(self) -> Result[R]:
        """Awaits the program's end. Raises what its function raised."""
        self._task = self._task or self._begin()
        return await asyncio.shield(self._task)

    async def aclose(self) -> None:
        """Cancel what is under way. The stream is then at its end."""
        self._closed = True
        self._job.run.cancel()
        if self._task is not None and not self._task.done():
            self._task.cancel()

    async def __aenter__(self) -> AsyncStream[R]:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        task = getattr(self, "_task", None)
        if task is not None and not task.done():
            self._job.run.cancel()
            if not task.get_loop().is_closed():
                task.get_loop().call_soon_threadsafe(task.cancel)


def _listener(
    wanted: _Filter, hand_over: Callable[[str | ProgramError], None]
) -> Callable[[str, str, str | ProgramError], None]:
    # Holds no stream, so that a stream that nobody has any more can go, and cancel its run.
    def hear(branch: str, name: str, event: str | ProgramError) -> None:
        if wanted.passes(branch, name):
            hand_over(event)

    return hear
