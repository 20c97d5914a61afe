"""What is shown on standard error while a measurement runs: a bar where somebody watches, a line for each pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Progress:
    """Draws seldom: it shares the machine with the server that is measured."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)

    @contextlib.contextmanager
    def bar(self, what: str, total: int) -> Iterator[Callable[[], None]]:
        """Gives a function to be called for each request that is done."""
        if not self._console.is_terminal:
            yield lambda: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Bars(*columns, console=self._console, transient=True, refresh_per_second=2) as bars:
            task = bars.add_task(escape(what), total=total)
            yield lambda: bars.advance(task)

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """For a wait of unknown length."""
        with self._console.status(escape(what)) if self._console.is_terminal else contextlib.nullcontext():
            yield

    def say(self, what: str, outcome: str) -> None:
        self._console.print(f"[dim]{escape(what)}:[/dim] {escape(outcome)}", highlight=False)
