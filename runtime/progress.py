"""Progress bars for loading and converting, on standard error. Nothing is drawn where nobody watches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn


@contextlib.contextmanager
def loading_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Gives a function (what, bytes done, bytes in all) that draws one bar for each `what`."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, object] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total or None)
            bars.update(tasks[what], completed=done, total=total or None)  # type: ignore[arg-type]

        yield show
