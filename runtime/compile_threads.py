"""Threads that compile grammars: one a grammar, a few at once, and none that could hold up the others for ever.

No engine can be told to stop. A compile that runs past its time is abandoned: its thread goes on at the lowest priority
and no longer counts, so that the next in the queue can begin.

Knows nothing of grammars, requests or sockets.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Job(Generic[T]):
    """One piece of work, and all who wait for it."""

    key: Hashable
    work: Callable[[], T]
    future: Future[T] = field(default_factory=Future)
    thread: threading.Thread | None = None
    began: float | None = None
    abandoned: bool = False


class CompileThreads(Generic[T]):
    """`wake` is called, in the thread, whenever a job is done. At most `threads` jobs count as running, and at most
    `stuck` run on abandoned; beyond that an abandoned one keeps its place."""

    def __init__(self, wake: Callable[[], None], *, threads: int = 4, stuck: int = 8) -> None:
        self._wake = wake
        self._threads = threads
        self._stuck = stuck
        self._lock = threading.Lock()
        self._jobs: dict[Hashable, Job[T]] = {}  # queued, running or abandoned
        self._queue: deque[Job[T]] = deque()

    def submit(self, key: Hashable, work: Callable[[], T]) -> Job[T]:
        """The job for `key`: that which is there already, or a new one."""
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                job = self._jobs[key] = Job(key, work)
                self._queue.append(job)
                self._start_more()
            return job

    def abandon(self, job: Job[T]) -> None:
        """Nobody waits for it any longer, or nobody should."""
        with self._lock:
            if job.began is None:
                if job in self._queue:
                    self._queue.remove(job)
                    del self._jobs[job.key]
                return
            if not job.abandoned and job.thread is not None and not job.future.done():
                job.abandoned = True
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.setpriority(os.PRIO_PROCESS, job.thread.native_id or 0, 19)
                self._start_more()

    def _start_more(self) -> None:
        while self._queue and self._counted() < self._threads:
            job = self._queue.popleft()
            job.began = time.monotonic()
            job.thread = threading.Thread(target=self._run, args=(job,), name="grammar", daemon=True)
            job.thread.start()

    def _counted(self) -> int:
        begun = [job for job in self._jobs.values() if job.began is not None]
        abandoned = sum(job.abandoned for job in begun)
        return len(begun) - min(abandoned, self._stuck)

    def _run(self, job: Job[T]) -> None:
        try:
            job.future.set_result(job.work())
        except BaseException as error:  # raised again for whoever waits for the job
            job.future.set_exception(error)
        with self._lock:
            del self._jobs[job.key]
            self._start_more()
        self._wake()
