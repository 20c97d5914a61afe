"""Keeps records of requests in the background: a thread encodes and writes what has gathered, and answers questions.

`put` costs the event loop a queue entry. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from .trace_book import Complete
from .trace_records import RequestRecord
from .trace_ring import Call, TraceRing, Wanted

T = TypeVar("T")

log = logging.getLogger("bosquet.traces")

GATHERS_S = 0.2
"""How long records are gathered before they are written: as much is lost when the process is killed."""

MOST_QUEUED = 20_000
"""Records that wait for the thread before new ones are dropped, and counted."""


class _Kept(NamedTuple):
    record: RequestRecord
    complete: Complete


Ask = Callable[[TraceRing], None]
Jobs = queue.SimpleQueue["_Kept | Ask | None"]


class TraceStore:
    """A file without a name is opened with the first record, any other at once. Raises `ConfigError`."""

    def __init__(self, path: str, size: int) -> None:
        self._jobs: Jobs = queue.SimpleQueue()
        self._keeper = _Keeper(self._jobs, path, size)
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._jobs.put, None)  # an application that is dropped leaves no thread behind

    @property
    def dropped(self) -> int:
        """Records that were not kept: the thread was too slow, or the disk full."""
        return self._keeper.dropped

    def put(self, record: RequestRecord, complete: Complete) -> None:
        """Keep a record, which the thread completes first. Returns at once."""
        if self._jobs.qsize() >= MOST_QUEUED:
            self._keeper.dropped += 1
        else:
            self._send(_Kept(record, complete))

    async def last(self, wanted: Wanted, limit: int) -> list[tuple[int, RequestRecord]]:
        """The newest first, with their numbers."""
        return await self._ask(lambda ring: ring.last(wanted, limit))

    async def get(self, name: str, tenant: str | None) -> RequestRecord | None:
        """The record of this id, or the newest of the HTTP request or answer of this id; None: of no such tenant."""
        return await self._ask(lambda ring: ring.get(name, tenant))

    async def place(self, id: str, tenant: str | None) -> int | None:
        """The number of the record of this id; None: of no such tenant."""
        return await self._ask(lambda ring: ring.place(id, tenant))

    async def calls(self, wanted: Wanted) -> list[Call]:
        """All there are, the oldest first."""
        return await self._ask(lambda ring: ring.calls(wanted))

    async def count(self, tenant: str | None = None) -> int:
        """How many records there are."""
        return await self._ask(lambda ring: ring.count(tenant))

    def close(self) -> None:
        """Write what waits, and end."""
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join(10)
        else:
            self._keeper.serve()

    async def _ask(self, work: Callable[[TraceRing], T]) -> T:
        """What `work` returns in the thread, after all that was put before is written."""
        answer: Future[T] = Future()

        def job(ring: TraceRing) -> None:
            try:
                answer.set_result(work(ring))
            except BaseException as error:
                answer.set_exception(error)

        self._send(job)
        return await asyncio.wrap_future(answer)

    def _send(self, job: _Kept | Ask) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._keeper.serve, name="traces", daemon=True)
            self._thread.start()
        self._jobs.put(job)


def _completed(kept: _Kept) -> None:
    """A fault of ours there costs a record what would have been added, and the thread nothing."""
    try:
        kept.complete(kept.record)
    except Exception:
        log.exception("the record of request %s is not complete", kept.record.id)


class _Keeper:
    """What the thread does. Does not know the store, which may be dropped meanwhile."""

    def __init__(self, jobs: Jobs, path: str, size: int) -> None:
        self.dropped = 0
        self._jobs = jobs
        self._ring = TraceRing(path, size) if path else None
        self._size = size

    def serve(self) -> None:
        """Until it is told to end."""
        job = self._jobs.get()
        while job is not None:
            kept: list[_Kept] = []
            until = time.monotonic() + GATHERS_S
            while isinstance(job, _Kept):
                kept.append(job)
                try:
                    job = self._jobs.get(timeout=max(0.0, until - time.monotonic()))
                except queue.Empty:
                    break
            ring = self._ring = self._ring or TraceRing("", self._size)
            for each in kept:
                _completed(each)
            self.dropped += ring.write([record for record, _ in kept])
            if job is None:
                break
            if not isinstance(job, _Kept):
                job(ring)
            job = self._jobs.get()
        if self._ring is not None:
            self._ring.close()
