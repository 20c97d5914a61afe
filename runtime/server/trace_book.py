"""Joins the two halves of a request's record: what the engine noted, and what only the API process knows.

Either half may be first: an answer is over when its outputs are, a request whose client has left is told of by the
engine later. Lives on the event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from ..trace import Trace
from .trace_records import RequestRecord

MOST_LATE = 1_000
"""Records that wait for the engine's half; the oldest are closed without it."""

Complete = Callable[[RequestRecord], None]
"""Adds to a record what takes long, such as where its messages end: for a thread."""

Sink = Callable[[RequestRecord, Complete], None]


class _Entry:
    """A request under way, or one whose answer is over."""

    __slots__ = ("complete", "over", "record")

    def __init__(self, record: RequestRecord, complete: Complete) -> None:
        self.record = record
        self.complete = complete
        self.over = False


class TraceBook:
    """The requests under way, and those that wait for the engine's word. `sinks` get each record once it is whole."""

    def __init__(self) -> None:
        self.sinks: list[Sink] = []
        self._open: dict[str, _Entry] = {}
        self._late: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, record: RequestRecord, complete: Complete) -> None:
        """A request is about to be sent to the engine."""
        self._open[record.id] = _Entry(record, complete)

    def refused(self, request: str) -> None:
        """The engine did not take it: there is nothing to tell."""
        self._open.pop(request, None)

    def noted(self, trace: Trace) -> None:
        """The engine's half."""
        entry = self._open.get(trace.request)
        if entry is not None:
            entry.record.engine = trace
            if entry.over:
                self._close(trace.request)

    def over(self, request: str, *, lost: bool = False) -> None:
        """The answer has ended, and its record says how. `lost`: the engine will never say what it noted."""
        entry = self._open.get(request)
        if entry is None or entry.over:
            return
        entry.over = True
        if lost or entry.record.engine is not None:
            self._close(request)
            return
        self._late[request] = None
        if len(self._late) > MOST_LATE:
            self._close(next(iter(self._late)))

    def _close(self, request: str) -> None:
        self._late.pop(request, None)
        entry = self._open.pop(request)
        for sink in self.sinks:
            sink(entry.record, entry.complete)
