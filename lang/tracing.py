"""From a program's function to its graph: the function runs once, on a state that writes down what it is told.

No model, no tool and no backend runs. What the function does besides writing to its state (it prints, it reads a file)
it does here too, up to the line where it needs a value that only a run has.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NoReturn, cast

from ..prompts.transcript import Transcript, Write
from .acting import Act
from .backend import TOKEN_CAPABILITIES, Backend
from .branch import Branch, Point
from .calls import Answer
from .expressions import Gen, Sampling, Select, sampling_params
from .graph import Graph, Kind, Node, Said, Written
from .placeholders import DataDependent, Marks, Ref, line_of, plain, tracing
from .run import Run, Usage
from .state import State
from .values import Variable

_PATIENCE: Final = 100
"""Turns of the event loop without anything new, after which an async function must be waiting for something outside."""

MOST: Final = 4_000
"""Texts, steps, forks and branches that are followed: a program that writes for ever has no end to be found."""


class _Anything:
    """The backend of a trace that is told of none: it can do everything, and is never asked to."""

    capabilities = TOKEN_CAPABILITIES


_ANYTHING: Final = cast(Backend, _Anything())


class _Enough(BaseException):
    """The trace has seen as much as it was asked for."""


class Flows:
    """The tasks of a traced function, if it is async, and what each has read since it last wrote. A task begins with
    the context of the one that made it, so it knows from which flow it comes."""

    def __init__(self, is_async: bool) -> None:
        self.parents: list[int] = [] if is_async else [0]
        self._is_async = is_async
        self._reads: dict[int, list[int]] = {}
        self._tasks: dict[asyncio.Task[Any] | None, int] = {}
        self._own: contextvars.ContextVar[int] = contextvars.ContextVar("bosquet_flow", default=0)

    def current(self) -> int:
        """The flow that runs now."""
        if not self._is_async:
            return 0
        task = asyncio.current_task()
        if task not in self._tasks:
            self._tasks[task] = len(self.parents)
            self.parents.append(self._own.get())
            self._own.set(self._tasks[task])
        return self._tasks[task]

    def read(self, nodes: Sequence[int]) -> None:
        self._reads.setdefault(self.current(), []).extend(nodes)

    def waits(self) -> tuple[int, ...]:
        """What was read since this was asked last."""
        return tuple(dict.fromkeys(self._reads.pop(self.current(), ())))


class Trace:
    """One function being traced. With `first_call`, it ends there, or at the first fork."""

    def __init__(
        self,
        program: str,
        sampling: Sampling,
        backend: Backend | None,
        marks: Marks,
        *,
        is_async: bool = False,
        first_call: bool = False,
    ) -> None:
        self.run = Run(program, backend or _ANYTHING, sampling)
        self.marks = marks
        self.nodes: list[Node] = []
        self.within: contextvars.ContextVar[tuple[int, ...]] = contextvars.ContextVar("bosquet_within", default=())
        self.flows = Flows(is_async)
        self._first_call = first_call
        self._left = MOST

    def add(self, kind: Kind, branch: TracedBranch, written: Sequence[Written] = (), **more: Any) -> Node:
        """Write down what the program does next in the branch."""
        if self.marks.ending is not None:  # the program has caught what told it to stop
            raise DataDependent(str(self.marks.ending))
        self.take(1)
        refs = [part for text in written if isinstance(text, Said) for part in text.parts if isinstance(part, Ref)]
        node = Node(
            id=len(self.nodes),
            kind=kind,
            branch=branch.path,
            role=branch.role,
            written=tuple(written),
            after=() if branch.last is None else (branch.last, *more.pop("joined", ())),
            needs=tuple(dict.fromkeys(node for ref in refs for node in ref.nodes)),
            waits=self.flows.waits(),
            within=self.within.get(),
            flow=self.flows.current(),
            line=line_of(self.marks.files),
            **more,
        )
        self.nodes.append(node)
        branch.last = node.id
        if self._first_call and (node.is_step or kind == "fork"):
            raise _Enough
        return node

    def take(self, count: int) -> None:
        """Of the nodes and branches that may be, so many come now. Where there are no more, the static part ends."""
        if count > self._left:
            self.marks.stop("", f"it writes more than {MOST:,} texts, steps and branches, and is followed no further")
        self._left -= count

    def read(self, label: str, nodes: Sequence[int]) -> None:
        """The program has read a variable."""
        self.flows.read(nodes)
        self.marks.last_read = label


class TracedVariable:
    """The value of a step, which only a run has."""

    def __init__(self, trace: Trace, node: Node, kind: type, samples: int | None) -> None:
        self._trace, self._node, self._kind, self._samples = trace, node, kind, samples

    def ready(self) -> bool:
        return True

    def read(self) -> Any:
        return self._each("{}", self._kind)

    async def wait(self) -> Any:
        return self.read()

    def meta(self) -> Any:
        return self._each("meta({})", object)

    def _each(self, label: str, kind: type) -> Any:
        """A placeholder; where there are samples, a list of as many."""
        name, id = self._node.name, self._node.id
        self._trace.read(name, [id])
        if self._samples is None:
            return self._trace.marks.new(Ref(label.format(name), (id,)), kind)
        labels = [label.format(f"{name}[{i}]") for i in range(self._samples)]
        return [self._trace.marks.new(Ref(label, (id,)), kind) for label in labels]


class TracedBranch(Branch):
    """A branch that keeps nothing but nodes."""

    def __init__(
        self, trace: Trace, path: str = "", inherited: Mapping[str, Variable] | None = None, role: str | None = None
    ) -> None:
        super().__init__(trace.run, path, cast(Point, None), inherited, role)
        self.trace = trace
        self.last: int | None = None  # the node that this branch goes on from

    def write(self, text: str) -> None:
        text = plain(text)
        super().write(text)
        if text:
            self.trace.add("text", self, self._written())

    def fork(self, count: int) -> list[Branch]:
        self.trace.take(max(0, count))
        children = cast(list[TracedBranch], super().fork(count))
        node = self.trace.add("fork", self, self._written(), branches=tuple(child.path for child in children))
        for child in children:
            child.last = node.id
        return list(children)

    def join(self, branches: Sequence[Branch]) -> None:
        super().join(branches)
        joined = cast(Sequence[TracedBranch], branches)
        ends = [branch.last for branch in joined if branch.last is not None]
        names = ", ".join(dict.fromkeys(name for branch in joined for name in branch.own))
        self.trace.add("join", self, name=names, branches=tuple(branch.path for branch in joined), joined=ends)

    async def transcript(self) -> Transcript:
        self.needs_a_run("what was said")

    def needs_a_run(self, what: str) -> NoReturn:
        """The program has asked for something that no trace can tell."""
        self.trace.marks.stop("", f"{what} is known in a run only")

    def _child(self, name: str, known: Mapping[str, Variable]) -> Branch:
        path = f"{self.path}.{name}" if self.path else name
        child = TracedBranch(self.trace, path, known, self.role)
        child._chat, child._turn_text = self._chat, self._turn_text
        return child

    def _promise(self, piece: Gen | Select | Act, ask: Callable[..., Awaitable[Answer]]) -> None:
        kind: Kind = "tool" if isinstance(piece, Act) else "select" if isinstance(piece, Select) else "gen"
        sampling = None if isinstance(piece, Select) else sampling_params(self.run.defaults, piece.sampling)
        node = self.trace.add(
            kind,
            self,
            self._written(),
            name=piece.name or f"#{self._calls}",
            place=self._calls,
            piece=piece,
            sampling=sampling,
        )
        if piece.name:
            samples = piece.n if isinstance(piece, Gen) else None
            self.own[piece.name] = TracedVariable(self.trace, node, _kind_of(piece), samples)

    def _advance(self, step: str, work: Any, fail: Any) -> None:
        """What is pending stays so: the node that comes now takes it."""

    def _written(self) -> list[Written]:
        """What is pending, which is written with this."""
        pending, self._pending = self._pending, []
        return [Said(self.trace.marks.parts(op.text)) if isinstance(op, Write) else op for op in pending]


def _kind_of(piece: Gen | Select | Act) -> type:
    """Of the value; `object` where a text would do things that the value cannot."""
    if isinstance(piece, Gen) and piece.shape.parse is not None:
        return object
    return object if isinstance(piece, Act) else str


class TracedState(State):
    """The state of a traced function."""

    _branch: TracedBranch

    def fork(self, count: int) -> list[State]:
        return [TracedState(state._branch, self._defaults) for state in super().fork(count)]

    def ready(self, name: str) -> bool:
        self._branch.needs_a_run(f"whether {name!r} is ready")

    @property
    def usage(self) -> Usage:
        self._branch.needs_a_run("the usage")

    def entered(self, program: str, function: Callable[..., Any]) -> Callable[..., Any]:
        trace = self._branch.trace
        within = super().entered(program, function)

        def begin() -> contextvars.Token[tuple[int, ...]]:
            trace.marks.files.add(function.__code__.co_filename)
            node = trace.add("program", self._branch, name=program)
            return trace.within.set((*trace.within.get(), node.id))

        def run(*args: Any, **kwargs: Any) -> Any:
            outside = begin()
            try:
                return within(*args, **kwargs)
            finally:
                trace.within.reset(outside)

        async def arun(*args: Any, **kwargs: Any) -> Any:
            outside = begin()
            try:
                return await within(*args, **kwargs)
            finally:
                trace.within.reset(outside)

        return arun if inspect.iscoroutinefunction(function) else run

    def _transcript(self, what: str) -> NoReturn:
        self._branch.needs_a_run(f"s.{what}")


def traced(
    program: str,
    function: Callable[..., Any],
    sampling: Sampling,
    arguments: Mapping[str, Any],
    call: Callable[[State], Any],
    *,
    marks: Marks,
    backend: Backend | None = None,
    first_call: bool = False,
) -> Graph:
    """The graph of `function`, which `call` calls with a state. Raises what the function raises before it has had a
    placeholder in its hands."""
    is_async = inspect.iscoroutinefunction(function)
    trace = Trace(program, sampling, backend, marks, is_async=is_async, first_call=first_call)
    state = TracedState(TracedBranch(trace))
    try:
        contextvars.copy_context().run(_run, function, call, state, trace)
    except (DataDependent, _Enough):
        pass
    except Exception as error:
        if not len(marks):
            raise
        marks.failed(error)
    return Graph(
        program=program,
        nodes=tuple(trace.nodes),
        ending=marks.ending,
        flows=tuple(trace.flows.parents),
        arguments=dict(arguments),
    )


def _run(function: Callable[..., Any], call: Callable[[State], Any], state: State, trace: Trace) -> None:
    """Call it; an async function, which must wait for nothing outside, on an event loop and in a thread of its own."""
    with tracing(trace.marks):
        if not inspect.iscoroutinefunction(function):
            call(state)
            return
        context = contextvars.copy_context()
        with ThreadPoolExecutor(1, "bosquet-trace") as thread:
            thread.submit(context.run, asyncio.run, _watched(call(state), trace)).result()


async def _watched(coroutine: Coroutine[Any, Any, Any], trace: Trace) -> None:
    task = asyncio.ensure_future(_outcome(coroutine))
    known, idle = 0, 0
    while not task.done() and idle < _PATIENCE:
        await asyncio.sleep(0)
        idle = 0 if len(trace.nodes) > known else idle + 1
        known = len(trace.nodes)
    if task.done():
        if (error := task.result()) is not None:
            raise error
    else:
        trace.marks.waits(coroutine)
        task.cancel()
        await task


async def _outcome(coroutine: Coroutine[Any, Any, Any]) -> BaseException | None:
    """What the function has raised: a BaseException must not end the event loop."""
    try:
        await coroutine
    except BaseExceptionGroup as group:  # of a TaskGroup
        return _first(group)
    except (Exception, DataDependent, _Enough, asyncio.CancelledError) as error:
        return error
    return None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    for error in group.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    return group
