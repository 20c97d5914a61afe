"""`@program`: a function that writes to a state, and the ways to run it.

Knows nothing of what a state does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Concatenate, Generic, NamedTuple, TypeVar, Unpack, overload

from ..prompts.transcript import Transcript
from .arguments import flag, whole, wrong_type
from .arguments import name as checked_name
from .backend import Backend, checked_backend
from .batch import as_arguments, progress_bar, run_all
from .budget import Budget, checked_budget
from .compiling import compiled, kinds, shape_of
from .defaults import resolve
from .expressions import Sampling, checked
from .graph import Graph
from .job import Job
from .learnt import Habits, code_of, learnt
from .loop import inside_a_loop, submit
from .outlook import Outlook
from .placeholders import leaves_the_trace
from .plan import Known, Plan, plan_of
from .prefix import before, known_prefix, varying
from .result import Result
from .resuming import checked_start
from .run import Run
from .running import Running
from .saved import SavedState
from .state import State
from .stream import AsyncStream, Stream

R = TypeVar("R")

_PLANS = 64  # most of one program, the newest
_RESERVED = ("backend", "budget", "resume", "var")


class How(NamedTuple):
    """What is said of a run besides the program's own arguments."""

    backend: Backend | None = None
    budget: Budget | None = None
    resume: Result[Any] | SavedState | None = None


class Program(Generic[R]):
    """An agent program, made by `@program`.

    Arguments are those of the function after the state. `backend` says where to run; without it, that of `use` or of
    `set_backend`. `budget` is the most that the run may take. `resume` is a result, or a state from `load_state`, from
    whose text and variables the program goes on. Calls that fail raise where their value is read; what the function
    itself raises comes out of `run`, `arun` and the streams, and is each item's `error` in `map`.
    """

    def __init__(self, function: Callable[..., Any], sampling: Sampling, budget: Budget | None = None) -> None:
        self._signature = _without_state(function)
        functools.update_wrapper(self, function)
        self.name = function.__name__
        self.function = function
        self.sampling = checked(sampling, "program")
        self.budget = checked_budget("program: budget", budget)
        self.is_async = inspect.iscoroutinefunction(function)
        self._kinds = kinds(function)
        self._code = code_of(function)
        self._plans: dict[Any, Plan] = {}

    def run(
        self,
        *args: Any,
        backend: Backend | None = None,
        budget: Budget | None = None,
        resume: Result[Any] | SavedState | None = None,
        **kwargs: Any,
    ) -> Result[R]:
        """Run to the end, and wait for it. Not inside a running event loop: there, await `arun`."""
        self._may_block("run", "await {}.arun(...)")
        job = self._job(How(backend, budget, resume), args, kwargs)
        if not self.is_async:
            return job.execute_here()
        done = submit(job.execute())
        try:
            return done.result()
        except BaseException:
            done.cancel()
            raise

    async def arun(
        self,
        *args: Any,
        backend: Backend | None = None,
        budget: Budget | None = None,
        resume: Result[Any] | SavedState | None = None,
        **kwargs: Any,
    ) -> Result[R]:
        """Run to the end. An async function runs on the caller's event loop, a sync one in a thread. Cancelling the
        awaiting task cancels the calls."""
        return await self._job(How(backend, budget, resume), args, kwargs).execute()

    def start(
        self,
        *args: Any,
        backend: Backend | None = None,
        budget: Budget | None = None,
        resume: Result[Any] | SavedState | None = None,
        **kwargs: Any,
    ) -> Running[R]:
        """Begin, and return at once: a handle to wait for the run or to cancel it, from any thread or loop. A sync
        function runs in a thread, an async one on the language's own event loop."""
        return Running(self._job(How(backend, budget, resume), args, kwargs))

    def stream(
        self,
        *args: Any,
        var: str | None = None,
        backend: Backend | None = None,
        budget: Budget | None = None,
        resume: Result[Any] | SavedState | None = None,
        **kwargs: Any,
    ) -> Stream[R]:
        """Iterate over the text that is generated on the main branch, for one variable or for all."""
        self._may_block("stream", "async for piece in {}.astream(...)")
        return Stream(
            self._job(How(backend, budget, resume), args, kwargs), checked_name(f"{self.name}.stream: var", var)
        )

    def astream(
        self,
        *args: Any,
        var: str | None = None,
        backend: Backend | None = None,
        budget: Budget | None = None,
        resume: Result[Any] | SavedState | None = None,
        **kwargs: Any,
    ) -> AsyncStream[R]:
        """The same for `async for`."""
        return AsyncStream(
            self._job(How(backend, budget, resume), args, kwargs), checked_name(f"{self.name}.astream: var", var)
        )

    def map(
        self,
        items: Iterable[Any],
        *,
        backend: Backend | None = None,
        budget: Budget | None = None,
        progress: bool = False,
        concurrency: int = 32,
        prefix: bool = True,
    ) -> list[Result[R]]:
        """Run once for each item, at most `concurrency` at a time; results in the order of the items.

        An item is a dict of arguments, or the value of the first one. An item with arguments that the program does not
        take is a TypeError that names its place, before anything runs. Nothing is raised for an item that fails: its
        result has `error`, and raises it when it is read. Sync functions run in at most 64 threads.

        What all items begin with is computed once before they start, if that is worth it. To find it, the beginning of
        the function runs once more, with placeholders for the arguments in which the items differ, up to its first
        call; not with `prefix=False`.
        """
        self._may_block("map", "await {}.amap(...)")
        done = submit(self._all(items, How(backend, budget), progress, concurrency, prefix))
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
        budget: Budget | None = None,
        progress: bool = False,
        concurrency: int = 32,
        prefix: bool = True,
    ) -> list[Result[R]]:
        """`map`, awaited."""
        return await self._all(items, How(backend, budget), progress, concurrency, prefix)

    def compile(self, *args: Any, backend: Backend | None = None, **kwargs: Any) -> Graph:
        """The program as a graph, without running a model or a tool: the function runs once on a state that writes
        down what it is told, up to the line that needs a value which only a run has; `Graph.ending` says where.

        Arguments that are not given stand as placeholders. With a `backend`, what it cannot do is refused here.
        Later runs with the same arguments, up to their texts, tell their backend what the graph says of them.
        """
        given = self.given(*args, **kwargs)
        graph = compiled(self.name, self.function, self.sampling, given, self._kinds, backend=backend)
        self._plans[shape_of(given, self._kinds)] = plan_of(graph)
        if len(self._plans) > _PLANS:
            del self._plans[next(iter(self._plans))]
        return graph

    def given(self, /, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        """These of its arguments, by name. Raises `TypeError` for those that it does not take."""
        try:
            return self._signature.bind_partial(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}{self._signature}: {error}") from None

    @property
    def signature(self) -> inspect.Signature:
        """Its arguments, as callers see them: without the state."""
        return self._signature

    def habits(self) -> Habits | None:
        """What runs of the program have shown, if anything was learnt."""
        book = learnt()
        return None if book is None else book.of(self.name, self._code)

    def check(self, /, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        """All of its arguments, by name. Raises `TypeError`, with the program's name and parameters, unless it can be
        called with them."""
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}{self._signature}: {error}") from None

    def __call__(self, state: State, *args: Any, **kwargs: Any) -> R | Awaitable[R]:
        """Inside another program: go on with its state. Await it if the function is async."""
        if not isinstance(state, State):
            raise TypeError(
                f"{self.name} is a program: {self.name}.run(...), or {self.name}(s, ...) inside another one"
            )
        if self.budget is not None:
            raise TypeError(f"{self.name} has a budget, which is that of a whole run: give it to the program that runs")
        inner = state.with_defaults(self.sampling)
        result: R | Awaitable[R] = state.entered(self.name, self.function)(inner, *args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<program {self.name}{self._signature}>"

    def _job(self, how: How, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job[R]:
        leaves_the_trace(f"{self.name} is run, apart from the program")
        given = self.check(*args, **kwargs)
        budget = checked_budget(f"{self.name}: budget", how.budget) or self.budget
        run = Run(self.name, resolve(how.backend), self.sampling, self._outlook(given), budget)
        return Job(run, self.function, args, kwargs, checked_start(f"{self.name}: resume", how.resume))

    def _outlook(self, given: inspect.BoundArguments) -> Outlook:
        """What is known of a run with these arguments."""
        plan = self._plans.get(shape_of(given, self._kinds)) if self._plans else None
        book = learnt()
        if book is None:
            return Outlook() if plan is None else Known(plan)
        return Known(plan, self.habits(), functools.partial(book.learn, self.name, self._code))

    def _all(
        self, items: Iterable[Any], how: How, progress: bool, concurrency: int, prefix: bool
    ) -> Coroutine[Any, Any, list[Result[R]]]:
        """Checks everything now, runs when it is awaited."""
        leaves_the_trace(f"{self.name} is run, apart from the program")
        first = next(iter(self._signature.parameters), None)
        arguments = as_arguments(f"{self.name}.map", items, first, self.check)
        if whole(f"{self.name}.map: concurrency", concurrency) < 1:
            raise ValueError(f"{self.name}.map: concurrency must be at least 1, not {concurrency}")
        backend = checked_backend(f"{self.name}.map", resolve(how.backend))
        chosen = how._replace(backend=backend)
        bar = progress_bar(progress, self.name, len(arguments))
        wanted = flag(f"{self.name}.map: prefix", prefix) and concurrency > 1
        shared = self._prefix(arguments, backend) if wanted else None

        def work() -> Coroutine[Any, Any, list[Result[R]]]:
            return run_all(lambda i: self._job(chosen, (), arguments[i]), len(arguments), concurrency, bar)

        return work() if shared is None else before(Run(self.name, backend, self.sampling), shared, work)

    def _prefix(self, items: list[dict[str, Any]], backend: Backend) -> Transcript | None:
        """What the prompts of all items begin with, where it can be computed apart."""
        if len(items) < 2 or "tokens" not in backend.capabilities:
            return None
        given, apart = self._signature.bind(**items[0]), varying(items)
        return known_prefix(
            lambda: compiled(
                self.name, self.function, self.sampling, given, self._kinds, stand_in=apart, first_call=True
            )
        )

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
    function: None = None, /, *, budget: Budget | None = None, **sampling: Unpack[Sampling]
) -> Callable[[Callable[Concatenate[State, ...], Any]], Program[Any]]: ...
def program(
    function: Callable[..., Any] | None = None, /, *, budget: Budget | None = None, **sampling: Unpack[Sampling]
) -> Any:
    """Make a program of a function whose first parameter is the state.

    `@program`, or `@program(temperature=0, max_tokens=64)`: the program's own defaults for every `gen` in it. `budget`
    is the most that a run of it may take, unless the run says otherwise.
    """
    if function is None:
        defaults = checked(sampling, "program")  # on the decorator's own line
        checked_budget("program: budget", budget)
        return lambda later: Program(later, defaults, budget)
    return Program(function, sampling, budget)
