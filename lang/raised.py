"""What was raised: what it says, and where. Knows nothing of programs.

Exceptions are the code of others: one whose text cannot be had must not stand in the way of what it reports.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from types import TracebackType
from typing import NamedTuple


class Place(NamedTuple):
    """A line that runs, or ran."""

    file: str = ""
    line: int = 0
    function: str = ""


def text_of(error: BaseException) -> str:
    """What it says; nothing where its `__str__` fails."""
    try:
        return str(error)
    except Exception:  # the model, or the reader, is told its type all the same
        return ""


def said(error: BaseException) -> str:
    """Its type, and what it says."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def raised_in(error: BaseException, files: Container[str]) -> Place:
    """The innermost line of these files that it came through; an empty place if there is none."""
    return innermost(reversed(list(_places(error.__traceback__))), files)


def innermost(places: Iterable[Place], files: Container[str]) -> Place:
    """The first of the places, innermost first, that is in one of the files; an empty one if none is."""
    return next((place for place in places if place.file in files), Place())


def _places(trace: TracebackType | None) -> Iterator[Place]:
    """Outermost first."""
    while trace is not None:
        code = trace.tb_frame.f_code
        yield Place(code.co_filename, trace.tb_lineno, code.co_name)
        trace = trace.tb_next
