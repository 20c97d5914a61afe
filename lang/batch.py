"""One program over many inputs, so many at a time, with a progress bar.

Knows nothing of calls: a job is carried out as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from .arguments import wrong_type
from .job import Job
from .loop import THREADS
from .result import Result

R = TypeVar("R")


class Progress(Protocol):
    """Hears of each result as it comes."""

    def add(self, result: Result[Any]) -> None: ...


async def run_all(
    make: Callable[[int], Job[R]], count: int, concurrency: int, progress: AbstractContextManager[Progress | None]
) -> list[Result[R]]:
    """`make(i)` carried out for each i below `count`, at most `concurrency` at a time; results in order. A job that
    fails is a result with an error. Cancelled, it cancels all."""
    results: list[Result[R] | None] = [None] * count
    coming = iter(range(count))
    # A pool of its own: a program that maps another one must not wait for its own thread.
    threads = ThreadPoolExecutor(min(concurrency, THREADS), "bosquet-map")
    try:
        with progress as bar:

            async def work() -> None:
                for i in coming:
                    result = results[i] = await make(i).attempt(threads)
                    if bar is not None:
                        bar.add(result)

            async with asyncio.TaskGroup() as group:
                for _ in range(min(concurrency, count)):
                    group.create_task(work())
    finally:
        threads.shutdown(wait=False, cancel_futures=True)  # waiting here could block the loop that they wait for
    return [result for result in results if result is not None]


class _Bar(AbstractContextManager["_Bar"]):
    """A bar on standard error: how many are done, how many of them failed, tokens a second, share of cached tokens."""

    def __init__(self, program: str, count: int) -> None:
        from rich.console import Console  # heavy, and only for those who watch
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich

        self._rich = Rich(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._rich.add_task(program, total=count, facts="")
        self._failed = self._generated = self._prompt = self._cached = 0

    def __enter__(self) -> _Bar:
        self._rich.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._rich.stop()

    def add(self, result: Result[Any]) -> None:
        usage = result.usage
        self._failed += result.error is not None
        self._generated += usage.completion_tokens
        self._prompt += usage.prompt_tokens
        self._cached += usage.cached_tokens
        elapsed = self._rich.tasks[0].elapsed or 0.0
        facts = [f"{self._generated / elapsed:.0f} tok/s" if elapsed else ""]
        facts.append(f"{self._cached / self._prompt:.0%} cached" if self._prompt else "")
        facts.append(f"[red]{self._failed} failed[/red]" if self._failed else "")
        self._rich.update(self._task, advance=1, facts=" · ".join(fact for fact in facts if fact))


def progress_bar(wanted: bool, program: str, count: int) -> AbstractContextManager[Progress | None]:
    """A bar, or nothing."""
    return _Bar(program, count) if wanted else nullcontext()


def as_arguments(
    where: str, items: Iterable[Any], first: str | None, check: Callable[..., object]
) -> list[dict[str, Any]]:
    """What each item says: a dict names the arguments, anything else is the first one's value. An item that `check`
    does not take is named by its place."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise wrong_type(f"{where}: items", "a list", items)
    arguments = []
    for i, item in enumerate(items):
        if not isinstance(item, dict) and first is None:
            raise TypeError(f"{where}: item {i}: the program takes no argument, so each item must be an empty dict")
        named: dict[str, Any] = item if isinstance(item, dict) else {str(first): item}
        try:
            check(**named)
        except TypeError as error:
            raise TypeError(f"{where}: item {i}: {error}") from None
        arguments.append(named)
    return arguments
