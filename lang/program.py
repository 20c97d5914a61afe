"""`@program`: a function that writes to a state, and the ways to run it.

Knows nothing of what a state does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Concatenate, Generic, TypeVar, Unpack, overload

from .arguments import name as checked_name
from .arguments import whole, wrong_type
from .backend import Backend, checked_backend
from .batch import as_arguments, progress_bar, run_all
from .defaults import resolve
from .expressions import Sampling, checked
from .job import Job
from .loop import inside_a_loop, submit
from .result import Result
from .run import Run
from .state import State
from .stream import AsyncStream, Stream

R = TypeVar("R")

_RESERVED = ("backend", "var")


class Program(Generic[R]):
    """An agent program, made by `@program`.

    Arguments are those of the function after the state. `backend` says where to run; without it, that of `use` or of
    `set_backend`. Calls that fail raise where their value is read; what the function itself raises comes out of `run`,
    `arun` and the streams, and is each item's `error` in `map`.
    """

    def __init__(self, function: Callable[..., Any], sampling: Sampling) -> None:
        self._signature = _without_state(function)
        functools.update_wrapper(self, function)
        self.name = function.__name__
        self.function = function
        self.sampling = checked(sampling, "program")
        self.is_async = inspect.iscoroutinefunction(function)

    def run(self, *args: Any, backend: Backend | None = None, **kwargs: Any) -> Result[R]:
        """Run to the end, and wait for it. Not inside a running event loop: there, await `arun`."""
        self._may_block("run", "await {}.arun(...)")
        job = self._job(backend, args, kwargs)
        if not self.is_async:
            return job.execute_here()
        done = submit(job.execute())
        try:
            return done.result()
        except BaseException:
            done.cancel()
            raise

    async def arun(self, *args: Any, backend: Backend | None = None, **kwargs: Any) -> Result[R]:
        """Run to the end. An async function runs on the caller's event loop, a sync one in a thread. Cancelling the
        awaiting task cancels the calls."""
        return await self._job(backend, args, kwargs).execute()

    def stream(self, *args: Any, var: str | None = None, backend: Backend | None = None, **kwargs: Any) -> Stream[R]:
        """Iterate over the text that is generated on the main branch, for one variable or for all."""
        self._may_block("stream", "async for piece in {}.astream(...)")
        return Stream(self._job(backend, args, kwargs), checked_name(f"{self.name}.stream: var", var))

    def astream(
        self, *args: Any, var: str | None = None, backend: Backend | None = None, **kwargs: Any
    ) -> AsyncStream[R]:
        """The same for `async for`."""
        return AsyncStream(self._job(backend, args, kwargs), checked_name(f"{self.name}.astream: var", var))

    def map(
        self,
        items: Iterable[Any],
        *,
        backend: Backend | None = None,
        progress: bool = False,
        concurrency: int = 32,
    ) -> list[Result[R]]:
        """Run once for each item, at most `concurrency` at a time; results in the order of the items.

        An item is a dict of arguments, or the value of the first one. An item with arguments that the program does not
        take is a TypeError that names its place, before anything runs. Nothing is raised for an item that fails: its
        result has `error`, and raises it when it is read. Sync functions run in at most 64 threads.
        """
        self._may_block("map", "await {}.amap(...)")
        done = submit(self._all(items, backend, progress, concurrency))
        try:
            return done.result()
        except BaseException:
            done.cancel()
            raise

    async def amap(
        self,
        items: Iterable[Any],
        *,
        backend: Backend | None = None,
        progress: bool = False,
        concurrency: int = 32,
    ) -> list[Result[R]]:
        """`map`, awaited."""
        return await self._all(items, backend, progress, concurrency)

    def check(self, /, *args: Any, **kwargs: Any) -> None:
        """Raise `TypeError`, with the program's name and parameters, unless it can be called with these arguments."""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}{self._signature}: {error}") from None

    def __call__(self, state: State, *args: Any, **kwargs: Any) -> R | Awaitable[R]:
        """Inside another program: go on with its state. Await it if the function is async."""
        if not isinstance(state, State):
            raise TypeError(
                f"{self.name} is a program: {self.name}.run(...), or {self.name}(s, ...) inside another one"
            )
        result: R | Awaitable[R] = self.function(state, *args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<program {self.name}{self._signature}>"

    def _job(self, backend: Backend | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job[R]:
        self.check(*args, **kwargs)
        run = Run(self.name, resolve(backend), self.sampling)
        return Job(run, self.function, args, kwargs)

    def _all(
        self, items: Iterable[Any], backend: Backend | None, progress: bool, concurrency: int
    ) -> Coroutine[Any, Any, list[Result[R]]]:
        """Checks everything now, runs when it is awaited."""
        first = next(iter(self._signature.parameters), None)
        arguments = as_arguments(f"{self.name}.map", items, first, self.check)
        if whole(f"{self.name}.map: concurrency", concurrency) < 1:
            raise ValueError(f"{self.name}.map: concurrency must be at least 1, not {concurrency}")
        chosen = checked_backend(f"{self.name}.map", resolve(backend))
        bar = progress_bar(progress, self.name, len(arguments))
        return run_all(lambda i: self._job(chosen, (), arguments[i]), len(arguments), concurrency, bar)

    def _may_block(self, what: str, instead: str) -> None:
        if inside_a_loop():
            raise RuntimeError(
                f"{self.name}.{what} would block the event loop that runs here: {instead.format(self.name)}"
            )


def _without_state(function: Callable[..., Any]) -> inspect.Signature:
    """The signature that callers see."""
    if not callable(function) or isinstance(function, type) or not hasattr(function, "__name__"):
        raise wrong_type("program: what it decorates", "a function", function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function.__name__}: a program is a plain or an async function, not a generator")
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise TypeError(f"{function.__name__}: a program's first parameter is its state, as in `def program(s, ...)`")
    for name in _RESERVED:
        if name in signature.parameters:
            raise TypeError(f"{function.__name__}: the parameter name {name!r} is taken by run and stream")
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters[1:]]
    return signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)


@overload
def program(function: Callable[Concatenate[State, ...], Awaitable[R]], /) -> Program[R]: ...
@overload
def program(function: Callable[Concatenate[State, ...], R], /) -> Program[R]: ...
@overload
def program(
    function: None = None, /, **sampling: Unpack[Sampling]
) -> Callable[[Callable[Concatenate[State, ...], Any]], Program[Any]]: ...
def program(function: Callable[..., Any] | None = None, /, **sampling: Unpack[Sampling]) -> Any:
    """Make a program of a function whose first parameter is the state.

    `@program`, or `@program(temperature=0, max_tokens=64)`: the program's own defaults for every `gen` in it.
    """
    if function is None:
        defaults = checked(sampling, "program")  # on the decorator's own line
        return lambda later: Program(later, defaults)
    return Program(function, sampling)
