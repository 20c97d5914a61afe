"""One program function, one backend, one set of arguments: everything that is needed to carry it out.

Knows nothing of who waits for it.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar

from ..errors import ProgramError
from ..prompts.transcript import Transcript
from .branch import Branch
from .defaults import use
from .loop import function_threads, hop, submit
from .result import Result
from .resuming import Start
from .run import Run
from .state import State

R = TypeVar("R")


class Job(Generic[R]):
    """Carried out once, by one of the two `execute`s."""

    def __init__(
        self,
        run: Run,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        start: Start | None = None,
    ) -> None:
        self.run = run
        self.branch = (
            Branch(run) if start is None else Branch.after(run, start.transcript, start.variables, start.spans)
        )
        self._start = start
        self._function = function
        self._args = args
        self._kwargs = kwargs

    def execute_here(self) -> Result[R]:
        """Run a sync function in the calling thread. Raises what it raises, with all calls cancelled."""
        try:
            if self._start is not None:
                submit(self._check(self._start)).result()
            value = self._call()
            if not self.run.idle:
                submit(self.run.drain()).result()
            said = self._said()
        except BaseException:
            self.run.cancel()
            raise
        finally:
            self.run.close()
        return Result(self.branch, said, value, None)

    async def execute(self, threads: Executor | None = None) -> Result[R]:
        """Run the function from any event loop: an async one right there, a sync one in a thread. Raises as above."""
        try:
            if self._start is not None:
                await hop(self._check(self._start))
            if inspect.iscoroutinefunction(self._function):
                with use(self.run.backend):
                    value = await self._function(State(self.branch), *self._args, **self._kwargs)
            else:
                context = contextvars.copy_context()
                here = asyncio.get_running_loop()
                value = await here.run_in_executor(threads or function_threads(), context.run, self._call)
            if not self.run.idle:
                await hop(self.run.drain())
            said = self._said()
        except BaseException:
            self.run.cancel()
            raise
        finally:
            self.run.close()
        return Result(self.branch, said, value, None)

    async def attempt(self, threads: Executor | None = None) -> Result[R]:
        """As `execute`, but what the function raises becomes the result's error."""
        try:
            return await self.execute(threads)
        except Exception as error:  # reported as this job's result; the others go on
            await hop(self.run.drain())
            return Result(self.branch, self._said(), None, error)

    def _call(self) -> Any:
        with use(self.run.backend):  # a program that this one runs has the same backend
            return self._function(State(self.branch), *self._args, **self._kwargs)

    async def _check(self, start: Start) -> None:
        """Raises `StateInvalid` if what the run is to go on from means something else to its backend."""
        self.branch.begin(await start.checked(self.run))

    def _said(self) -> Transcript | ProgramError:
        """What was said, once all calls are over."""
        try:
            return self.branch.said()
        except ProgramError as error:
            return error
